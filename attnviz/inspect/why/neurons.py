"""What people read of the neurons of a feed-forward block: the finding, and a table."""

from __future__ import annotations

from attnviz.attention.activations import NEARLY_ZERO
from attnviz.draw import document as doc
from attnviz.draw.numbers import NumberScale, counted, listed, percent
from attnviz.draw.signed import ranked_table
from attnviz.engine.attribution.neurons import NeuronReading
from attnviz.inspect.why.report import WhyReport
from attnviz.prompts.naming import logits, placed

_NAMED = 3
"""The most neurons that a finding names."""

_MOST_ACTIVE = 2
"""The tokens that the table names for each neuron."""


def neuron_words(report: WhyReport, block: NeuronReading, predicted: str) -> str:
    """Return the finding: what the block writes, and how few neurons write most of it.

    predicted: a sentence on the prediction, which is put first.
    """
    order, logit = block.order[:_NAMED].tolist(), report.logit
    names = listed([f"N{neuron} {logits(float(block.written[neuron]))}" for neuron in order])
    whole = f"{_name(report, block)} writes {logits(block.part)} of {logit:.2f} logits"
    if report.model.weights == "random":
        return f"Random weights: the {whole}; its neurons are arbitrary."
    the = "the" if predicted.endswith(":") else "The"
    half = f"{block.half:,} of {counted(len(block.written), 'neuron')}"
    return f"{predicted} {the} {whole}; largest: {names}. {half} write half. One prompt."


def _name(report: WhyReport, block: NeuronReading) -> str:
    return f"L{block.layer + report.index_base} MLP"


def neuron_parts(report: WhyReport, block: NeuronReading) -> tuple[doc.Facts, doc.Table]:
    """Return facts on a feed-forward block, and a table of its largest contributions by neuron."""
    return doc.Facts(_facts(report, block)), _table(report, block)


def _facts(report: WhyReport, block: NeuronReading) -> doc.Words:
    total = float(block.written.sum())
    words = [
        (f"The {_name(report, block)} {logits(block.part)}", True),
        (f"{len(block.written):,} neurons {logits(total)}", False),
        *[(f"bias {logits(block.bias)}", False)] * bool(block.bias),
        (f"Δ {abs(total + block.bias - block.part):.4f}", False),
    ]
    off, near = block.off(), block.nearly_off()
    if off is None or near is None:
        return [*words, ("activation not recognised", False)]
    what, whole = "gates" if block.up is not None else "neurons", block.off(everywhere=True)
    zero = "0" if block.activation == "ReLU" else "at most 0"
    text = f", {percent(whole or 0.0, whole=True)} over the text"
    return [
        *words,
        (f"{block.activation}: {percent(off, whole=True)} of {what} {zero} here{text}", False),
        (f"{percent(near, whole=True)} within ±{NEARLY_ZERO:g}".replace("0.", "."), False),
    ]


def _table(report: WhyReport, block: NeuronReading) -> doc.Table:
    """Return a table of the neurons that write most: contribution, activation, active tokens."""
    order, at = block.order[: report.top].tolist(), block.position
    tokens = report.first.given.predicted
    written = [float(block.written[neuron]) for neuron in order]
    scale = NumberScale.over(written)
    numbers = {
        "active" if block.up is None else "value": block.values,
        "gate": block.active if block.up is not None else None,
        "up": block.up,
    }

    def fires(neuron: int) -> str:
        most = block.fires(neuron, _MOST_ACTIVE)
        return " · ".join(f"{placed(tokens, at, quotes=False)} {own:+.2f}" for at, own in most)

    columns: list[tuple[str | doc.Column, list[str]]] = [
        ("writes" + scale.times, list(map(scale.text, written))),
        *(
            (name, [f"{values[at, neuron]:+.2f}" for neuron in order])
            for name, values in numbers.items()
            if values is not None
        ),
        (doc.Column("most active on", right=False), list(map(fires, order))),
    ]
    table = ranked_table("", [f"N{neuron}" for neuron in order], written, scale, columns)
    here = placed(tokens, at)
    title: doc.Words = [("Neurons that write most", True), (f"values at {here}", False)]
    return table._replace(title=title, least=3)
