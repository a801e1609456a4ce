"""Reports of made-up numbers, small enough to read back whole."""

from dataclasses import replace

import numpy as np

from attnviz.engine.patching import WHOLE_LAYER
from attnviz.inspect.interventions.patch.report import (
    AskedToken,
    PairRuns,
    PatchEffect,
    PatchReport,
    TokenEffects,
)
from attnviz.inspect.interventions.study import Mean
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.prompts.study import TokenPair
from attnviz.records import ModelInfo, Tokens

CLEAN = ("<s>", "Tom", " Brown", " saw", " Ann", ",", " and", " Tom")
CORRUPT = ("<s>", "Tom", " Green", " saw", " Ann", ",", " and", " Tom")


def tokens_of(texts):
    ids = [*dict.fromkeys((*CLEAN, *CORRUPT))]
    return Tokens(
        tuple(map(ids.index, texts)), tuple(texts), tuple(text == "<s>" for text in texts)
    )


def reports(*, layers=3, heads=4, pairs=1, by_token=False, **fields):
    """Heads that carry less and less, some against it; the other names are fields of the report."""
    rng = np.random.default_rng(5)
    whole = fields.get("what", "output") in WHOLE_LAYER
    places = [(at, head) for at in range(layers) for head in range(1 if whole else heads)]
    effects = []
    for number, place in enumerate(places):
        value = 0.6 / (1 + number) * (-1 if number % 3 == 2 else 1)
        doubt = (value - 0.05, value + 0.05) if pairs >= 5 else None
        p = 0.01 if pairs >= 5 and abs(value) > 0.1 else 0.5 if pairs >= 5 else None
        base = value / 3 if number < 8 else None
        share = Mean(value, doubt, p, base)
        effects.append(PatchEffect((place,), 8 * value - 4, 8 * value, share))
    runs = PairRuns(
        TokenPair(tokens_of(CLEAN), tokens_of(CORRUPT)),
        AskedToken(7, " Brown"),
        AskedToken(8, " Green"),
        4,
        -4,
    )
    info = ModelInfo("made", None, "None", "float32", layers, heads, heads, 8, "checkpoint")
    named = KnownLabels("card", {places[0]: KnownLabel("induction", 0.87)}).named()
    report = PatchReport(
        info, "self", (runs,) * pairs, "output", "denoise", "all", "logit_diff", "exact",
        tuple(effects), None, None, 4.0, -4.0, True, "", "the source of another pair",
        labels={} if whole else named,
        text="Tom Brown saw Ann, and Tom", pairs_wanted=pairs,
    )  # fmt: skip
    if by_token:
        columns = tuple(places if whole else places[:4])
        values = rng.normal(0, 0.1, (6, len(columns)))
        values[-1] = np.linspace(0.1, 0.9, len(columns))
        report = replace(report, by_token=TokenEffects(columns, tuple(range(2, 8)), 7, values))
    return replace(report, **fields)
