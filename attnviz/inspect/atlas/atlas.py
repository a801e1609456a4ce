"""From a request to a report: reads a corpus, keeps what adds up, and says what each head does."""

from __future__ import annotations

from pathlib import Path

from attnviz.corpus import Block, Corpus, Shard
from attnviz.draw.values import model_facts
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.atlas.records import AtlasReport
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.inspect.atlas.summary import report_of as report_of
from attnviz.inspect.atlas.tally import SAMPLE, tallies
from attnviz.inspect.interventions.study import model_identity
from attnviz.mergeable import CorpusRecord, Tallies, recorded
from attnviz.models.model import Model
from attnviz.records import Advance

_MAPS = 5
"""The most texts whose maps a page shows."""


def atlas(
    model: Model,
    corpus: Corpus,
    request: AtlasRequest,
    *,
    shard: Shard | None = None,
    file: Path | None = None,
    advance: Advance = lambda done: None,
) -> AtlasReport:
    """Return on what each head fires most, over the texts of a corpus.

    shard: the share of the texts that is read; None for all. file: where the record of the shard is kept, and
        from which the run goes on; None keeps none. advance: is called with the number of texts that are done.
    Raises UsageError if a text or the kind does not fit the model, UnsupportedError if its
    attention cannot be observed, KeyboardInterrupt after the record was written.
    """
    probing = open_probing(model, request.kind)
    if probing.kind == "cross":
        raise UsageError("an atlas is of self-attention: choose --kind encoder or decoder")
    run = {**model_identity(model), "kind": probing.kind, "top": request.top, "sample": SAMPLE}
    shown = {"source": corpus.source, "index_base": request.index_base}
    shown |= {"model": model_facts(model.info), "notes": []}
    begun = CorpusRecord("atlas", run, shown, (), Tallies())

    def measure(block: Block) -> Tallies:
        return tallies(probing, block.texts, request.top)

    return report_of(recorded(corpus, shard or Shard(), begun, measure, file, advance))
