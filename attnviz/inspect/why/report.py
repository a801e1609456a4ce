"""The report of ``attnviz why``: each prompt's logit as a sum, and the mean effect of each head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import input_facts, known_label_facts, model_facts, npz_file, table_of
from attnviz.engine.attribution.parts import Attribution, NeuronReading, Part, PartKind
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero, intervals
from attnviz.prompts.naming import not_summed
from attnviz.records import HeadKey, HeadLabel, Input, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:  # a screen starts without what writes files
    from attnviz.draw.files import Writer

_SIGNIFICANT = 0.05

FIRES = 3
"""The tokens that are named for each neuron: those at which it is most active."""

LEAST_CONTROLS = 19
"""The fewest controls of one prompt with which a p of 1/20 can be reached."""


@dataclass(frozen=True)
class InputEffects:
    """The change of a prediction without each token of its text, in nats or logits.

    quantity: ``log_probability`` of the answer, or ``logit_difference`` of answer and foil.
    own: that quantity over the text as it is. draws: how many other words replace each token.
    replaced, errors: (token,), ``own`` minus the mean with another word there, and its standard
        error; NaN for special tokens, and for the masked token of a masked model.
    hidden: (token,), ``own`` minus the quantity if no other token attends to this one.
    steps, gap: of integrated gradients, whose shares are ``replaced`` then, without errors and
        ``hidden``; 0 and None where the words were replaced.
    """

    quantity: str
    own: float
    draws: int
    replaced: NDArray[np.float64]
    errors: NDArray[np.float64]
    hidden: NDArray[np.float64]
    steps: int = 0
    gap: float | None = None
    converged: bool = True

    def data(self) -> dict[str, Any]:
        """Return the JSON object ``inputs`` of ``attnviz.why/1``."""
        about: dict[str, Any] = {"draws": self.draws}
        columns = {"replaced": self.replaced, "se": self.errors, "hidden": self.hidden}
        if self.gap is not None:
            about = {"baseline": "mean row", "steps": self.steps, "gap": self.gap}
            about["converged"] = self.converged
            columns = {"integrated": self.replaced}
        tokens = [
            {"index": at, **{name: values[at] for name, values in columns.items()}}
            for at in range(len(self.replaced))
        ]
        return {"quantity": self.quantity, "value": self.own, **about, "tokens": tokens}

    @property
    def ordered(self) -> list[int]:
        """Return the indices of the measured tokens, the largest effect first."""
        tried = np.flatnonzero(np.isfinite(self.replaced)).tolist()
        return sorted(tried, key=lambda at: -abs(self.replaced[at]))


class SourceToken(NamedTuple):
    """The index of the key that contributes most to a logit through one head, and how much."""

    key: int
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
        """Return whether the 95% CI includes zero; False without an interval."""
        return includes_zero(self.interval)


@dataclass(frozen=True)
class ExplainedPrompt:
    """One prompt, and one of its logits as a sum of contributions from the parts of the model.

    text: as given. given: its tokens, with those of a decoder. attribution: the sum.
    words: the texts of the token ids in it.
    asked: whether the user named the answer; else it is the model's own top prediction.
    rest: what the model goes on to write of the word that its top prediction begins; None if that
        is not known.
    base: (control prompt, head), the contributions to the same answer with another token in place
        of the answer earlier in the prompt, heads in the order of ``attribution.heads``; (0, head)
        without controls.
    """

    text: str
    given: Input
    attribution: Attribution
    words: Mapping[int, str]
    asked: bool
    base: NDArray[np.floating]
    rest: str | None = None

    def __post_init__(self) -> None:
        if self.base.ndim != 2 or self.base.shape[1] != len(self.attribution.heads):
            raise ValueError(f"expected (control, head), got {self.base.shape}")

    @property
    def answer(self) -> str:
        return self.words[self.attribution.answer]

    @property
    def foil(self) -> str | None:
        foil = self.attribution.foil
        return None if foil is None else self.words[foil]

    @property
    def predicts_answer(self) -> bool:
        """Return whether the answer is the model's top prediction."""
        return self.attribution.top[0][0] == self.attribution.answer

    def keys(self, head: HeadKey) -> Tokens:
        """Return the tokens that a head, (kind, layer, head), attends to; only the kind counts."""
        return self.given.keys(head[0])

    def source(self, head: HeadKey) -> SourceToken | None:
        """Return the token that contributes most to the logit through a head; None: unknown."""
        row = self.attribution.rows.get(head)
        if row is None or not len(row):
            return None
        key = int(np.argmax(row if self.attribution.heads[head] >= 0 else -row))
        return SourceToken(key, float(row[key]))


@dataclass(frozen=True, repr=False)
class WhyReport(Report, Provenance):
    """The report of ``attnviz why``: the contributions of all parts to the logits of some prompts.

    model: the model that ran. prompts: at least one; if their parts do not sum to the logit, only
        one. shown: the heads whose contribution maps were requested. kinds: the attention whose
        heads are shown.
    labels: of heads that have one. inputs: what the prediction loses without each word; None if not
        requested. neurons: those of one feed-forward block; None if not requested.
    top: the number of heads in the ranking.
    """

    model: ModelInfo
    prompts: tuple[ExplainedPrompt, ...]
    shown: tuple[HeadKey, ...] = ()
    kinds: tuple[str, ...] = ("self",)
    labels: Mapping[HeadKey, HeadLabel] = field(default_factory=dict)
    inputs: InputEffects | None = None
    neurons: NeuronReading | None = None
    top: int = 8

    command = "why"
    lists = ("parts",)

    def data(self) -> dict[str, Any]:
        """Return the whole report as one JSON object; for many prompts the parts are means.

        Indices start at 0 whatever the names on the screen show. If the parts do not sum to the
        logit, they are left out.
        """
        first, parts = self.first, self.first.attribution.parts if self.tallies else ()
        effects = {effect.head: effect for effect in self.effects} if self.tallies else {}
        prompts = [_prompt(prompt) for prompt in self.prompts]
        written = first.attribution.maps
        maps = [{**_head(head), "contributions": written[head]} for head in self.shown]
        return {
            "schema": "attnviz.why/1",
            "model": model_facts(self.model),
            "prompt": first.text,
            "source": self.source or None,
            **_question(first),
            **_sums(self.prompts),
            "tolerance": max(prompt.attribution.tolerance for prompt in self.prompts),
            **fields_of(self, ("tallies", "seed", "notes")),
            "controls": len(first.base),
            **({} if self.inputs is None else {"inputs": self.inputs.data()}),
            **({} if self.neurons is None else {"neurons": _neurons(self.neurons, self.top)}),
            "parts": [_part(self, part, effects) for part in parts],
            **({"prompts": prompts} if self.many else {}),
            **({"maps": maps} if maps else {}),
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each part of the sum."""
        names = "kind attention layer head contribution ci_low ci_high base_rate stands_out label p"
        parts = self.data()["parts"]
        labels = ((part.get("label") or {}).get("name") for part in parts)
        entries = (part | {"label": label} for part, label in zip(parts, labels, strict=True))
        return table_of(names.split(), entries)

    def arrays(self) -> Mapping[str, Writer]:
        """Return a function that writes contributions (prompt, head), head names, rows and maps.

        The rows and maps, by source token, are those of the first prompt.
        """
        attributions = [prompt.attribution for prompt in self.prompts]
        first, based = attributions[0], replace(self, index_base=0)
        archive = npz_file(
            heads=[based.name(head) for head in first.heads],
            contributions=[list(attribution.heads.values()) for attribution in attributions],
            logits=[attribution.decomposed for attribution in attributions],
            **{f"by_token_{based.name(head)}": row for head, row in first.rows.items()},
            **{f"map_{based.name(head)}": weights for head, weights in first.maps.items()},
        )
        return {".npz": archive}

    def require_tally(self) -> None:
        """Raise UnsupportedError if the parts do not sum to the model's own logit."""
        if not self.tallies:
            raise not_summed(self.model, "its logit", self.apart, "its contributions are")

    @property
    def first(self) -> ExplainedPrompt:
        return self.prompts[0]

    @property
    def many(self) -> bool:
        return len(self.prompts) > 1

    @property
    def tallies(self) -> bool:
        """Return whether each sum of parts is the model's own logit; if not, nothing is ranked."""
        return all(prompt.attribution.tallies for prompt in self.prompts)

    @property
    def logit(self) -> float:
        """Return the logit that is explained, mean over the prompts."""
        return self._mean(lambda attribution: attribution.decomposed)

    @property
    def sum(self) -> float:
        """Return the sum of all parts in logits, mean over the prompts."""
        return self._mean(lambda attribution: attribution.sum)

    @property
    def apart(self) -> float:
        """Return the largest difference, over prompts, between the sum of parts and the logit."""
        attributions = [prompt.attribution for prompt in self.prompts]
        return max(abs(attribution.sum - attribution.decomposed) for attribution in attributions)

    def part(self, kind: PartKind, layer: int | None = None) -> float:
        """Return what parts of a kind add in logits, in all layers or in one; the prompts' mean."""
        return self._mean(
            lambda attribution: fsum(
                part.contribution
                for part in attribution.parts
                if part.kind == kind and layer in (None, part.layer)
            )
        )

    @property
    def layers(self) -> list[int]:
        """Return the indices of the layers that have a part in the sum."""
        parts = self.first.attribution.parts
        return sorted({part.layer for part in parts if part.layer is not None})

    @cached_property
    def effects(self) -> tuple[HeadEffect, ...]:
        """Return the contribution of every head, in the order of the parts."""
        heads, values = list(self.first.attribution.heads), _values(self.prompts)
        base = p = list[float | None]([None] * len(heads))
        if prompts := self.controlled:
            bases = np.array([prompt.base.mean(0) for prompt in prompts])
            base = bases.mean(0).tolist()
            if self.tested and self.many:
                p = adjusted_p(_values(prompts) - bases, self.seed).tolist()
            elif self.tested:
                p = control_p(values[0], prompts[0].base).tolist()
        means, ends = values.mean(0).tolist(), intervals(values, self.seed)
        columns = zip(heads, means, ends, base, p, strict=True)
        return tuple(HeadEffect(*row) for row in columns if row[0][0] in self.kinds)

    @property
    def ordered(self) -> list[HeadEffect]:
        """Return the contributions of heads, the largest absolute value first."""
        return sorted(self.effects, key=lambda effect: -abs(effect.value))

    @property
    def best(self) -> HeadEffect | None:
        """Return the largest contribution of the chosen heads, a clear one first; None: no head."""
        asked = [effect for effect in self.ordered if effect.head in self.shown] or self.ordered
        return next((effect for effect in asked if effect.clear), asked[0] if asked else None)

    @property
    def controlled(self) -> list[ExplainedPrompt]:
        """Return the prompts that have a base rate, because they contain the answer."""
        return [prompt for prompt in self.prompts if len(prompt.base)]

    @property
    def tested(self) -> bool:
        """Return whether there are enough control prompts to test a head against its base rate."""
        prompts = self.controlled
        if not prompts or self.model.weights == "random":
            return False
        return len(prompts) >= LEAST_TEXTS if self.many else len(prompts[0].base) >= LEAST_CONTROLS

    @property
    def ranking(self) -> tuple[list[HeadEffect], list[HeadEffect]]:
        """Return the ``top`` heads that raise the answer most, and half as many that lower it."""
        order = sorted(self.effects, key=lambda effect: -effect.value)
        helping = [effect for effect in order if effect.value > 0]
        against = [effect for effect in reversed(order) if effect.value < 0]
        return helping[: self.top], against[: (self.top + 1) // 2]

    def name(self, head: HeadKey) -> str:
        """Return a head's name, ``L2H5``; with two kinds of attention ``L2H5 cross``."""
        return self.head_name(head[1:]) + f" {head[0]}" * (len(self.kinds) > 1)

    def _mean(self, value: Callable[[Attribution], float]) -> float:
        return fsum(value(prompt.attribution) for prompt in self.prompts) / len(self.prompts)


def _values(prompts: Sequence[ExplainedPrompt]) -> NDArray[np.float64]:
    return np.array([list(prompt.attribution.heads.values()) for prompt in prompts])


def control_p(values: NDArray[np.floating], base: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the adjusted p-values (head,) of contributions, given those in control prompts.

    values: (head,), the contributions. base: (control, head). Each p is the share of the controls,
    with the values counted as one of them, whose largest deviation of any head is at least that of
    this head. Deviations of a control are from the mean of the others, those of the values from the
    mean of all. With 20 controls the least p is 1/21 (Westfall & Young 1993, single step).
    """
    controls = len(base)
    mean = base.mean(0)
    reached = np.abs(base - mean).max(1) * controls / (controls - 1)
    further = (reached[:, None] >= np.abs(values - mean)).sum(0)
    return (1 + further) / (controls + 1)


# JSON ----------------------------------------------------------------------------------------


def _question(prompt: ExplainedPrompt) -> dict[str, Any]:
    attribution, words = prompt.attribution, prompt.words
    foil, span = attribution.foil, attribution.span
    return {
        **input_facts(prompt.given),
        "position": attribution.position,
        "answer": {"id": attribution.answer, "token": prompt.answer},
        **({"labels": attribution.labels} if attribution.labels else {}),
        **({} if span is None else {"span": span._asdict()}),
        **({"several_labels": True} if attribution.several else {}),
        "foil": None if foil is None else {"id": foil, "token": prompt.foil},
        "top": [{"id": id, "token": words[id], "probability": p} for id, p in attribution.top],
        "rest_of_word": prompt.rest,
    }


def _sums(prompts: Sequence[ExplainedPrompt]) -> dict[str, Any]:
    """Return the logit, also before a softcap, and the sum of the parts: means over the prompts."""
    attributions = [prompt.attribution for prompt in prompts]
    uncapped = [logit.uncapped for logit in attributions if logit.uncapped is not None]
    return {
        "logit": fsum(attribution.logit for attribution in attributions) / len(attributions),
        "uncapped": fsum(uncapped) / len(uncapped) if uncapped else None,
        "softcap": attributions[0].softcap,
        "sum": fsum(attribution.sum for attribution in attributions) / len(attributions),
    }


def _prompt(prompt: ExplainedPrompt) -> dict[str, Any]:
    heads = prompt.attribution.heads.items()
    return {
        "prompt": prompt.text,
        **_question(prompt),
        **_sums([prompt]),
        "controls": len(prompt.base),
        "heads": [{**_head(head), "contribution": value} for head, value in heads],
    }


def _neurons(block: NeuronReading, top: int) -> dict[str, Any]:
    at, active, up = block.position, block.active, block.up
    listed = [
        {
            "neuron": neuron,
            "contribution": float(block.written[neuron]),
            "value": float(block.values[at, neuron]),
            "active": None if active is None else float(active[at, neuron]),
            "up": None if up is None else float(up[at, neuron]),
            "fires": [{"index": token, "value": own} for token, own in block.fires(neuron, FIRES)],
        }
        for neuron in block.order[:top].tolist()
    ]
    shares = {
        name: {"here": share(), "text": share(everywhere=True)}
        for name, share in (("off", block.off), ("nearly_off", block.nearly_off))
    }
    return {
        **fields_of(block, ("layer", "activation")),
        "gated": up is not None,
        "count": len(block.written),
        "contribution": block.part,
        "sum": float(block.written.sum()),
        **fields_of(block, ("bias", "half")),
        **shares,
        "top": listed,
    }


def _head(head: HeadKey) -> dict[str, Any]:
    return dict(zip(("attention", "layer", "head"), head, strict=True))


def _part(report: WhyReport, part: Part, effects: Mapping[HeadKey, HeadEffect]) -> dict[str, Any]:
    """Return a summand of the logit; of a head in ``effects`` also its sources, label and base."""
    entry = fields_of(part, ("kind", "layer", "head"))
    if part.layer is None:
        same = [
            other.contribution
            for prompt in report.prompts
            for other in prompt.attribution.parts
            if (other.kind, other.layer) == (part.kind, None)
        ]
        return {**entry, "contribution": sum(same) / len(report.prompts)}
    if part.attention is None or part.head is None:
        return {**entry, "contribution": report.part(part.kind, part.layer)}
    head = (part.attention, part.layer, part.head)
    effect, label = effects.get(head), report.labels.get(head)
    entry["attention"] = part.attention
    entry["contribution"] = part.contribution if effect is None else effect.value
    row = report.first.attribution.rows.get(head)
    if not report.many and row is not None:
        entry["by_token"] = row
    if effect is not None and report.many:
        entry["ci_low"], entry["ci_high"] = effect.interval or (None, None)
    if effect is not None:
        entry |= {"base_rate": effect.base, "stands_out": effect.clear, "p": effect.p}
    return entry if label is None else {**entry, "label": known_label_facts(label)}
