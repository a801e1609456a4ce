"""The whole answer of ``attnviz verify``, put together from its views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.segment import Segment

from attnviz.draw.blocks import DIM, Block, Line, stack, trimmed
from attnviz.draw.labels import at_blanks, visible, width
from attnviz.draw.prose import paragraph, wrapped
from attnviz.draw.provenance import model_parts, quoted_line
from attnviz.draw.theme import Theme
from attnviz.verify.model_table import model_table
from attnviz.verify.own_table import own_table
from attnviz.verify.records import Verification
from attnviz.verify.signs import in_signs
from attnviz.verify.steps_screen import steps_block
from attnviz.verify.words import epsilon_words, summary, verdict_style

__all__ = ["OWN_NAME", "explanation", "own_facts", "verification_screen"]


def explanation(found: Verification) -> tuple[str, ...]:
    """Paragraphs; what stands before the first colon is what they are about."""
    return tuple(_of_model(found) if found.model is not None else _of_own(found))


def _of_own(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each row computes the same attention twice, by this library and by "
        "another way, and shows the largest difference of any two numbers: of the outputs, and of "
        "the attention weights. PASS means that no difference is larger than rounding explains."
    )
    yield (
        "ours: NumPy and torch are the library's own two ways; fused is its torch module while "
        "nobody looks at the weights, when a kernel computes the output without them."
    )
    yield (
        "against: the naive loop is the textbook's formula as three nested loops over plain "
        "numbers, written apart from the library; torch and Keras bring layers of their own, into "
        "which the same numbers were put. F.scaled_dot_product_attention returns no weights: they "
        "are read off by letting it mix the rows of an identity matrix."
    )
    yield (
        "rounding: computers keep a limited number of digits, so the same sum in another order "
        "ends a little differently. A mistake in the formula is thousands of times larger."
    )
    if found.steps:
        yield (
            "the steps: each head compares the query of a token (Q) with the key of every token "
            "(K), turns the scores into shares of one (A), and mixes the values (V) by them."
        )


def _of_model(found: Verification) -> Iterator[str]:
    yield (
        "How to read this: each block is a property that must hold if what attnviz shows of this "
        "model is to be trusted. A line is one measured number, its tolerance, and why it may be "
        "that large. PASS means that every number of the block is within its tolerance."
    )
    yield "rows: a query spreads exactly one over what it sees; a learned sink may take a part."
    yield (
        "causality: a language model must not see the future. Later tokens are changed for real, "
        "and everything before them has to stay."
    )
    yield (
        "heads: what each head puts out (z_h), sent through its own part of the output projection "
        "(W_O^h), adds up to what the module puts out; so removing a head is well defined."
    )
    yield (
        "bit for bit: where the same operations run on the same numbers, not even the last digit "
        "may differ; there the tolerance is 0."
    )


OWN_NAME = "the library's own attention"
_LONGEST = 100


def verification_screen(
    found: Verification,
    theme: Theme,
    room: int,
    explained: bool = False,
    hints: Sequence[str] = (),
) -> Block:
    """Everything that one run shows, in ``room`` columns.

    explained: add a reading for newcomers. hints: what to try next.
    """
    parts = [_provenance(found, theme, room)]
    if found.model is not None:
        notes = (visible(note, theme.encoding) for note in found.model.notes)
        parts.append(stack([paragraph(note, room, theme, DIM) for note in notes], gap=0))
    if found.steps:
        parts.append(steps_block(found, theme, room))
    table = own_table if found.model is None else model_table
    parts += [table(found, theme, room), _foot(found, theme, room)]
    if explained:
        said = [in_signs(text, theme) for text in explanation(found)]
        block = [paragraph(text, min(room, _LONGEST), theme) for text in said]
        parts.append(stack(block, gap=0))
    if hints:
        lines = wrapped([(hint, False) for hint in hints], room, theme)
        parts.append(Block(tuple(lines), room))
    return trimmed(stack(part for part in parts if part.lines))


def own_facts(found: Verification) -> list[str]:
    """The sizes of the own attention and the libraries that took part, in words."""
    sizes = found.sizes
    assert sizes is not None
    texts = f"{sizes.batch} text{'s' * (sizes.batch != 1)} of {sizes.tokens} tokens"
    heads = f"{sizes.heads} head{'s' * (sizes.heads != 1)} of {sizes.head_dim}"
    made_with = [f"{name} {version}" for name, version in found.versions.items()]
    return [found.dtype, f"d_model {sizes.d_model}", heads, texts, f"seed {sizes.seed}", *made_with]


def _provenance(found: Verification, theme: Theme, room: int) -> Block:
    if found.model is None:
        parts = [(OWN_NAME, True), *((fact, False) for fact in own_facts(found))]
        return Block(tuple(wrapped(parts, room, theme)), room)
    seed = [] if found.model.seed is None else [(f"seed {found.model.seed}", False)]
    counts = " and ".join(f"{count} tokens" for count in found.tokens)
    parts = [*model_parts(found.model, theme), (counts, False), *seed]
    lines = wrapped(parts, room, theme)
    for name, content in (("text", found.text), ("target", found.target)):
        if content is not None:
            lines.append(quoted_line(name, content, room, theme))
    return Block(tuple(lines), room)


def _foot(found: Verification, theme: Theme, room: int) -> Block:
    """How many checks passed, and what the tolerances are made of."""
    line: Line = []
    lines: list[Line] = []
    used = 0
    for text, verdict in summary(found):
        length = width(text)
        if line and used + width(theme.dot) + length > room:
            lines, line, used = [*lines, line], [], 0
        if line:
            line.append(Segment(theme.dot, DIM))
            used += width(theme.dot)
        pieces = at_blanks(text, room, "", theme.ellipsis)
        lines += [[Segment(piece, verdict_style(verdict, theme))] for piece in pieces[:-1]]
        line.append(Segment(pieces[-1], verdict_style(verdict, theme)))
        used += width(pieces[-1])
    told = paragraph(in_signs(epsilon_words(found), theme), room, theme, DIM)
    return stack([Block((*lines, line), room), told], gap=0)
