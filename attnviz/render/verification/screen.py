"""The whole answer of ``attnviz verify``, put together from its views."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from attnviz.render.blocks import DIM, Block, Line, stack, trimmed
from attnviz.render.facts import model_parts, quoted_line
from attnviz.render.labels import at_blanks, visible, width
from attnviz.render.prose import paragraph, wrapped
from attnviz.render.theme import Theme
from attnviz.render.verification.explain import explanation
from attnviz.render.verification.model_table import model_table
from attnviz.render.verification.own_table import own_table
from attnviz.render.verification.signs import in_signs
from attnviz.render.verification.steps import steps_block
from attnviz.render.verification.words import epsilon_words, summary, verdict_style
from attnviz.verification import Verification

__all__ = ["OWN_NAME", "own_facts", "verification_screen"]

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
