"""Long texts: no head's whole matrix is ever there, and the numbers are those of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from attnviz.engine import observe_torch
from attnviz.errors import UsageError
from attnviz.inspect.patterns.score import score_patterns
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel

from ....small_models import llama_fields

WORDS = 2_311


def words(count: int) -> str:
    return " ".join(f"w{n}" for n in np.random.default_rng(1).integers(0, 97, count))


def llama(window: int | None = None) -> TransformersModel:
    torch.manual_seed(3)
    fields = llama_fields(12, 17, 4_096, (6, 2, 4))
    fields |= {"vocab_size": 101, "initializer_range": 1.0}
    if window is None:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    else:
        config = transformers.MistralConfig(**fields, sliding_window=window)
        model = transformers.MistralForCausalLM(config)
    return prepared("made", model, None, torch.device("cpu"))


@pytest.mark.parametrize(
    ("view", "reduce"),
    [("raw", "blocks"), ("raw", "fused"), ("without-first", "blocks"), ("norm-weighted", "blocks")],
)
@pytest.mark.parametrize("window", [None, 23])
def test_every_way_gives_the_same_scores(view, reduce, window) -> None:
    """With regions, which the chat of a long prompt would have, and with a window."""
    model = llama(window)
    text = model.encode(words(211))
    text = replace(text, regions=("early",) * 60 + ("late",) * (len(text) - 60))
    whole = score_patterns(model, [text], view=view, reduce="full")
    other = score_patterns(model, [text], view=view, reduce=reduce)
    known = observe_torch._reducible if reduce == "fused" else observe_torch._plain
    assert set(known[model.model].values()) == {True}
    for one, same in zip(whole.heads, other.heads, strict=True):
        assert one.label == same.label
        for values in ("scores", "base_rate", "statistics"):
            for name, score in getattr(one, values).items():
                expected = score if score is None else pytest.approx(score, abs=1e-5, rel=1e-5)
                assert getattr(same, values)[name] == expected, name
    for name in ("share", "uniform", "on_sink", "above"):
        expected = pytest.approx(getattr(whole.regions, name), abs=1e-5, nan_ok=True)
        assert getattr(other.regions, name) == expected


def test_what_cannot_be_summed_is_refused() -> None:
    model = llama()
    text = model.encode(words(50))
    with pytest.raises(UsageError, match="as they are"):
        score_patterns(model, [text], view="norm-weighted", reduce="fused")


def test_a_text_past_the_limit_is_never_there_whole() -> None:
    """From 2,048 tokens on the model's own attention is the fused one."""
    model = llama()
    with torch.inference_mode():
        text = model.encode(words(WORDS))
    seen: list[tuple[int, ...]] = []
    original = torch.Tensor.softmax

    def watched(scores: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        seen.append(tuple(scores.shape))
        return original(scores, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "softmax", watched)
        report = score_patterns(model, [text], reduce="blocks")
    assert report.heads[0].scores["previous"] is not None
    long = [shape for shape in seen if shape[-1] > 1_000]
    assert long
    assert max(np.prod(shape) for shape in long) <= 2**20
