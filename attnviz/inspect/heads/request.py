"""The options of ``heads``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.measures.registry import OF_ONE_TEXT, complete_measure, find_label, said_name
from attnviz.options import (
    HeadChoice,
    IndexBase,
    Known,
    Options,
    Reduction,
    RegionOptions,
    Truncation,
    flag,
    option,
    spelled_heads,
)

_SAID = [said_name(name) for name in OF_ONE_TEXT]


def _complete(incomplete: str) -> list[str]:
    return complete_measure(incomplete, OF_ONE_TEXT)


@dataclass(frozen=True)
class Kinds(Options):
    """The options that choose which kinds of attention are shown; several stand side by side."""

    kind: str | None = option(
        "KIND",
        "For an encoder–decoder: encoder (default), decoder or cross; for mha: self (default) or "
        "cross; several, separated by commas, are shown side by side.",
    )
    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder and cross (default: the model's own greedy output); "
        "with mha, the text that the queries come from; the keys come from TEXT.",
        words=True,
    )


@dataclass(frozen=True)
class ViewOptions(Options, panel="View"):
    """The options that choose how the attention is shown, and which part of it."""

    values: bool = flag("Print the weights in the cells.")
    top: int | None = option("N", "How many of the strongest token pairs to list per head.", min=1)
    token: str | None = option(
        "WORD|INDEX",
        "Heads that attend most strongly to or from a word (WORD:2: its second occurrence).",
        words=True,
        brief="Heads that attend most to or from a word.",
    )
    pair: tuple[str, str] | None = option(
        "WORD WORD",
        "Rank heads by how strongly they link two words, relative to the same pair in shuffled "
        "texts.",
        words=True,
        brief="Heads that link two words, compared with chance.",
    )
    sink: bool | None = option(
        "",
        "Include links to the attention sink (first token, special tokens). By default the sink is "
        "in the maps, not in lists and coloured texts; --no-sink removes it everywhere.",
        name="--sink/--no-sink",
    )
    norm_weighted: bool = flag(
        "Show each weight times the norm of the value vector it multiplies, with rows renormalised."
    )
    ablate: tuple[str, ...] = option("HEADS", "Zero-ablate these heads, named as in --head.", ())
    sort: str | None = option(
        "MEASURE",
        f"Sort the heads by {', '.join(_SAID[:-1])} or {_SAID[-1]}; largest first.",
        autocompletion=_complete,
    )
    reverse: bool = flag("Sort smallest first.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "ablate", spelled_heads(self.ablate))
        super().__post_init__()
        if self.sort is not None:
            object.__setattr__(self, "sort", find_label(self.sort, OF_ONE_TEXT, "measure"))
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
class Compared(Options, panel="attnviz's own attention (--model mha)"):
    """The options that put variants of the library's own attention side by side."""

    compare_mask: bool = flag(
        "Show the same heads with and without the causal mask, side by side; if the --and text "
        "differs in length, show the shorter text with and without its padding mask.",
        brief="Show the same heads with and without the causal mask.",
    )
    score: str | None = option(
        "SCORE",
        "The attention score: scaled-dot (q·k/√d_k, the default), dot (q·k) or "
        "additive (v·tanh(q + k), Bahdanau); several, separated by commas, are shown side by side.",
    )

    @property
    def changed(self) -> list[str]:
        """Return the names of these options that were given."""
        return ["compare_mask"] * self.compare_mask + (["score"] if self.score else [])


@dataclass(frozen=True)
class LongOptions(Options, panel="Long texts"):
    """The options for texts whose maps are too large to be shown, or held, whole."""

    queries: str | None = option(
        "A-B", "Show these query tokens (such as 8000-8050) in full; the rest are pooled."
    )
    keys: str | None = option("A-B", "Show these key tokens in full.")


@dataclass(frozen=True)
class HeadsRequest(
    HeadChoice,
    Kinds,
    Truncation,
    RegionOptions,
    ViewOptions,
    LongOptions,
    Reduction,
    Compared,
    Known,
    IndexBase,
):
    """All options of ``heads``."""

    @property
    def asks_sums(self) -> bool:
        """Return whether pooled maps were asked for, however short the text is."""
        return self.reduce == "fused" or self.queries is not None or self.keys is not None

    @property
    def needs_whole(self) -> str:
        """Return the first given option that needs whole maps; empty if there is none."""
        names = ("values", "pair", "norm_weighted", "ablate", "target", "compare_mask", "score")
        given = [name for name in names if getattr(self, name)]
        given += ["kind"] if "," in (self.kind or "") else []
        return f"--{given[0].replace('_', '-')}" if given else ""
