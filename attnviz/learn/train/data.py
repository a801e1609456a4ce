"""The JSON object and the table rows that ``attnviz train`` writes for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple
from typing import Any

from attnviz.draw.values import model_facts
from attnviz.learn.train.records import CurvePoint, ModelScores, TrainReport

SCHEMA = "attnviz.train/1"

_CURVE = ("step", "tokens", "seconds", "learning_rate", "loss", "valid_loss", "phase")
"""The columns of a point of the curve, in the order of its record."""


def train_data(result: TrainReport) -> dict[str, Any]:
    """Return the report of a training as JSON values; losses are nats per token."""
    last = result.points[-1]
    return {
        "schema": SCHEMA,
        "model": {
            **model_facts(result.model),
            "parameters": result.parameters,
            "vocabulary": result.vocabulary,
            "d_model": result.d_model,
        },
        "path": result.directory,
        "train": asdict(result.train),
        "valid": asdict(result.valid),
        "budget": result.budget,
        "finished": result.finished,
        "autocast": result.dtype,
        "stored": result.stored,
        "seed": result.seed,
        "steps": last.step,
        "tokens": last.tokens,
        "seconds": last.seconds,
        "tokens_per_second": result.tokens_per_second,
        "shares": dict(result.shares),
        "valid_loss": result.valid_loss,
        "valid_perplexity": result.valid_perplexity,
        "valid_bits_per_byte": result.valid_bits_per_byte,
        "valid_tokens": result.valid_tokens,
        "unigram_loss": result.unigram_loss,
        "learnt": result.learnt,
        "valid_windows": result.valid_windows,
        "curve_windows": result.curve_windows,
        "scores": _scores(result.scores),
        "curve": [_point(point) for point in result.points],
    }


def _scores(scores: ModelScores) -> dict[str, Any]:
    """Return the pattern scores on text and on random tokens as JSON, with means and errors."""
    return {
        "text": {
            "sequences": scores.windows,
            "tokens": scores.window_tokens,
            "heads": _heads(scores, "text"),
        },
        "random": {
            "sequences": scores.copies,
            "copy_tokens": scores.copy_tokens,
            "seed": scores.seed,
            "first_copy_loss": asdict(scores.first_copy),
            "second_copy_loss": asdict(scores.second_copy),
            "heads": _heads(scores, "random"),
        },
    }


def _heads(scores: ModelScores, probe: str) -> list[dict[str, Any]]:
    measured = scores.of(probe)
    shape = measured[0].heads if measured else ()
    return [
        {
            "layer": layer,
            "head": head,
            "scores": {one.name: one.heads[layer][head].mean for one in measured},
            "errors": {one.name: one.heads[layer][head].error for one in measured},
            "even": {one.name: one.even for one in measured},
        }
        for layer, row in enumerate(shape)
        for head in range(len(row))
    ]


def _point(point: CurvePoint) -> dict[str, Any]:
    return dict(zip(_CURVE, astuple(point), strict=True))


def train_rows(result: TrainReport) -> Iterator[tuple[object, ...]]:
    """Yield the CSV header, then one row per point of the curve; losses are nats per token.

    The columns are the fields of ``CurvePoint``.
    """
    yield _CURVE
    yield from map(astuple, result.points)
