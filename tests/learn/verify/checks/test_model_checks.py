"""Real models: every property holds, and what is damaged on the way is found."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from attnviz.engine import passes
from attnviz.engine.attention_calls import AttentionCall
from attnviz.learn.verify import transformers
from attnviz.learn.verify.properties import PROPERTIES, model_checks
from attnviz.learn.verify.report import Check
from attnviz.learn.verify.verify import open_examinee
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention

Made = Callable[..., tuple[Any, Any]]


def checks_of(examinee: Any) -> dict[str, Check]:
    return {check.name: check for check in model_checks(examinee)}


def verdicts(checks: dict[str, Check]) -> dict[str, str]:
    return {name: check.verdict for name, check in checks.items() if check.verdict != "pass"}


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("gpt2", {}),
        ("llama", {}),
        ("bert", {"causality"}),
        ("t5", {}),
        ("gpt_oss", {}),
        ("gptj", {}),
        ("qwen3_next", {"heads sum to the output"}),
    ],
)
def test_every_property_of_a_small_model(examinee: Made, name: str, skipped: set[str]) -> None:
    checks = checks_of(examinee(name)[1])
    assert list(checks) == list(PROPERTIES)
    assert verdicts(checks) == dict.fromkeys(skipped, "skipped")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("gpt2", torch.float16),
        ("llama", torch.bfloat16),
        ("t5", torch.bfloat16),
        ("t5", torch.float64),
    ],
)
def test_other_dtypes(examinee: Made, name: str, dtype: torch.dtype) -> None:
    assert verdicts(checks_of(examinee(name, dtype)[1])) == {}


def test_float64_is_held_to_what_transformers_computes_in(examinee: Made) -> None:
    """Llama's softmax is in float32 whatever comes, and its rows show it."""
    _, found = examinee("llama", torch.float64)
    assert found.rounds_in == "float32"
    checks = checks_of(found)
    assert 1e-9 < checks["rows sum to one"].measures[0].difference < 1e-6
    assert "not tried on the left in float64" in checks["padding ignored"].notes[0]


def test_the_sinks_of_gpt_oss_take_their_share(examinee: Made) -> None:
    """Rows alone are far from one; with the sink worked out apart they are not."""
    _, found = examinee("gpt_oss")
    maps, _ = found.observe(found.passage)
    assert min(float(weights.sum(-1).min()) for weights in maps.values()) < 0.9
    check = checks_of(found)["rows sum to one"]
    assert check.measures[0].name == "max row-plus-sink error"
    assert "a learned sink takes" in check.notes[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_mha(causal: bool, kv_heads: int | None) -> None:
    model = OwnAttention(12, 6, kv_heads, causal=causal, seed=3)
    found = open_examinee(model, model.encode("a b c a d"))
    assert verdicts(checks_of(found)) == ({} if causal else {"causality": "skipped"})
    shared = 12 if kv_heads is None else kv_heads * 2
    assert found.parameters == 2 * (12 * 12 + 12) + 2 * (12 * shared + shared)


def test_the_bundled_model_against_transformers_own_class() -> None:
    model = Bundled()
    checks = checks_of(open_examinee(model, model.encode("Tom saw Ann, and Ann saw Tom.")))
    assert verdicts(checks) == {}
    measures = checks["weights match an unhooked run"].measures
    assert [measure.name for measure in measures] == [
        "torch, TorchDecoder",
        "LlamaForCausalLM, eager",
    ]


def _weights_scaled(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    right = AttentionCall.eager

    def eager(self: AttentionCall) -> Any:
        output, weights = right(self)
        return output, None if weights is None else weights * 1.0001

    monkeypatch.setattr(AttentionCall, "eager", eager)


def _outputs_scaled(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    right = AttentionCall.eager

    def eager(self: AttentionCall) -> Any:
        output, weights = right(self)
        return output * 1.01, weights

    monkeypatch.setattr(AttentionCall, "eager", eager)


def _no_mask(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """A fused mask of None taken for an eager one, which hides nothing then."""

    def eager(self: AttentionCall) -> Any:
        given = (self.module, self.query, self.key, self.value)
        return self.found.eager(*given, None, **self.options)

    monkeypatch.setattr(AttentionCall, "eager", eager)


def _not_put_back(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    right = transformers.observe_pass

    def observe(forward: Any, *given: Any) -> None:
        right(forward, *given)
        whole = forward.model
        whole.register_forward_hook(lambda *call: None)
        with torch.no_grad():
            next(whole.parameters())[-1, -1] += 1e-3

    monkeypatch.setattr(transformers, "observe_pass", observe)


def _in_training_mode(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Observing without switching dropout off."""
    right = passes.borrowed

    @contextmanager
    def borrowed(whole: Any, *way: Any) -> Any:
        modes = [module.training for module in whole.modules()]
        with right(whole, *way) as found:
            for module, mode in zip(whole.modules(), modes, strict=True):
                module.training = mode
            yield found

    monkeypatch.setattr(passes, "borrowed", borrowed)


def _a_bias_forgotten(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """The output projection adds something that no head and no bias has put there."""
    projection = model.model.transformer.h[1].attn.c_proj
    right = projection.forward
    monkeypatch.setattr(projection, "forward", lambda x: right(x) + 0.01)


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        (_weights_scaled, {"rows sum to one", "weights match an unhooked run"}),
        (_outputs_scaled, {"outputs unchanged", "weights match an unhooked run"}),  # of layer 1
        (
            _no_mask,
            {"causality", "padding ignored", "outputs unchanged", "weights match an unhooked run"},
        ),
        (_not_put_back, {"model unchanged"}),
        (_in_training_mode, {"dropout off"}),
        (_a_bias_forgotten, {"heads sum to the output"}),
    ],
)
def test_a_fault_fails(
    examinee: Made,
    fault: Callable[[pytest.MonkeyPatch, Any], None],
    failing: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, found = examinee("gpt2")
    fault(monkeypatch, model)
    checks = checks_of(found)
    failed = {name for name, check in checks.items() if check.verdict == "fail"}
    assert failing <= failed
    if fault is not _not_put_back:  # a changed parameter is seen everywhere
        assert failed <= failing
