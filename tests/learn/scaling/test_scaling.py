"""``attnviz scaling`` from the command line: random queries and keys, a model's, files, slips."""

import pytest

from attnviz.models import memory


def test_the_seed_decides(run):
    arguments = ("scaling", "--d-k", "5, 3,5", "--seq", "7", "--samples", "3", "--json")
    first, again = run(*arguments).document, run(*arguments).document
    assert first == again
    assert [case["d_k"] for case in first["cases"]] == [3, 5]
    other = run(*arguments, "--seed", "1").document
    assert other["cases"] != first["cases"]
    alone = run("scaling", "--d-k", "3", *arguments[3:]).document
    assert alone["cases"] == first["cases"][:1]


def test_activation_functions_are_those_of_torch(run, refused):
    import torch
    from torch.nn import functional

    found = run("scaling", "--activation", "--json").document["activations"]
    functions = {"ReLU": torch.relu, "GELU": functional.gelu, "SiLU": functional.silu}
    normal = torch.distributions.Normal(0.0, 1.0)
    inputs = torch.linspace(-8, 8, 400_001, dtype=torch.float64)
    shares = normal.log_prob(inputs).exp() * 16 / 400_000
    for curve in found:
        x, y = torch.tensor(curve["points"], dtype=torch.float64).T
        own, up = functions.get(curve["name"], functional.silu), curve["up"] or 1.0
        assert y.numpy() == pytest.approx((own(x) * up).numpy(), abs=5e-7)
        if curve["up"] is None:
            values = own(inputs)
            assert curve["nearly"] == pytest.approx(
                float(shares[values.abs() < 0.05].sum()), abs=2e-3
            )
            assert curve["zero"] == pytest.approx(float(shares[values == 0].sum()), abs=2e-3)
        if curve["lowest"]:
            assert curve["lowest"][1] == pytest.approx(float(values.min()), abs=1e-5)
            assert curve["lowest"][0] == pytest.approx(float(inputs[values.argmin()]), abs=2e-3)
    assert [curve["lowest"] is None for curve in found] == [True, False, False, True, True, True]
    assert "leave out --from-model" in refused(2, "scaling", "--activation", "--from-model")


def test_a_text_that_memory_cannot_hold(refused, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda *_: 1000)
    line = refused(2, "scaling", "--from-model")
    assert "1.00 kB are free: shorten the text" in line
