"""The report of ``attnviz why``: each prompt's logit as a sum, and the mean effect of each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report
from attnviz.engine.attribution.parts import Attribution, HeadKey, PartKind
from attnviz.errors import UnsupportedError
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero, intervals
from attnviz.records import HeadLabel, Input, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document
    from attnviz.draw.files import Writer
    from attnviz.inspect.why.inputs import InputEffects

_SIGNIFICANT = 0.05

LEAST_CONTROLS = 19
"""The fewest controls of one prompt with which a p of 1/20 can be reached."""


class SourceToken(NamedTuple):
    """The token that contributes most to a logit through one head.

    place: its index among the keys. contribution: how much it adds to the logit.
    """

    place: int
    contribution: float


class HeadEffect(NamedTuple):
    """The contribution of one head to the answer's logit, mean over the prompts.

    head: (kind of attention, layer, head). value: the mean.
    interval: 95% confidence interval, None for fewer than five prompts. base: the base rate, with
        another token in place of the answer earlier in the prompt; None if the answer is not there.
    p: of the difference to the base rate, adjusted for all heads; None if not tested.
    """

    head: HeadKey
    value: float
    interval: tuple[float, float] | None
    base: float | None
    p: float | None

    @property
    def clear(self) -> bool:
        """Return whether the effect differs significantly from its base rate."""
        return self.p is not None and self.p <= _SIGNIFICANT

    @property
    def unclear(self) -> bool:
        """Return whether the 95% interval includes zero; False without an interval."""
        return includes_zero(self.interval)


@dataclass(frozen=True)
class ExplainedPrompt:
    """One prompt, and one of its logits as a sum of contributions from the parts of the model.

    text: as given. given: its tokens, with those of a decoder. found: the sum.
    words: the texts of the token ids in ``found``.
    asked: whether the user named the answer; else it is the model's own top prediction.
    base: (control prompt, head), the contributions to the same answer with another token in place
        of the answer earlier in the prompt, heads in the order of ``found.heads``; (0, head)
        without controls.
    """

    text: str
    given: Input
    found: Attribution
    words: Mapping[int, str]
    asked: bool
    base: NDArray[np.floating]

    def __post_init__(self) -> None:
        if self.base.ndim != 2 or self.base.shape[1] != len(self.found.heads):
            raise ValueError(f"expected (control, head), got {self.base.shape}")

    @property
    def answer(self) -> str:
        return self.words[self.found.answer]

    @property
    def foil(self) -> str | None:
        return None if self.found.foil is None else self.words[self.found.foil]

    @property
    def predicts_answer(self) -> bool:
        """Return whether the answer is the model's top prediction."""
        return self.found.top[0][0] == self.found.answer

    def keys(self, head: HeadKey) -> Tokens:
        """Return the tokens that a head attends to.

        head: (kind of attention, layer, head); only the kind matters.
        """
        return self.given.keys(head[0])

    def source(self, head: HeadKey) -> SourceToken | None:
        """Return the token that contributes most to the logit through a head, or None if not known.

        head: (kind of attention, layer, head).
        """
        row = self.found.rows.get(head)
        if row is None or not len(row):
            return None
        place = int(np.argmax(row if self.found.heads[head] >= 0 else -row))
        return SourceToken(place, float(row[place]))


@dataclass(frozen=True, repr=False)
class WhyReport(Report, Provenance):
    """The report of ``attnviz why``: the contributions of all parts to the logits of some prompts.

    model: the model that ran. prompts: at least one; if their parts do not sum to the logit, only
        one. shown: the heads whose contribution maps were requested. kinds: the attention whose
        heads are shown.
    labels: of heads that have one. inputs: what the prediction loses without each word; None if not
        requested.
    top: the number of heads in the ranking.
    """

    model: ModelInfo
    prompts: tuple[ExplainedPrompt, ...]
    shown: tuple[HeadKey, ...] = ()
    kinds: tuple[str, ...] = ("self",)
    labels: Mapping[HeadKey, HeadLabel] = field(default_factory=dict)
    inputs: InputEffects | None = None
    top: int = 8

    command = "why"
    lists = ("parts",)

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.why.data import why_data

        return why_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.why.data import why_rows

        return why_rows(self)

    def arrays(self) -> Mapping[str, Writer]:
        from attnviz.inspect.why.data import write_why_npz

        return {".npz": partial(write_why_npz, self)}

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.why.document import why_document

        return why_document(self).shown(explain=explain, hints=hints)

    def require_tally(self) -> None:
        """Raise UnsupportedError if the parts do not sum to the model's own logit."""
        if not self.tallies:
            raise UnsupportedError(
                f"the parts of {self.model.name!r} do not sum to its logit (apart by "
                f"{self.apart:.2g}): its contributions are not known; attnviz ablate measures "
                "heads in another way"
            )

    @property
    def first(self) -> ExplainedPrompt:
        return self.prompts[0]

    @property
    def many(self) -> bool:
        return len(self.prompts) > 1

    @property
    def tallies(self) -> bool:
        """Return whether every sum of parts equals the model's own logit up to rounding.

        If not, the contributions are meaningless, and there is no ranking.
        """
        return all(each.found.tallies for each in self.prompts)

    @property
    def logit(self) -> float:
        """Return the logit that is explained, mean over the prompts."""
        return self._mean([each.found.decomposed for each in self.prompts])

    @property
    def sum(self) -> float:
        """Return the sum of all parts in logits, mean over the prompts."""
        return self._mean([each.found.sum for each in self.prompts])

    @property
    def apart(self) -> float:
        """Return the largest difference, over prompts, between the sum of parts and the logit."""
        return max(abs(each.found.sum - each.found.decomposed) for each in self.prompts)

    def part(self, kind: PartKind, layer: int | None = None) -> float:
        """Return the contribution in logits of all parts of a kind, mean over the prompts.

        kind: such as heads or feed-forward blocks. layer: only the parts in this layer; None for
        all.
        """
        return self._mean(
            [
                fsum(
                    part.contribution
                    for part in each.found.parts
                    if part.kind == kind and layer in (None, part.layer)
                )
                for each in self.prompts
            ]
        )

    @property
    def layers(self) -> list[int]:
        """Return the indices of the layers that have a part in the sum."""
        return sorted({part.layer for part in self.first.found.parts if part.layer is not None})

    @cached_property
    def effects(self) -> tuple[HeadEffect, ...]:
        """Return the contribution of every head, in the order of the parts."""
        heads = list(self.first.found.heads)
        values = np.array([list(each.found.heads.values()) for each in self.prompts])
        bases = [each.base.mean(0) for each in self.prompts if len(each.base)]
        base: list[float | None] = np.mean(bases, 0).tolist() if bases else [None] * len(heads)
        means = values.mean(0).tolist()
        ends = intervals(values, self.seed)
        found = zip(heads, means, ends, base, self._p(), strict=True)
        return tuple(HeadEffect(*each) for each in found if each[0][0] in self.kinds)

    @property
    def ordered(self) -> list[HeadEffect]:
        """Return the contributions of heads, the largest absolute value first."""
        return sorted(self.effects, key=lambda effect: -abs(effect.value))

    @property
    def best(self) -> HeadEffect | None:
        """Return the largest contribution among the heads that the user chose (by default all).

        A head whose effect differs significantly from its base rate is preferred. None without
        heads.
        """
        asked = [one for one in self.ordered if one.head in self.shown] or self.ordered
        return next((one for one in asked if one.clear), asked[0] if asked else None)

    @property
    def controlled(self) -> list[ExplainedPrompt]:
        """Return the prompts that have a base rate, because they contain the answer."""
        return [each for each in self.prompts if len(each.base)]

    @property
    def tested(self) -> bool:
        """Return whether there are enough control prompts to test a head against its base rate."""
        found = self.controlled
        if not found or self.model.weights == "random":
            return False
        return len(found) >= LEAST_TEXTS if self.many else len(found[0].base) >= LEAST_CONTROLS

    def _p(self) -> Sequence[float | None]:
        if not self.tested:
            return [None] * len(self.first.found.heads)
        found = self.controlled
        values = np.array([list(each.found.heads.values()) for each in found])
        if not self.many:
            return [float(p) for p in control_p(values[0], found[0].base)]
        apart = values - np.array([each.base.mean(0) for each in found])
        return [float(p) for p in adjusted_p(apart, self.seed)]

    def ranking(self, top: int | None = None) -> tuple[list[HeadEffect], list[HeadEffect]]:
        """Return the heads with the largest contributions for the answer, and those against it.

        top: how many are for it, half as many against it; None for the number that was requested.
        """
        top = self.top if top is None else top
        order = sorted(self.effects, key=lambda effect: -effect.value)
        matter = [effect for effect in order if effect.value > 0]
        against = [effect for effect in reversed(order) if effect.value < 0]
        return matter[:top], against[: (top + 1) // 2]

    def name(self, head: HeadKey, index_base: int | None = None) -> str:
        """Return a head's name, ``L2H5``; with two kinds of attention ``L2H5 cross``.

        head: (kind of attention, layer, head). index_base: the first number, 0 or 1; None for the
        report's own.
        """
        base = self.index_base if index_base is None else index_base
        kind, layer, number = head
        return f"L{layer + base}H{number + base}" + (f" {kind}" if len(self.kinds) > 1 else "")

    def _mean(self, values: Sequence[float]) -> float:
        return fsum(values) / len(values)


def control_p(values: NDArray[np.floating], base: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the adjusted p-values (head,) of contributions, given those in control prompts.

    values: (head,), the contributions. base: (control, head).
    Each p is the share of the controls, with the values counted as one of them, whose largest
    deviation of any head is at least that of this head. Deviations of a control are from the mean
    of the others, those of the values from the mean of all. With 20 controls the least p is 1/21
    (Westfall & Young 1993, single step).
    """
    controls = len(base)
    mean = base.mean(0)
    reached = np.abs(base - mean).max(1) * controls / (controls - 1)
    further = (reached[:, None] >= np.abs(values - mean)).sum(0)
    found: NDArray[np.float64] = (1 + further) / (controls + 1)
    return found
