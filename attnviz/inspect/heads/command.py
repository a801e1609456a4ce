"""``attnviz heads``: from a sentence to heatmaps of every head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import UsageError
from attnviz.inspect.heads.cut_command import Cut, show_cut
from attnviz.measures.registry import OF_ONE_TEXT
from attnviz.options import Options, flag, option

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer
    from attnviz.engine.capture import Choice
    from attnviz.inspect.heads.pair import PairLinks
    from attnviz.inspect.heads.report import HeadsComparison, View
    from attnviz.models.model import Model
    from attnviz.models.resolve import LoadOptions
    from attnviz.records import AttentionRecord, HeadsReport

EXAMPLES = """
[bold]Examples[/bold]

attnviz heads "The cat sat on the mat because it was tired."

attnviz heads "When Mary and John went out, John gave Mary a book." --head L1H0 --values

attnviz heads "The animal didn't cross the street because it was tired." --pair it animal

attnviz heads --file story.txt --layer 0-1 --top 3

attnviz heads "A text." --model ./my-checkpoint --token text --save heads.svg

attnviz heads "나는 오늘 학교에 갔다 ." --model mha --d-model 64 --heads 8 --causal

attnviz heads "the cat sat on the mat" --model mha --kind self,cross --target "four words of query"
"""


@dataclass(frozen=True)
class Kinds(Options):
    """Which attention of a model that has several; several of them stand side by side."""

    kind: str | None = option(
        "KIND",
        "Of an encoder–decoder: encoder (default), decoder or cross; of mha: self (default) or "
        "cross; several with commas: side by side.",
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder and cross (default: the model's own greedy output); with "
        "mha the text of the queries, which attend to TEXT.",
        words=True,
    )


@dataclass(frozen=True)
class Views(Options, panel="View"):
    """What is to be seen."""

    values: bool = flag("Write the weights in the cells.")
    top: int | None = option("N", "List the N strongest token pairs of each head.", min=1)
    token: str | None = option(
        "WORD|INDEX",
        "List the heads that attend most from and to a word (WORD:2: its second place).",
        words=True,
    )
    pair: tuple[str, str] | None = option(
        "WORD WORD",
        "Rank the heads that link two words, against the same pair in shuffled texts.",
        words=True,
    )
    sink: bool | None = option(
        "",
        "List links with the attention sink (first token, special tokens) too, or leave it out of "
        "the maps as well.",
        name="--sink/--no-sink",
    )
    norm_weighted: bool = flag(
        "Show each weight times the norm of the value that it moves, rows rescaled."
    )
    ablate: tuple[str, ...] = option(
        "HEADS", "Ablate these heads, named as in --head: what they put out counts as zero.", ()
    )
    sort: str | None = option(
        "MEASURE",
        f"Order the heads by {', '.join(OF_ONE_TEXT[:-1])} or {OF_ONE_TEXT[-1]}; largest first.",
        choices=OF_ONE_TEXT,
    )
    reverse: bool = flag("Order the smallest first.")

    def __post_init__(self) -> None:
        if self.reverse and self.sort is None:
            raise UsageError("--reverse turns the order of --sort around: add --sort MEASURE")
        lists = {"--top": self.top, "--token": self.token, "--pair": self.pair}
        given = [name for name, value in lists.items() if value is not None]
        if len(given) > 1 and self.pair is not None:
            raise UsageError(f"expected one list: give {' or '.join(given)}")
        if self.pair is not None and (self.ablate or self.norm_weighted):
            other = "--ablate" if self.ablate else "--norm-weighted"
            raise UsageError(f"--pair ranks the weights of the whole model: leave out {other}")


@dataclass(frozen=True)
class Variants(shared.OwnShape):
    """The shape of ``mha``, and what of it is compared."""

    compare_mask: bool = flag("The same heads without and with the causal mask, side by side.")
    score: str | None = option(
        "SCORE",
        "How a query and a key are matched: scaled-dot (q·k/√d_k, the default), dot (q·k) or "
        "additive (v·tanh(q + k), Bahdanau); several with commas: side by side.",
    )

    def __post_init__(self) -> None:
        if self.compare_mask and self.causal is not None:
            raise UsageError("--compare-mask shows both: leave out --causal and --no-causal")


@dataclass(frozen=True)
class HeadsOutput(shared.Output):
    """As everywhere, and files of arrays."""

    save: tuple[Path, ...] = shared.saved(f"{shared.EVERY} .npz .safetensors")


@command(EXAMPLES)
def heads(
    text: shared.Text,
    choice: options.HeadChoice,
    kinds: Kinds,
    truncation: options.Truncation,
    view: Views,
    cut: Cut,
    counted: options.IndexBase,
    model: shared.Model,
    own: Variants,
    loading: shared.Loading,
    output: HeadsOutput,
) -> None:
    """Show where each attention head attends, over one text."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import loading as loads
    from attnviz.engine.capture import Choice
    from attnviz.texts import read_text

    compared = ["compare_mask"] * own.compare_mask + ["score"] * bool(own.score)
    variants = make_variants(
        shared.load_options(model.model, loading, model.seed, own, *compared),
        Choice(
            choice.layer,
            choice.head,
            counted.index_base,
            target=kinds.target,
            truncate=truncation.truncate,
        ),
        kinds.kind,
        own.score,
        own.compare_mask,
    )
    outlet = open_outlet(output)
    content = read_text(text.text, text.file)
    if cut.edge is not None:
        show_cut(model.model, content, cut.edge, variants, outlet, list(view.given()))
        return
    with loads(model.model, outlet.notices) as progress:
        runs = _runs(model.model, content, variants, view, progress)
    outlet.show(_report(runs, view, output))


# The runs ------------------------------------------------------------------------------------

Variant = tuple["LoadOptions", "Choice"]
"""One run: of which model, and of which of its attention."""

Name = TypeVar("Name", bound=str)


def make_variants(
    options: LoadOptions,
    choice: Choice,
    kind: str | None,
    score: str | None,
    masks: bool,
) -> tuple[Variant, ...]:
    """One run for each kind and score, and with ``masks`` for either mask; one in all by default.

    kind, score: as typed, several with commas between.

    A causal mask is for self-attention: beside it, cross attention goes without. The target is
    only for the kinds that have one.

    Raises UsageError where a name is unknown or given twice, or a mask is compared where none
    belongs.
    """
    from attnviz.records import Kind, Score

    kinds: tuple[Kind, ...] = _chosen("--kind", kind, get_args(Kind))
    scores: tuple[Score, ...] = _chosen("--score", score, get_args(Score))
    if masks and "cross" in kinds:
        raise UsageError(
            "--compare-mask hides the later words of one text, cross attention has two: leave out "
            "--kind cross"
        )
    runs = product(kinds or (None,), scores or (None,), (False, True) if masks else (None,))
    variants = []
    for one, matched, causal in runs:
        target = choice.target
        if len(kinds) > 1 and one == "cross":
            causal = False
        if len(kinds) > 1 and one not in ("decoder", "cross"):
            target = None
        own = options
        if matched is not None:
            own = replace(own, score=matched)
        if causal is not None:
            own = replace(own, causal=causal)
        variants.append((own, replace(choice, kind=one, target=target)))
    return tuple(variants)


def _chosen(option: str, typed: str | None, known: tuple[Name, ...]) -> tuple[Name, ...]:
    """The names between the commas."""
    names = [] if typed is None else [name.strip() for name in typed.split(",")]
    for place, name in enumerate(names):
        if name not in known:
            expected = ", ".join(map(repr, known))
            raise UsageError(f"{option}: {name!r} is not one of {expected}")
        if name in names[:place]:
            raise UsageError(f"{option} {name} is given twice: there is one run of each")
    return tuple(one for name in names for one in known if one == name)


class _Run(NamedTuple):
    """A report, and the heads that link two words where that was asked."""

    report: HeadsReport
    pair: PairLinks | None


def _runs(
    model_name: str,
    text: str,
    variants: Sequence[Variant],
    view: Views,
    progress: Callable[[str, int, int | None], None] | None,
) -> list[_Run]:
    """One for each variant; a model is loaded again only where it is another."""
    from attnviz.engine.known_labels import known_labels
    from attnviz.inspect.heads.pair import DRAWS
    from attnviz.inspect.heads.report import heads_report
    from attnviz.models.resolve import load, reckoned_tokens

    runs: list[_Run] = []
    model, loaded = None, None
    for loading, choice in variants:
        if model is None or loaded != loading:
            tokens = reckoned_tokens(text) * (1 if view.pair is None else 1 + DRAWS)
            model = load(model_name, replace(loading, progress=progress, tokens=tokens))
            loaded = loading
        record, selected, changed = _captured(model, text, choice, view)
        pair = None if view.pair is None else _pair(model, record, text, choice, view.pair)
        report = heads_report(
            record,
            selected,
            *(choice.index_base, view.sort, view.reverse),
            text=text,
            target=choice.target,
            sink=view.sink is not False,
            known=known_labels(model, record.kind),
            **changed,
        )
        runs.append(_Run(report, pair))
    return runs


def _captured(
    model: Model, text: str, choice: Choice, view: Views
) -> tuple[AttentionRecord, bool, dict[str, Any]]:
    """The record, whether heads were chosen, and how the view changes it: for ``heads_report``."""
    from attnviz.engine.capture import asked, capture_text

    if not (view.ablate or view.norm_weighted):
        return *capture_text(model, text, choice), {}
    from attnviz.engine.selection import choose_heads
    from attnviz.engine.text_pass import TextReader

    info = model.info
    chosen = choose_heads(None, view.ablate, info.layers, info.heads, choice.index_base) or {}
    removed = {(layer, head) for layer, heads in chosen.items() for head in heads}
    wanted, reader = asked(model, text, choice), TextReader(model)
    record = reader.read(wanted, removed).record
    norms = reader.norms(wanted, removed) if view.norm_weighted else None
    return record, wanted.heads is not None, {"ablated": removed, "norms": norms}


def _pair(
    model: Model, record: AttentionRecord, text: str, choice: Choice, words: tuple[str, str]
) -> PairLinks:
    """Raises UsageError where a word is not in the text, or nothing is left to shuffle."""
    from attnviz.engine.capture import encoded
    from attnviz.inspect.heads.pair import pair_links
    from attnviz.measures.words import find_word

    first, second = (find_word(record, word) for word in words)
    return pair_links(model, record, (first, second), encoded(model, text, choice.truncate))


# What is shown -------------------------------------------------------------------------------


def _report(runs: Sequence[_Run], view: Views, output: shared.Output) -> _Report:
    """Raises UsageError where runs that were to be compared are the same, or lack the word."""
    from attnviz.inspect.heads.report import View, compare_heads
    from attnviz.measures.words import find_word

    reports = [run.report for run in runs]
    pairs = [run.pair for run in runs if run.pair is not None]
    word = view.token
    words = [] if word is None else [find_word(each.record, word) for each in reports]
    ways = {(each.record.kind, each.record.causal, each.record.model.score) for each in reports}
    if len(ways) < len(reports):
        raise UsageError("a single word has no later one to hide: give a text of at least two")
    sink, hints = bool(view.sink), not output.quiet
    return _Report(
        compare_heads(reports),
        View(view.values, view.top, words, pairs, sink, output.explain, hints),
    )


class _Report(NamedTuple):
    """The heads, for every outlet."""

    found: HeadsComparison
    view: View

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.inspect.heads.data import write_heads_json

        write_heads_json(self.found, stream, self.view)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.heads.data import heads_rows

        return heads_rows(self.found, self.view)

    def document(self) -> Document:
        from attnviz.inspect.heads.document import heads_document

        return heads_document(self.found, self.view)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.inspect.heads.data import array_files

        return array_files(self.found, self.view)
