"""The object that ``attnviz train --json`` prints and ``--save FILE.json`` writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attnviz.draw.model_facts import model_facts
from attnviz.train.records import CorpusFacts, ModelScores, TrainedModel

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["SCHEMA", "train_document", "write_train_json"]

SCHEMA = "attnviz.train/1"


def train_document(result: TrainedModel) -> dict[str, Any]:
    """The run as JSON values; losses are nats per token."""
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
        "train": _text(result.train),
        "valid": _text(result.valid),
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
        "valid_windows": result.valid_windows,
        "curve_windows": result.curve_windows,
        "scores": _scores(result.scores),
        "curve": [asdict(point) for point in result.points],
    }


def write_train_json(result: TrainedModel, stream: SupportsWrite[str]) -> None:
    """Write ``train_document``, ASCII only: nothing in a name may reach a terminal as a control."""
    stream.write(json.dumps(train_document(result), indent=1, allow_nan=False) + "\n")


def _scores(scores: ModelScores) -> dict[str, Any]:
    """By what they were measured on; of each head the mean over sequences and its error."""
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
    measured = [scored for scored in scores.scores if scored.probe == probe]
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


def _text(text: CorpusFacts) -> dict[str, Any]:
    return {**asdict(text), "files": list(text.files)}
