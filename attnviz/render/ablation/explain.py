"""A reading of a scan in plain words, for someone new to it."""

from __future__ import annotations

from attnviz.ablation import AblationReport
from attnviz.render.ablation.metrics import METRICS
from attnviz.render.ablation.names import variant_name
from attnviz.render.ablation.order import ranked_effects, scale_of, singles, traits_of
from attnviz.render.ablation.rows import metrics_beside
from attnviz.render.ablation.view import AblationView
from attnviz.render.blocks import Block, stack
from attnviz.render.prose import paragraph
from attnviz.render.theme import Theme

__all__ = ["explain_scan"]

_LONGEST = 100


def explain_scan(report: AblationReport, view: AblationView, theme: Theme, room: int) -> Block:
    """How to read the map and the ranking, with this screen's own strongest head."""
    metric = METRICS[report.metric]
    paragraphs = [
        "How to read this: a head is removed, the model reads the same text again, and what "
        "becomes worse is what the head was for. Every number is a difference to the model with "
        "every head.",
        f"{metric.label}: {metric.meaning}.",
    ]
    if report.metric == "loss_delta":
        paragraphs.append(
            "nats per token: the loss is how surprised the model is by each next token. +0.69 "
            "nats means that tokens have become half as likely, on average."
        )
    order = ranked_effects(report, 1)
    if order.matter:
        best = order.matter[0]
        scale = scale_of(singles(report), report.metric)
        value = scale.text((best.metric(report.metric) or 0.0) * metric.factor)
        power = f" x 1e{scale.power}" if scale.power else ""
        unit = f" {metric.unit}" if metric.unit else ""
        name = variant_name(report, best.variant, view.index_base)
        paragraphs.append(f"here: {name} matters most, {value}{power}{unit}.")
    if traits_of(view):
        paragraphs.append(
            "pattern: what the head does over the text with nothing removed, and its score from 0 "
            "to 1, as attnviz heads names it."
        )
    for name in metrics_beside(report, report.effects):
        paragraphs.append(f"{METRICS[name].label}: {METRICS[name].meaning}.")
    paragraphs.append(
        "A head that costs nothing alone may still matter: another head can stand in for it. "
        "--together removes several at once. And what a text does not need, it cannot show: "
        "many texts (--texts) tell chance from rule."
    )
    if report.mode == "zero":
        paragraphs.append(
            "zero: an output of zero is one that the model has never met; --mode mean puts the "
            "head's mean in its place, which is kinder."
        )
    return stack([paragraph(text, min(room, _LONGEST), theme) for text in paragraphs], gap=0)
