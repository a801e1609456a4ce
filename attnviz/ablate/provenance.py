"""What is said of a scan in words: provenance, how heads were removed, what stands beside it."""

from __future__ import annotations

import math

from attnviz.ablate.view import AblationView
from attnviz.draw.blocks import Block, text_line
from attnviz.draw.labels import at_blanks, visible
from attnviz.draw.prose import wrapped
from attnviz.draw.provenance import model_parts, quoted_line
from attnviz.draw.theme import Theme
from attnviz.engine.effects import AblationReport

__all__ = ["UNIT_NAMES", "count", "doubts", "scan_provenance", "scan_words"]

UNIT_NAMES = {"head": "head", "kv-head": "key/value head", "layer": "layer"}


def count(number: int, noun: str) -> str:
    """Such as ``1 text`` or ``1,024 tokens``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def scan_provenance(report: AblationReport, view: AblationView, room: int, theme: Theme) -> Block:
    """Which model, texts, removal and baseline: what a reader needs to repeat the run."""
    lines = wrapped(_model_line(report, theme), room, theme)
    many = view.texts_wanted != 1
    content = f"the first: {view.text}" if many else view.text
    lines.append(quoted_line("texts" if many else "text", content, room, theme))
    if view.target is not None:
        lines.append(quoted_line("target", view.target, room, theme))
    if view.source:
        source = visible(_source(view), theme.encoding)
        lines += [text_line(" " * 7 + line) for line in at_blanks(source, room - 7)]
    lines += wrapped(
        [(visible(part, theme.encoding), False) for part in _scan_parts(report, view)], room, theme
    )
    return Block(tuple(lines), room)


def scan_words(report: AblationReport, view: AblationView) -> list[str]:
    """The same as lines of a figure, without the text."""
    parts = [text for text, _ in _model_line(report, Theme())]
    source = [_source(view)] if view.source else []
    return [" · ".join(line) for line in (parts, [*source, *_scan_parts(report, view)])]


def _model_line(report: AblationReport, theme: Theme) -> list[tuple[str, bool]]:
    size = count(sum(map(len, report.texts)), "token")
    if report.targets:
        size += f" and {sum(map(len, report.targets)):,} of the target"
    if len(report.texts) != 1:
        size = f"{count(len(report.texts), 'text')}, {size}"
    kind = [] if report.kind == "self" else [(f"{report.kind} attention", False)]
    seed = (f"seed {report.seed}", False)
    return [*model_parts(report.model, theme), *kind, (size, False), seed]


def _source(view: AblationView) -> str:
    if view.texts_wanted == 1:
        return view.source
    return f"{count(view.texts_wanted, 'text')} from {view.source}"


def _scan_parts(report: AblationReport, view: AblationView) -> list[str]:
    if report.method == "gradient":
        parts = ["estimated by gradient, no head is removed"]
    else:
        parts = [_removal(report)]
    if report.method == "exact":
        parts.append("exact")
    elif report.method == "budget":
        parts.append("ranked by gradient, the top measured exactly")
    if report.positions == "last":
        parts.append("last prediction of each text only")
    loss = report.baseline.get("loss")
    if loss is not None:
        name = "pseudo-loss" if _is_masked(report, view) else "loss"
        parts.append(f"{name} {loss:.3f} nats per token with every head")
        if name != "loss":
            parts.append("each word masked in turn")
    if view.answer is not None and view.foil is not None:
        asked = f'answer "{view.answer}" against foil "{view.foil}"'
        before = report.baseline.get("logit_diff")
        parts.append(asked if before is None else f"{asked}: {before:+.3f} logits")
    return parts


def _is_masked(report: AblationReport, view: AblationView) -> bool:
    """Whether the loss is that of words that were masked: the attention looks both ways."""
    seen = view.patterns
    return seen is not None and not seen.record.causal and not report.targets


def _removal(report: AblationReport) -> str:
    unit = UNIT_NAMES[report.unit]
    if report.mode == "zero":
        return f"each {unit} set to zero"
    reference = f" over {report.reference}" if report.reference else ""
    if report.mode == "mean":
        return f"each {unit} set to its mean over all positions of {report.reference}"
    drawn = f"each {unit} exchanged for its output{reference}"
    return f"{drawn}, up to {count(report.draws, 'draw')}"


def doubts(report: AblationReport, view: AblationView) -> list[str]:
    """Sentences on what the numbers cannot say."""
    found = []
    if not report.complete:
        done, wanted = len(report.texts), view.texts_wanted
        share = f"{done} of {count(wanted, 'text')}" if wanted > 1 else "a part of the removals"
        found.append(f"incomplete: cut off after {share}; the numbers are those of what is done.")
    values = [effect.metric(report.metric) for effect in report.effects]
    lost = sum(value is not None and not math.isfinite(value) for value in values)
    if lost:
        found.append(
            f"no numbers: {count(lost, 'removal')} overflowed and stay blank"
            f"{report.model.overflow_advice}."
        )
    if report.method == "gradient":
        found.append(
            "hint: gradient importance is a first-order estimate of what a small change of a head "
            "would do, not what its removal costs; --method exact measures that."
        )
    if report.method == "budget":
        found.append(
            f"measured: {len(report.effects)} of {count(len(report.gradients), 'head')}, those "
            "that the gradient ranks highest."
        )
    if report.rank_correlation is not None:
        found.append(
            f"rank correlation of gradient and exact, {len(report.effects)} removals: "
            f"{report.rank_correlation:+.2f}; the gradient is a first-order hint, not the answer."
        )
    if report.effects and report.effects[0].ci_low:
        found.append(
            f"interval: 95 %, bootstrap-t over {count(len(report.texts), 'text')}, 2,000 draws; "
            "paired, so that what texts differ in cancels."
        )
    if report.control:
        found.append(
            "random: what it costs to remove a random direction of equal norm instead of the head."
        )
    return found
