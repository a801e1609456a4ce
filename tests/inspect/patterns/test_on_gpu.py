"""How texts are read decides about time alone: by maps and by sums the scores are the same."""

import numpy as np
import pytest
import torch
import transformers

from attnviz.inspect.patterns.measure import LayerSums
from attnviz.inspect.patterns.score import score_patterns
from attnviz.models.prepare import prepared
from attnviz.records import Input

from ...engine.sizes import set_sizes
from ...small_models import llama_fields


def test_a_gpu_reads_sums_of_short_texts_too_and_of_some_heads_at_a_time(monkeypatch):
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 512, (6, 2, 4)) | {"vocab_size": 101, "initializer_range": 1.0}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    model = prepared("made", made, None, torch.device("cpu"))
    drawn = np.random.default_rng(1).integers(0, 97, (2, 90))
    rows = drawn[0, :40], drawn[1]
    texts = [Input(model.encode(" ".join(f"w{word}" for word in row))) for row in rows]
    expected = [score_patterns(model, text) for text in texts]
    read, plain = [], LayerSums.add_sums

    def add_sums(sums, *given):
        read.append(len(sums._text.queries))
        return plain(sums, *given)

    monkeypatch.setattr(LayerSums, "add_sums", add_sums)
    set_sizes(monkeypatch, sums_from=64, batch_tokens=512, sum_bytes=2 * 4 * 90 * 60)
    found = [score_patterns(model, text) for text in texts]
    assert set(read) == {90}
    for before, after in zip(expected, found, strict=True):
        for one, same in zip(before.heads, after.heads, strict=True):
            for name, score in one.scores.items():
                near = None if score is None else pytest.approx(score, abs=1e-5)
                assert same.scores[name] == near
