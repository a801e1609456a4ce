"""The checks of a loaded model: all hold of real models, and what is damaged is found."""

import json
from collections.abc import Callable

import pytest
import torch

from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.attention_calls import AttentionCall
from attnviz.errors import UnsupportedError
from attnviz.learn.verify.loaded import ObservedRun, verify_model
from attnviz.learn.verify.report import Checked
from attnviz.learn.verify.request import VerifyRequest
from attnviz.models.bundled import Bundled
from attnviz.models.prepare import prepared
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions
from attnviz.records import Input, Tokens

from ...engine.architectures import small_model
from ...models.test_numpy_checkpoint import made

Checked = Callable[..., dict[str, Checked]]
PROPERTIES = ("rows sum to one", "hidden keys", "heads sum to the output", "plain pass")

pytestmark = pytest.mark.usefixtures("one_thread")


def tokens(count, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return Tokens.bare(torch.randint(3, 89, (count,), generator=generator).tolist())


def checks_of(name, dtype=torch.float32):
    model = prepared(name, small_model(name).to(dtype), None, torch.device("cpu"), seed=11)
    given = Input(tokens(11), tokens(7, 5) if name == "t5" else None)
    return {number.check: number for number in ObservedRun(model, given).checks()}


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("gpt2", set()),
        ("llama", set()),
        ("bert", {"hidden keys"}),
        ("t5", set()),
        ("gpt_oss", set()),
        ("gptj", set()),
        ("qwen3_next", {"heads sum to the output"}),
    ],
)
def test_a_small_model(name, skipped):
    checks = checks_of(name)
    assert tuple(checks) == PROPERTIES
    assert {check for check, number in checks.items() if number.skipped} == skipped
    assert all(number.passed and number.claim for number in checks.values())


@pytest.mark.parametrize(
    ("name", "dtype"), [("gpt2", torch.float16), ("llama", torch.bfloat16), ("t5", torch.float64)]
)
def test_other_dtypes(name, dtype):
    """Transformers' softmax is in float32 whatever comes, and so is the tolerance."""
    checks = checks_of(name, dtype)
    assert all(number.passed and number.skipped is None for number in checks.values())
    if dtype == torch.float64:
        assert checks["plain pass"].epsilon == 2.0**-23


def _weights_scaled(self, right):
    output, weights = right(self)
    return output, None if weights is None else weights * 1.0001


def _outputs_scaled(self, right):
    output, weights = right(self)
    return output * 1.01, weights


def _no_mask(self, right):
    """A fused mask of None taken for an eager one, which hides nothing then."""
    given = (self.module, self.query, self.key, self.value)
    return self.functions.eager(*given, None, **self.options)


@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        (_weights_scaled, {"rows sum to one"}),
        (_outputs_scaled, {"plain pass"}),
        (_no_mask, {"hidden keys", "plain pass"}),
    ],
)
def test_a_fault_of_observing_fails(fault, failing, monkeypatch):
    right = AttentionCall.eager
    monkeypatch.setattr(AttentionCall, "eager", lambda self: fault(self, right))
    monkeypatch.setattr("attnviz.engine.passes.PlainCheck.call", lambda self, call, output: None)
    monkeypatch.setattr("attnviz.engine.passes.PlainCheck.end", lambda self, output: None)
    failed = {check for check, number in checks_of("gpt2").items() if not number.passed}
    assert failed == failing


def test_heads_that_do_not_sum_to_the_output_fail(monkeypatch):
    """The output projection adds something that no head and no bias has put there."""
    model = prepared("gpt2", small_model("gpt2"), None, torch.device("cpu"), seed=11)
    projection = model.model.get_submodule("transformer.h.1.attn.c_proj")
    right = projection.forward
    monkeypatch.setattr(projection, "forward", lambda x: right(x) + 0.01)
    numbers = ObservedRun(model, Input(tokens(11))).checks()
    failed = [(number.check, number.where) for number in numbers if not number.passed]
    assert failed == [("heads sum to the output", "L1")]


def numpy_numbers(directory, text="the cat sat", **options):
    loading = LoadOptions(**options)
    model = load(str(directory), LoadOptions(backend="torch", dtype=loading.dtype))
    report = verify_model(model, text, VerifyRequest(), name=str(directory), options=loading)
    assert not {one.check for one in report.numbers if not one.passed} - {"NumPy backend"}
    return [number for number in report.numbers if number.check == "NumPy backend"]


def test_the_bundled_model_is_transformers_own():
    report = verify_model(Bundled(), None, VerifyRequest())
    assert (report.count("pass"), report.count("fail")) == (5, 0)
    assert [one.number for one in report.numbers[-3:]] == ["other tokens", "weights", "logits"]


@pytest.mark.parametrize("name", ["mistral", "bert"])
def test_numpy_and_torch_agree(tmp_path, name):
    others, weights, *logits = numpy_numbers(made(tmp_path, name))
    assert others.difference == 0
    assert 0 < weights.difference <= weights.allowed <= 1e-5
    assert len(logits) == (name == "mistral")
    assert all(0 < one.difference <= one.allowed <= 1e-5 * one.largest for one in logits)


def test_a_backend_that_differs_fails(tmp_path, monkeypatch):
    right = NumpyStack.embed
    monkeypatch.setattr(NumpyStack, "embed", lambda *given: right(*given) * 1.01 + 0.01)
    numbers = numpy_numbers(made(tmp_path, "gpt2"))
    assert [one.number for one in numbers if not one.passed] == ["weights", "logits"]


def test_half_precision_is_allowed_its_own_rounding(tmp_path):
    directory = made(tmp_path, "llama")
    _, weights, _ = numpy_numbers(directory, dtype="bfloat16")
    assert 1e-5 < weights.difference < weights.allowed < 40 * weights.epsilon


def test_why_the_backends_are_not_compared(tmp_path):
    directory = made(tmp_path, "gpt2")
    (left_out,) = numpy_numbers(directory, backend="torch")
    assert left_out.skipped == "left out by --backend torch"
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"surprise": 1}))
    assert numpy_numbers(directory)[0].skipped == "no description of surprise = 1"
    with pytest.raises(UnsupportedError, match=r"--backend numpy .* surprise = 1; leave"):
        numpy_numbers(directory, backend="numpy")
