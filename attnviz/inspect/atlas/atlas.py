"""From a request to a report: reads a corpus, keeps what adds up, and says what each head does."""

from __future__ import annotations

from pathlib import Path

from attnviz.corpus import Shard, TextBlock, TextCorpus
from attnviz.draw.values import model_facts
from attnviz.engine.probing import open_probing
from attnviz.errors import UsageError
from attnviz.inspect.atlas.records import AtlasReport
from attnviz.inspect.atlas.request import AtlasRequest
from attnviz.inspect.atlas.summary import FORM, report_of
from attnviz.inspect.atlas.tally import SAMPLE, tallies
from attnviz.mergeable import CorpusRecord, Tallies, recorded
from attnviz.models.model import Model, model_identity
from attnviz.progress import UNWATCHED, Watch
from attnviz.texts import encode_texts


def atlas(
    model: Model,
    corpus: TextCorpus,
    request: AtlasRequest,
    shard: Shard,
    file: Path | None = None,
    watch: Watch = UNWATCHED,
) -> AtlasReport:
    """Return on what each head fires most, over the shard's texts of a corpus.

    file: where the record of the shard is kept; see ``mergeable.recorded``. watch: is given the
        progress. The decoder of an encoder–decoder reads the text too, and for cross attention what
        the model itself writes.
    Raises UsageError for a text or option that does not fit, UnsupportedError if its attention
    cannot be observed, KeyboardInterrupt after the record was written.
    """
    if request.out is not None and shard.of > 1:
        raise UsageError(
            "--out is of all texts: leave it or --shard out; in Python attnviz.merge(…).write "
            "makes the directory of all shards"
        )
    probing = open_probing(model, request.kind)
    run = {"kind": probing.kind, "top": request.top, "sample": SAMPLE, "truncate": request.truncate}
    shown = {"source": corpus.source, "index_base": request.index_base}
    shown |= {"model": model_facts(model.info)}
    begun = CorpusRecord("atlas", model_identity(model) | run, shown, (), Tallies())

    def measure(block: TextBlock) -> Tallies:
        texts = encode_texts(model, block.texts, request.truncate, 1)
        lines = zip(block.lines, texts, strict=True)
        inputs = [
            probing.input_of(line.text, tokens, truncate=request.truncate) for line, tokens in lines
        ]
        return tallies(probing, inputs, block.first, request.top)

    return report_of(recorded(corpus, shard, begun, measure, FORM, file=file, watch=watch))
