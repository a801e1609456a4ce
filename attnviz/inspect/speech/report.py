"""The report of ``heads`` on a sound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, npz_file
from attnviz.records import Floats, Kind, ModelInfo

if TYPE_CHECKING:
    from attnviz.draw.files import Writer


@dataclass(frozen=True, eq=False)
class HeadOnSound:
    """Where one head looks in a sound.

    layer, head: from 0. rows: (row, frame) the weights of each word, or of each part of the sound,
        on the frames that are heard; the mean of its tokens or frames.
    padding: the share of the weight that lies behind the sound. order: Spearman's correlation of
    the words and of the times of their peaks; shuffled: the same with the words in another order.
    Both are NaN for the encoder, and for few words.
    """

    layer: int
    head: int
    rows: Floats
    padding: float
    order: float = math.nan
    shuffled: float = math.nan


@dataclass(frozen=True, repr=False)
class SpeechReport(Report):
    """Where each head of a speech model looks in a sound.

    model: its facts. name, seconds: of the sound. kind: of attention. words: the names of the rows:
        words, or seconds for the encoder. heads: all, or the chosen ones (``selected``).
    frame: the seconds of a frame. loudness: (frame,) of the sound, its largest 1. transcribed:
        whether the model wrote the words. chance: the correlation that one head of all passes by
        chance in 5% of all orders; NaN if the order was not measured. notes: on how it was read.
    """

    model: ModelInfo
    name: str
    seconds: float
    kind: Kind
    words: tuple[str, ...]
    heads: tuple[HeadOnSound, ...]
    frame: float
    loudness: Floats
    transcribed: bool
    chance: float
    notes: tuple[str, ...] = ()
    index_base: int = 0
    selected: bool = False

    command = "heads"
    lists = ("heads",)

    def head_name(self, head: HeadOnSound) -> str:
        """Return the name of a head, such as ``L2H5``."""
        return f"L{head.layer + self.index_base}H{head.head + self.index_base}"

    def follows(self, head: HeadOnSound) -> bool:
        """Return whether a head's peaks follow the order of the words, and no other order."""
        return head.order > self.chance >= head.shuffled

    @property
    def padding(self) -> float:
        """Return the share of all weight that lies behind the sound."""
        return float(np.mean([head.padding for head in self.heads]))

    def peaks(self, head: HeadOnSound) -> list[float]:
        """Return the second of the largest weight of each row."""
        return (head.rows.argmax(-1) * self.frame).round(6).tolist()

    def data(self) -> dict[str, Any]:
        return {
            "schema": "attnviz.speech/1",
            "model": model_facts(self.model),
            "sound": {"name": self.name, "seconds": self.seconds},
            **fields_of(
                self, ("kind", "words", "transcribed", "frame", "chance", "padding", "notes")
            ),
            "heads": [
                {
                    **fields_of(head, ("layer", "head", "padding", "order", "shuffled")),
                    "follows": self.follows(head),
                    "peaks": self.peaks(head),
                }
                for head in self.heads
            ],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each head and word: the second of its peak."""
        yield ("layer", "head", "word", "peak_second", "peak_weight", "on_sound")
        for head in self.heads:
            on_sound = head.rows.sum(-1, dtype=np.float64).tolist()
            for at, second in enumerate(self.peaks(head)):
                weight = float(head.rows[at].max())
                yield head.layer, head.head, self.words[at], second, weight, on_sound[at]

    def arrays(self) -> Mapping[str, Writer]:
        """Return the function that writes all maps (head, row, frame) to a file of arrays."""
        return {
            ".npz": npz_file(
                maps=np.stack([head.rows for head in self.heads]),
                heads=np.array([(head.layer, head.head) for head in self.heads]),
                words=np.array(self.words),
                loudness=self.loudness,
            )
        }
