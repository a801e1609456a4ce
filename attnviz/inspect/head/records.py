"""The card of a head: what the other questions say of it, each in its own report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.count.params.head_cost import HeadCost
from attnviz.draw.report import Report
from attnviz.draw.signed import Place
from attnviz.engine.attribution.one_token import OneTokenWrites
from attnviz.engine.attribution.parts import HeadKey
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.interventions.ablate.records import AblationReport, Effect
from attnviz.inspect.interventions.path.path import Listener, PathReport
from attnviz.inspect.patterns.report import PatternReport, PatternScores
from attnviz.inspect.why.records import HeadEffect, WhyReport
from attnviz.records import Kind, ModelInfo, Provenance, Tokens

if TYPE_CHECKING:
    from attnviz.draw.document import Document


class Firing(NamedTuple):
    """The strongest link of a head in one text; the sink and a token's own position are left out.

    text: the index of the text. queries, keys: its tokens. query, key: the token indices of the
        link. weight: the attention weight from query to key.
    """

    text: int
    queries: Tokens
    keys: Tokens
    query: int
    key: int
    weight: float


class Hurt(NamedTuple):
    """A token whose loss rises much if the head is ablated.

    text: the index of the text. tokens: those that are predicted. place: the index of the token.
    change: the rise of its loss in nats.
    """

    text: int
    tokens: Tokens
    place: int
    change: float


class ReadFrom(NamedTuple):
    """An earlier head, with its share in the input of the card's head.

    sender: the (layer, head) of the earlier one. read: its share in the queries, keys or values.
    """

    sender: Place
    read: Listener


class Writes(NamedTuple):
    """The effect of a head over texts of one token, with the texts of the tokens.

    found: the numbers. words: the texts of the token ids in it.
    """

    found: OneTokenWrites
    words: Mapping[int, str]


@dataclass(frozen=True, repr=False)
class HeadCard(Report, Provenance):
    """The report of ``attnviz head``: everything that attnviz measures on one head.

    head: (layer, head). kind: the attention that it is a head of.
    map: its attention weights over the text. scored: its label and pattern scores on the probes.
    firings: its strongest links over texts. hurts: the tokens whose loss rises most without it, of
        ``predictions`` tokens in all. ablation: the loss without it. why: the contribution of every
        head to the prediction of the text. writes: its effect over texts of one token. sources:
        earlier heads with a share in its input. readers: later heads in whose input it has a share.
    cost: its parameters and cache. missing: for each part that is None or empty, the reason.
    top: the number of rows of a table. asked: whether a person gave the text.
    """

    model: ModelInfo
    head: Place
    kind: Kind
    map: HeadsReport
    scored: PatternReport | None = None
    firings: tuple[Firing, ...] = ()
    ablation: AblationReport | None = None
    hurts: tuple[Hurt, ...] = ()
    predictions: int = 0
    why: WhyReport | None = None
    writes: Writes | None = None
    sources: tuple[ReadFrom, ...] = ()
    readers: PathReport | None = None
    cost: HeadCost | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    top: int = 5
    asked: bool = False

    command = "head"
    lists = ("read_from", "read_by")

    def data(self) -> dict[str, Any]:
        from attnviz.inspect.head.data import card_data

        return card_data(self)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.inspect.head.data import card_rows

        return card_rows(self)

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        from attnviz.inspect.head.document import card_document

        return card_document(self).shown(explain=explain, hints=hints)

    @property
    def name(self) -> str:
        return self.head_name(self.head)

    @property
    def key(self) -> HeadKey:
        return (self.kind, *self.head)

    @property
    def pattern(self) -> PatternScores | None:
        """Return the head's label and pattern scores on the probes; None if not measured."""
        heads = self.scored.heads if self.scored is not None else ()
        return next((one for one in heads if (one.layer, one.head) == self.head), None)

    @property
    def effect(self) -> Effect | None:
        """Return the effect of ablating the head on the loss; None if not measured."""
        effects: Sequence[Effect] = self.ablation.effects if self.ablation is not None else ()
        return next((one for one in effects if one.head == self.head), None)

    @property
    def written(self) -> HeadEffect | None:
        """Return the head's contribution to the prediction of the text; None if not measured."""
        effects = self.why.effects if self.why is not None else ()
        return next((one for one in effects if one.head == self.key), None)
