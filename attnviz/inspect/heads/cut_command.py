"""``heads --cut``: its option, and its report for every outlet."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.errors import UsageError
from attnviz.options import Options, option

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.engine.capture import Choice
    from attnviz.engine.likely import Likely
    from attnviz.inspect.heads.cut import CutReport
    from attnviz.models.resolve import LoadOptions

SCHEMA = "attnviz.cut/1"


@dataclass(frozen=True)
class Cut(Options, panel="An edge cut"):
    """An edge that is knocked out."""

    cut: str | None = option(
        "WORD→WORD",
        "Knock out the attention of the first word (query) to the second (key) in the chosen "
        "heads, and measure how prediction and loss change.",
        words=True,
    )

    def __post_init__(self) -> None:
        _ = self.edge  # what cannot be read is told now

    @property
    def edge(self) -> tuple[str, str] | None:
        """The two words of ``it→animal`` or ``it->animal``; UsageError for anything else."""
        if self.cut is None:
            return None
        words = [word.strip() for word in re.split(r"→|->", self.cut)]
        if len(words) != 2 or not all(words):
            raise UsageError(
                f"cannot read --cut {self.cut!r}: expected two words of the text, query and key, "
                "such as --cut 'it→animal' or 'it->animal'"
            )
        return words[0], words[1]


def show_cut(
    name: str,
    text: str,
    edge: tuple[str, str],
    runs: Sequence[tuple[LoadOptions, Choice]],
    outlet: Outlet,
    unused: Sequence[str],
) -> None:
    """Cut the edge and show what it changes.

    runs: of ``heads``, of which there must be one. unused: options that were given and that a cut
    does not heed; UsageError where there is one.
    """
    from attnviz.cli.progress import loading, scanning
    from attnviz.inspect.heads.cut import cut_report
    from attnviz.models.resolve import load

    if unused:
        raise UsageError(f"--cut measures what an edge does, without maps: leave out {unused[0]}")
    if len(runs) > 1:
        raise UsageError("--cut takes one run: give one --kind and one --score, no --compare-mask")
    ((options, choice),) = runs
    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress))
    with scanning("cutting the edge", outlet.notices) as advance:
        report = cut_report(model, text, edge, choice, advance)
    outlet.show(_Report(report, outlet.output.explain, not outlet.output.quiet))


class _Report(NamedTuple):
    """A knockout for every outlet. explain: add a reading for newcomers. hints: what to try."""

    found: CutReport
    explain: bool
    hints: bool

    def write_json(self, stream: SupportsWrite[str]) -> None:
        """Everything as one JSON object, ASCII only; indices start at 0."""
        from attnviz.draw.values import json_number, model_facts

        found = self.found
        ends = {
            name: {
                "text": "".join(tokens.texts[word.span.start : word.span.stop]).strip(),
                "indices": list(word.span),
            }
            for name, tokens, word in (
                ("query", found.queries, found.query),
                ("key", found.keys, found.key),
            )
        }
        data = {
            "schema": SCHEMA,
            "model": model_facts(found.model),
            "text": found.text,
            **({} if found.target is None else {"target": found.target}),
            "kind": found.kind,
            "causal": found.causal,
            "method": "edge logit -inf, softmax over the remaining keys",
            **ends,
            "edges": [list(edge) for edge in found.edges],
            "heads": [list(head) for head in found.heads],
            "weight": found.weight,
            "loss": {
                "before": json_number(found.loss_before),
                "after": json_number(found.loss_after),
                "unit": "nats per token",
                "tokens": found.measured,
                "deltas": [json_number(delta) for delta in found.loss_deltas.tolist()],
            },
            "predictions": [
                {
                    "index": each.place,
                    "token": found.predicted.texts[each.place],
                    "predicts": "the token itself, masked" if found.masked else "the next token",
                    "kl": json_number(each.kl),
                    "before": [_likely(one) for one in each.before],
                    "after": [_likely(one) for one in each.after],
                }
                for each in found.predictions
            ],
            "alone": [
                {
                    "heads": [list(head) for head in each.heads],
                    "weight": each.weight,
                    "kl": json_number(each.kl),
                    "loss_delta": json_number(each.loss_delta),
                }
                for each in found.alone
            ],
        }
        stream.write(json.dumps(data, allow_nan=False) + "\n")

    def rows(self) -> Iterator[tuple[object, ...]]:
        """A row for each head, or layer of heads, in which the edge was cut alone."""
        yield ("layer", "head", "weight", "kl", "loss_delta")
        for each in self.found.alone:
            layer, head = each.heads[0]
            alone = None if self.found.by_layer else head
            yield layer, alone, each.weight, each.kl, each.loss_delta

    def document(self) -> Document:
        from attnviz.inspect.heads.cut_document import cut_document

        return cut_document(self.found, explain=self.explain, hints=self.hints)


def _likely(one: Likely) -> dict[str, Any]:
    return {"token": one.text, "id": one.id, "probability": one.probability}
