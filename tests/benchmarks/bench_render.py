"""Drawing maps against the same cells in a rich Table, the obvious alternative: prints ratios.

Run it as a script: ``python tests/benchmarks/bench_render.py``. A ratio of 0.05 means a twentieth
of the table's time. Both are timed from weights to the bytes that a truecolor terminal gets.
"""

import io

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from timing import median_seconds

from attnviz.draw.axes import Axes
from attnviz.draw.document import Map, Maps
from attnviz.draw.heatmap import heatmap
from attnviz.draw.maps import pool
from attnviz.draw.palette import colour_table, to_hex
from attnviz.draw.panels import maps_block
from attnviz.draw.theme import Theme
from attnviz.measures.one_text import head_scores
from attnviz.records import AttentionRecord, HeadsRecord, LayerWeights, ModelInfo, Tokens

RUNS = 3


def causal_maps(heads, tokens):
    raw = np.tril(np.random.default_rng(0).random((heads, tokens, tokens), dtype=np.float32))
    return raw / raw.sum(-1, keepdims=True)


def report_of(layers, heads, tokens):
    words = tuple(f"w{place}" for place in range(tokens))
    text = Tokens(tuple(range(tokens)), words, (False,) * tokens)
    info = ModelInfo("bench", None, "None", "float32", layers, heads, heads, 64)
    kept = tuple(
        LayerWeights(layer, tuple(range(heads)), causal_maps(heads, tokens))
        for layer in range(layers)
    )
    record = AttentionRecord(info, "self", True, text, text, kept)
    return HeadsRecord(record, head_scores(record), ((0, 0),), selected=False)


def table_of(weights):
    """A cell a weight, coloured by the same scale."""
    colours = [to_hex(colour) for colour in colour_table("viridis")]
    table = Table(box=None, padding=0, show_header=False, pad_edge=False)
    for _ in range(weights.shape[1]):
        table.add_column(width=1)
    for query, row in enumerate(weights):
        steps = np.rint(np.sqrt(row) * 255).astype(int).tolist()
        table.add_row(
            *(
                Text(" ", style=f"on {colours[step]}") if key <= query else Text(" ")
                for key, step in enumerate(steps)
            )
        )
    return table


def table_overview(report):
    """A table of small tables, pooled as the overview's maps are."""
    outer = Table(box=None, padding=(0, 1), show_header=False)
    for layer in report.record.layers:
        outer.add_row(*(table_of(pool(weights, (3, 3))) for weights in layer.weights))
    return outer


def seconds(draw, columns):
    """Return the median time from weights to bytes."""

    def drawn():
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system="truecolor", width=columns
        )
        console.print(draw(), soft_wrap=True)

    return median_seconds({"": drawn}, RUNS)[""]


def main():
    small = report_of(12, 12, 15)
    record = small.record
    maps = [
        Map(small.name(*place), weights, record.queries, record.keys, causal=True)
        for *place, weights in record
    ]
    part = Maps(maps, small=(3, 7), across=12, scale=None)
    ratio = seconds(lambda: maps_block(part, Theme(), 120), 120) / seconds(
        lambda: table_overview(small), 160
    )
    print(f"overview of 12 x 12 heads, against tables: {ratio:.3f}")

    weights = causal_maps(1, 300)[0]
    labels = [f"w{place}" for place in range(300)]
    axes = Axes(labels, labels, causal=True)
    ratio = seconds(lambda: heatmap(weights, axes, Theme(), 330), 330) / seconds(
        lambda: table_of(weights), 330
    )
    print(f"map of 300 x 300 tokens, against a table: {ratio:.3f}")


if __name__ == "__main__":
    main()
