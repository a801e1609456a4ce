"""Scans of made-up numbers, small enough to read back whole."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from attnviz.engine.effects import METRICS, Variant
from attnviz.inspect.interventions.ablate.report import AblationReport, Effect
from attnviz.inspect.interventions.study import Mean
from attnviz.measures.one_text import head_scores, notable_heads
from attnviz.records import AttentionRecord, HeadsRecord, LayerWeights, ModelInfo, Tokens

TEXT = "Old Tom saw Ann, and Ann saw Tom."
PIECES = ("<s>", "Old", " Tom", " saw", " A", "nn", ",", " and", " A", "nn", " saw", " Tom", ".")
LAYERS, HEADS = 3, 5

ASIDE = ("kl", "flip_rate", "output_mse", "output_cosine")


def tokens_of(texts):
    ids = [*dict.fromkeys(texts)]
    special = tuple(text == "<s>" for text in texts)
    return Tokens(tuple(100 + ids.index(text) for text in texts), tuple(texts), special)


def attention(info, tokens):
    rng = np.random.default_rng(3)
    count = len(tokens)
    layers = []
    for layer in range(info.layers):
        raw = np.tril(rng.dirichlet(np.full(count, 0.3), (info.heads, count)) + 1e-4)
        weights = (raw / raw.sum(-1, keepdims=True)).astype(np.float32)
        layers.append(LayerWeights(layer, tuple(range(info.heads)), weights))
    record = AttentionRecord(info, "self", True, tokens, tokens, tuple(layers))
    scores = head_scores(record)
    return HeadsRecord(record, scores, notable_heads(scores, 3), False)


def made_effect(
    variant,
    values,
    *,
    texts=1,
    intervals=MappingProxyType({}),
    adjusted=MappingProxyType({}),
    bases=MappingProxyType({}),
    errors=MappingProxyType({}),
    token_losses=(),
):
    """An effect of these values by metric, and of what else is known of each."""
    means = {
        name: Mean(
            value,
            intervals.get(name),
            adjusted.get(name),
            bases.get(name),
            errors.get(name),
            METRICS[name].signed,
        )
        for name, value in values.items()
    }
    return Effect(variant, texts, means, token_losses)


def with_loss(effect, **fields):
    """An effect with other fields of its loss delta's estimate."""
    loss = replace(effect.means["loss_delta"], **fields)
    return replace(effect, means={**effect.means, "loss_delta": loss})


def effect_of(variant, rng, texts, tokens):
    """Made-up costs; the loss delta is the mean of those by token, so that screens agree."""
    by_token = np.concatenate([[np.nan], rng.normal(0.05, 0.3, tokens - 1) ** 3])
    delta = float(by_token[1:].mean())
    values = dict(zip(ASIDE, rng.uniform(0, (0.5, 1, 0.3, 0.1)).tolist(), strict=True))
    intervals = {
        "loss_delta": (delta - 0.004, delta + 0.003),
        "kl": (values["kl"] - 0.01, values["kl"] + 0.02),
    }
    return made_effect(
        variant,
        {"loss_delta": delta, **values},
        texts=texts,
        intervals=intervals if texts >= 5 else {},
        adjusted={"loss_delta": 0.03 if abs(delta) > 0.01 else 0.5} if texts > 5 else {},
        token_losses=(by_token,) * texts,
    )


def scans(
    *,
    layers=LAYERS,
    heads=HEADS,
    pieces=PIECES,
    texts=1,
    variants=None,
    kv_heads=None,
    patterns=True,
    **fields,
):
    """A scan of every head, or of ``variants``; the other names are fields of the report."""
    rng = np.random.default_rng(11)
    info = ModelInfo(
        "made", "0123456789abcdef", "None", "float32", layers, heads, kv_heads or heads, 8
    )
    tokens = tokens_of(pieces)
    if variants is None:
        variants = [Variant(((layer, head),)) for layer in range(layers) for head in range(heads)]
    effects = tuple(effect_of(variant, rng, texts, len(tokens)) for variant in variants)
    made = AblationReport(
        info,
        "self",
        (tokens,) * texts,
        effects,
        baseline={"loss": 3.25},
        text=TEXT,
        texts_wanted=texts,
        patterns=attention(info, tokens) if patterns else None,
    )
    return replace(made, **fields)
