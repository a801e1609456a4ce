"""``attnviz patterns``: what every head does, scored, labelled and held against a base rate."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import LoadError, UsageError
from attnviz.measures.registry import LABELS
from attnviz.options import Options, flag, option

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.inspect.patterns.records import PatternReport
    from attnviz.measures.rows import View
    from attnviz.models.model import Model
    from attnviz.records import Tokens

EXAMPLES = """
[bold]Examples[/bold]

attnviz patterns

attnviz patterns --watch induction

attnviz patterns "When Mary and John went out, John gave a book to Mary." --stats

attnviz patterns --without-first --control random-weights --save patterns.csv

attnviz patterns --model openai-community/gpt2 --probe my-pairs.tsv
"""

_LONG = 5.0
"""Seconds of a run that are worth a word."""

_LONGEST = 100
"""Characters of a text that is written out in a hint."""


@dataclass(frozen=True)
class Scoring(Options, panel="What is scored"):
    """What is scored, and against what."""

    probe: tuple[Path, ...] = option(
        "FILE",
        "Annotated sentences of your own, in place of the built-in English ones; may be repeated.",
        (),
    )
    raw: bool = flag("Score the attention weights as they are (default).")
    without_first: bool = flag("Leave out the weight on the first token and renormalise.")
    norm_weighted: bool = flag("Score each weight times the norm of the value that it moves.")
    control: Literal["random-weights"] | None = option(
        "CONTROL", "random-weights: score the same architecture with random weights, too."
    )

    def __post_init__(self) -> None:
        if len(self._views) > 1:
            one, other, *_ = self._views
            raise UsageError(f"expected one view: --{one} and --{other} exclude each other")

    @property
    def _views(self) -> list[View]:
        views: dict[View, bool] = {
            "raw": self.raw,
            "without-first": self.without_first,
            "norm-weighted": self.norm_weighted,
        }
        return [view for view, given in views.items() if given]

    @property
    def view(self) -> View:
        """How weights are changed before they are scored."""
        return next(iter(self._views), "raw")


@dataclass(frozen=True)
class Shown(Options, panel="View"):
    """What is to be seen."""

    watch: str | None = option(
        "LABEL",
        "Rank every head by its score of one label.",
        autocompletion=shared.complete_label,
    )
    stats: bool = flag("Show entropy, distance, confidence and sink weight of every head.")
    top: int | None = option("N", "Heads listed for a label (4; with --watch 24).", min=1)


@dataclass(frozen=True)
class ScoredModel(shared.Model):
    """The model that is scored."""

    seed: int = option("N", "Random seed (weights, random tokens, control).", 0, min=0)


@command(EXAMPLES)
def patterns(
    text: shared.Text,
    truncation: options.Truncation,
    kind: options.Kind,
    choice: options.HeadChoice,
    scoring: Scoring,
    shown: Shown,
    counted: options.IndexBase,
    model: ScoredModel,
    own: shared.OwnShape,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Score what every head does and label it, each against what chance gives."""
    from attnviz.cli.outlet import Found, open_outlet
    from attnviz.draw.numbers import spoken_time
    from attnviz.engine.capture import Choice, attention_kind, encoded, target_tokens
    from attnviz.engine.selection import choose_heads
    from attnviz.inspect.patterns.data import LISTS, patterns_data, patterns_rows
    from attnviz.inspect.patterns.document import patterns_document
    from attnviz.inspect.patterns.probes import SEEDS, read_probe_file, reckoned_probe_tokens
    from attnviz.inspect.patterns.score import score_patterns
    from attnviz.measures.words import joined
    from attnviz.models.model import TwoStackModel
    from attnviz.texts import read_text

    given = text.text is not None or text.file is not None
    if kind.target is not None and not given:
        raise UsageError("--target is the decoder's text of one text: give TEXT or --file")
    options = shared.load_options(model.model, loading, model.seed, own)
    outlet = open_outlet(output)
    own_text = read_text(text.text, text.file, "patterns") if given else None
    sentences = [one for path in scoring.probe for one in read_probe_file(path)]
    if shown.watch is not None:
        relations = [pair.relation for sentence in sentences for pair in sentence.pairs]
        shown = replace(shown, watch=find_label(shown.watch, [*LABELS, *relations]))
    annotated = sentences if scoring.probe else None
    tokens: int | None = reckoned_probe_tokens(own_text, annotated)
    if scoring.control and model.model not in ("tiny", "mha"):
        tokens = None  # torch draws the twin
    with outlet.opened(model.model, replace(options, tokens=tokens)) as opened:
        pass
    info = opened.info
    read = Choice(kind=kind.kind, target=kind.target, truncate=truncation.truncate)
    attention = attention_kind(opened, read)
    encoded_text = None if own_text is None else encoded(opened, own_text, truncation.truncate)
    targets: tuple[Tokens, ...] = ()
    if encoded_text and isinstance(opened, TwoStackModel) and attention in ("decoder", "cross"):
        targets = (target_tokens(opened, encoded_text, read),)
    with outlet.advancing("scoring heads") as scanned:
        report = score_patterns(
            opened,
            None if encoded_text is None else (encoded_text,),
            kind=kind.kind,
            view=scoring.view,
            targets=targets,
            sentences=annotated,
            seeds=range(model.seed, model.seed + SEEDS),
            control=_control_seed(scoring, model.seed, info.seed),
            heads=choose_heads(
                choice.layer, choice.head, info.layers, info.heads, counted.index_base
            ),
            progress=lambda done, total: scanned(done / max(total, 1)),
            index_base=counted.index_base,
        )
    if not given and scoring == Scoring() and not (choice.layer or choice.head):
        keep_labels(opened, report, outlet.notices)
    typed = [text.file] if text.file is not None else []
    target = kind.target if kind.target is not None else joined(targets[0]) if targets else None
    report = replace(
        report,
        text=own_text,
        target=target if targets else None,
        source=", ".join(map(str, [*typed, *scoring.probe])),
    )
    same = _same(model, kind, counted, text)
    hints = () if output.quiet else tuple(_hints(report, shown, output.explain, same))
    if report.seconds > _LONG:  # told first: what comes behind a screen moves its first line off
        outlet.notices.print(f"scoring took {spoken_time(report.seconds)}")
    watch, (stats, top) = shown.watch, (shown.stats, shown.top)
    drawn = partial(
        patterns_document, report, watch, stats=stats, top=top, explain=output.explain, hints=hints
    )
    found = partial(patterns_data, report, watch), partial(patterns_rows, report, watch)
    outlet.show(Found(*found, drawn, LISTS))


def keep_labels(model: Model, report: PatternReport, notices: Console) -> None:
    """Keep the labels of these weights, for ``heads`` and ``ablate`` over single texts.

    Where the user's cache cannot be written that is told, and nothing else happens.
    """
    from attnviz.draw.whole_file import whole_file
    from attnviz.engine.known_labels import label_file, labels_json
    from attnviz.measures.labels import KnownLabel, KnownLabels

    place = label_file(model, report.kind)
    if place is None or report.model.not_finite:
        return
    labels = {
        (entry.layer, entry.head): KnownLabel(
            entry.label, math.nan if entry.score is None else entry.score
        )
        for entry in report.heads
    }
    known = KnownLabels("patterns", labels)
    content = labels_json(place.stem.split("-")[0], report.kind, known, model.info)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(place) as stream:
            stream.write(content)
    except (OSError, LoadError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        told = f"labels are not kept for heads and ablate: {why}"
        notices.print(told, markup=False, soft_wrap=True)


def _control_seed(scoring: Scoring, seed: int, drawn: int | None) -> int | None:
    """Of the control; the twin of a model that is random itself must not be drawn from its seed."""
    if scoring.control is None:
        return None
    return seed + 1 if drawn == seed else seed


def find_label(name: str, known: Iterable[str] = tuple(LABELS)) -> str:
    """The label of this name or letter, or the only one that begins so.

    Raises UsageError, with the nearest name, where there is none.
    """
    names = list(dict.fromkeys(known))
    wanted = name.strip().lower()
    if wanted in names:
        return wanted
    letters = {LABELS[label].letter: label for label in names if label in LABELS}
    if name.strip() in letters:
        return letters[name.strip()]
    begins = [label for label in names if wanted and label.startswith(wanted)]
    if len(begins) == 1:
        return begins[0]
    near = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no label {name!r}: {hint}labels are {', '.join(names)}")


def _same(
    model: shared.Model, kind: options.Kind, counted: options.IndexBase, text: shared.Text
) -> list[str]:
    """The options with which another command looks at the same heads over the same text."""
    options = [] if model.model == "tiny" else ["--model", model.model]
    options += ["--kind", kind.kind] if kind.kind is not None else []
    options += ["--index-base", str(counted.index_base)] if counted.index_base else []
    options += ["--file", str(text.file)] if text.file is not None else []
    options += ["--target", _short(kind.target)] if kind.target is not None else []
    return [*options, *([_short(text.text)] if text.text is not None else [])]


def _short(text: str) -> str:
    """A text that a hint can hold and a shell takes as one; a word in its place for others."""
    typed = text.isprintable() and len(text) <= _LONGEST and not text.startswith("-")
    return text if typed else "TEXT"


def _hints(report: PatternReport, shown: Shown, explain: bool, same: list[str]) -> Iterator[str]:
    """What to try next."""
    named = [name for name in report.labels if report.labelled(name)]
    if shown.watch is None and named:
        known = "induction" if "induction" in named else named[0]
        yield f"--watch {known} ranks all heads by one label"
    elif shown.watch in named:
        best = report.labelled(shown.watch)[0]
        name = report.name(best.layer, best.head)
        command = shlex.join(["attnviz", "ablate", "--head", name, *same])
        yield f"{command} measures whether it matters"
    if not explain:
        yield "--explain: how to read this"
    if not shown.stats and shown.watch is None:
        yield "--stats: entropy and distance of every head"
