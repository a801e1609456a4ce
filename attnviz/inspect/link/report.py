"""The report of ``attnviz link``: a key's lead as a sum, with its base rate and exact removals.

The *lead* of a key is its attention score less the mean score of the other keys that the query
sees, in nats: ln of its weight over their geometric mean. A *part* is whatever wrote into the
residual stream in front of the head: an embedding, an earlier head, a feed-forward block, biases.
What a part wrote was read on two *sides*, at the query's token and at the keys'; the parts of each
side add up to the lead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import fsum, isnan
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.report import Report, fields_of
from attnviz.draw.values import model_facts, npz_file, table_of, token_facts
from attnviz.engine.attribution.scores import (
    SIDES,
    AskedLink,
    ReadSide,
    SideLeads,
    SplitScores,
    StreamPart,
)
from attnviz.measures.bootstrap import LEAST_TEXTS, adjusted_p, includes_zero, intervals
from attnviz.measures.telling import Why
from attnviz.measures.word_links import WordLink
from attnviz.prompts.naming import not_summed
from attnviz.records import HeadLabel, Input, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:  # a screen starts without what writes files
    from attnviz.draw.files import Writer

_SIGNIFICANT = 0.05
_ROUNDING = 1e-5  # the share of a part by which a control that is equal may be smaller in float32


class LinkChoice(NamedTuple):
    """A link that was chosen for the user, with the reason.

    pairs: how many pairs of words were tested for it; None if the text is too long to test each.
    link: the link between words; None if the strongest link from the last token was taken instead.
    why: the reason, one of those in ``attnviz.measures.telling``.
    """

    pairs: int | None
    link: WordLink | None = None
    why: Why = "nearest"

    @property
    def is_chance(self) -> bool:
        """Return whether the link was tested, and does not beat chance."""
        link = self.link if self.why == "nearest" else None
        return link is not None and not isnan(link.chance) and not link.beats_chance


class LinkPart(NamedTuple):
    """The amount that one part of the model adds to a key's lead, mean over the prompts, in nats.

    side: whether it was written into the query or the key. part: the writer; None for a bias by
        distance, which has no writer.
    base: the mean over the control prompts, None without any. reached: how many controls of a
        single prompt have at least as large a value. without: the exact weight of the key if this
        head read its query, or its keys, without the part; None if unknown, or for many prompts.
    source: the token from which a head took most of it; None for other parts.
    interval, p: of many prompts: the 95% confidence interval; p of the difference to the base,
        adjusted for all parts.
    """

    side: ReadSide
    part: StreamPart | None
    lead: float
    base: float | None = None
    reached: int | None = None
    without: float | None = None
    source: int | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None

    @property
    def stands_out(self) -> bool:
        """Return whether the part differs significantly from its base rate."""
        return self.p is not None and self.p <= _SIGNIFICANT

    @property
    def unclear(self) -> bool:
        """Return whether the 95% CI includes zero; False without an interval."""
        return includes_zero(self.interval)


def part_leads(
    split: SplitScores, asked: AskedLink, sides: SideLeads | None = None
) -> NDArray[np.float64]:
    """Return how much each part raises the asked score over others: query, key, distance (part,).

    sides: leads of query and key parts from another text with equal distances; None for this one's.
    """
    towards = split.coefficients(asked.key, asked.than)
    matrix, distance = split.matrix(towards), split.by_distance(towards)
    last = [] if distance is None else [distance]
    return np.concatenate([*(sides or (matrix.sum(1), matrix.sum(0))), last])


@dataclass(frozen=True)
class LinkedPrompt:
    """One prompt and one link of it: a head's attention from one token to another.

    text: as given. given: its tokens, with those of a decoder. asked: the link. split: its scores
        as sums.
    base: (control prompt, part), what ``part_leads`` gives for each control.
    """

    text: str
    given: Input
    asked: AskedLink
    split: SplitScores
    base: NDArray[np.floating]

    @property
    def tokens(self) -> Tokens:
        """Return the tokens that the head can attend to."""
        return self.given.keys(self.asked.head[0])

    @property
    def weight(self) -> float:
        """Return the model's own attention weight on the key."""
        return float(self.split.weights[self.asked.key])

    @cached_property
    def towards(self) -> NDArray[np.float64]:
        return self.split.coefficients(self.asked.key, self.asked.than)

    @property
    def sum(self) -> float:
        """Return the sum of all parts in nats: the lead before a softcap."""
        distance = self.split.by_distance(self.towards) or 0.0
        return self.split.lead(self.split.scores, self.towards) + distance

    @property
    def capped(self) -> float:
        """Return the sum after the model's softcap; without a softcap it is ``sum``."""
        return self.split.lead(self.split.limited(self.split.scores), self.towards)

    @property
    def lead(self) -> float:
        """Return the lead in nats that the model's own weights give."""
        return self.split.lead(self.split.own_logs, self.towards)


@dataclass(frozen=True, repr=False)
class LinkReport(Report, Provenance):
    """The report of ``attnviz link``: why a head attends from one token to another.

    model: the model that ran. prompts: at least one; if their parts do not sum to the lead, only
    one. label: what the head is known to do, or None. chosen: why this link was chosen; None if a
    person named a part of it, and for many prompts. labels: of each (layer, head) that has one.
    """

    model: ModelInfo
    prompts: tuple[LinkedPrompt, ...]
    label: HeadLabel | None = None
    labels: Mapping[tuple[int, int], HeadLabel] = field(default_factory=dict)
    chosen: LinkChoice | None = None

    command = "link"
    lists = ("parts", "pairs")

    def data(self) -> dict[str, Any]:
        """Return the whole report as one JSON object; for many prompts the parts are means."""
        first, many = self.first, self.many
        prompts = [{"prompt": prompt.text, **_link(prompt)} for prompt in self.prompts]
        return {
            "schema": "attnviz.link/1",
            "model": model_facts(self.model),
            "prompt": first.text,
            "source": self.source or None,
            "chosen": None if self.chosen is None else _choice(self.chosen),
            **_link(first),
            "softcap": first.split.softcap,
            "tolerance": max(prompt.split.tolerance for prompt in self.prompts),
            **fields_of(self, ("tallies", "seed", "notes", "controls")),
            **({"prompts": prompts} if many else {}),
            "parts": [_part(self, part) for part in self.parts] if self.tallies else [],
            "pairs": _pairs(first) if self.tallies and not many else [],
        }

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the CSV header, then a row for each part; for many prompts with interval and p."""
        names = "side kind layer head lead ci_low ci_high base_rate reached p stands_out"
        return table_of((*names.split(), "weight_without"), self.data()["parts"])

    def arrays(self) -> Mapping[str, Writer]:
        """Return a function that writes scores, leads (prompt, query part, key part) and names."""
        archive = npz_file(
            names=[self.name(part) for part in self.first.split.parts],
            score_parts=[_scores(prompt) for prompt in self.prompts],
            lead_parts=[prompt.split.matrix(prompt.towards) for prompt in self.prompts],
            weights=[prompt.weight for prompt in self.prompts],
        )
        return {".npz": archive}

    def require_tally(self) -> None:
        """Raise UnsupportedError if the parts do not sum to the scores in the model's weights."""
        if not self.tallies:
            to, gap = f"the scores of {self.head}", self.first.split.gap
            raise not_summed(self.model, to, gap, "why it looks there is")

    @property
    def first(self) -> LinkedPrompt:
        return self.prompts[0]

    @property
    def many(self) -> bool:
        return len(self.prompts) > 1

    @property
    def head(self) -> str:
        """Return the name of the head."""
        return self.head_name(self.first.asked.head[1:])

    @property
    def tallies(self) -> bool:
        """Return whether the parts sum, up to rounding, to the scores of the attention weights."""
        return all(prompt.split.tallies for prompt in self.prompts)

    @property
    def sum(self) -> float:
        """Return the sum of all parts in nats, mean over the prompts."""
        return fsum(prompt.sum for prompt in self.prompts) / len(self.prompts)

    @property
    def controls(self) -> int:
        """Return the number of control prompts of each prompt."""
        return min(len(prompt.base) for prompt in self.prompts)

    @cached_property
    def parts(self) -> tuple[LinkPart, ...]:
        """Return what each part adds to the lead: the query's, the keys', then distance."""
        values = np.array([part_leads(prompt.split, prompt.asked) for prompt in self.prompts])
        means, parts = values.mean(0), self.first.split.parts
        bases = np.array([each.base.mean(0) for each in self.prompts]) if self.controls else None
        columns: list[tuple[ReadSide, int | None]] = [*product(SIDES, range(len(parts)))]
        columns += [("key", None)] * (len(means) - len(columns))
        ends, p = intervals(values, self.seed), list[float | None]([None] * len(means))
        if len(values) >= LEAST_TEXTS and bases is not None and self.model.weights != "random":
            p = adjusted_p(values - bases, self.seed).tolist()
        reached = list[int | None]([None] * len(means))
        sources = dict[tuple[str, int | None], int]()
        if not self.many and bases is not None:
            over = (self.first.base - means) * np.where(means >= 0, 1, -1)
            reached = (over >= -_ROUNDING * np.abs(means)).sum(0).tolist()
        if not self.many:
            read = self.first.split.sources.items()
            sources |= {of: int(np.argmax(row if row.sum() >= 0 else -row)) for of, row in read}
        return tuple(
            LinkPart(
                side=side,
                part=None if at is None else parts[at],
                lead=float(means[column]),
                base=None if bases is None else float(bases[:, column].mean()),
                reached=reached[column],
                without=None if self.many else self._without(side, at),
                source=sources.get((side, at)),
                interval=ends[column],
                p=p[column],
            )
            for column, (side, at) in enumerate(columns)
        )

    def _without(self, side: ReadSide, at: int | None) -> float | None:
        split, key = self.first.split, self.first.asked.key
        if at is None:
            bias = np.where(np.isfinite(split.added), split.added, 0.0)
            return float(split.weight(split.scores - bias, key))
        if side not in split.without:
            return None
        weight = float(split.weight(split.without[side][at], key))
        return None if np.isnan(weight) else weight

    def of_side(self, side: ReadSide) -> list[LinkPart]:
        """Return the parts written into the query or the key, the largest first."""
        order = sorted(self.parts, key=lambda part: -abs(part.lead))
        return [part for part in order if part.side == side]

    def name(self, part: StreamPart | None) -> str:
        """Return the name of a part as the screen says it: ``token``, ``L0H0``, ``L0 MLP``."""
        if part is None:
            return "distance"
        if part.layer is None:
            return part.kind
        layer = f"L{part.layer + self.index_base}"
        if part.head is not None:
            return self.head_name((part.layer, part.head)) + " cross" * part.crosses
        own = part.kind == "bias" and part.layer == self.first.asked.head[1]
        return "own bias" if own else f"{layer} {'MLP' if part.kind == 'mlp' else 'bias'}"


def _link(prompt: LinkedPrompt) -> dict[str, Any]:
    asked, split = prompt.asked, prompt.split
    score, cap = split.scores[asked.key], split.softcap
    return {
        **token_facts(prompt.tokens),
        **dict(zip(("attention", "layer", "head"), asked.head, strict=True)),
        **fields_of(asked, ("query", "key", "than")),
        "visible": len(split.visible),
        "weight": prompt.weight,
        "score": score,
        "capped": None if cap is None else cap * np.tanh(score / cap),
        **fields_of(prompt, ("sum", "lead")),
    }


def _choice(chosen: LinkChoice) -> dict[str, Any]:
    link = chosen.link
    return {
        "pairs": chosen.pairs,
        **{name: getattr(link, name, None) for name in ("habit", "heads", "chance")},
        "beats_chance": link is not None and link.beats_chance,
        "induction": chosen.why == "induction",
        "why": None if link is None else chosen.why,
    }


def _part(report: LinkReport, part: LinkPart) -> dict[str, Any]:
    by = part.part
    entry: dict[str, Any] = {
        "side": part.side,
        "kind": "distance" if by is None else by.kind,
        **{name: getattr(by, name, None) for name in ("layer", "head")},
        "lead": part.lead,
        "base_rate": part.base,
        "reached": part.reached,
        "weight_without": part.without,
        **({"attention": "cross"} if by is not None and by.crosses else {}),
    }
    if report.many:
        entry["ci_low"], entry["ci_high"] = part.interval or (None, None)
        return entry | {"p": part.p, "stands_out": part.stands_out}
    if by is not None:
        at = report.first.split.parts.index(by)
        entry["by_token"] = report.first.split.sources.get((part.side, at))
    return entry


def _scores(prompt: LinkedPrompt) -> np.ndarray:
    return prompt.split.matrix(np.eye(len(prompt.split.weights))[prompt.asked.key])


def _pairs(prompt: LinkedPrompt) -> list[dict[str, Any]]:
    """Return score and lead of each pair of a part of the query and one of the key, by index."""
    scores, leads = _scores(prompt), prompt.split.matrix(prompt.towards)
    parts = len(prompt.split.parts)
    return [
        {"query": query, "key": parts + key, "score": score, "lead": leads[query, key]}
        for (query, key), score in np.ndenumerate(scores)
    ]
