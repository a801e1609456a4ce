"""Rules about long texts: their values are those of whole maps, which are not held."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnviz
from attnviz.engine import observer
from attnviz.engine.hook_points import HeadOutputs
from attnviz.errors import UnsupportedError
from attnviz.models.prepare import prepared

from ...engine.architectures import small_model

TEXT = " ".join(f"w{number * number % 37}" for number in range(12))
RULES = f"""
text = "{TEXT}"
[[check]]
span = "4"
mass_from = "all"
at_most = 1
[[check]]
span = "4"
mass_from = "9"
head = "L1H2"
at_most = 1
"""
LOSS = f"""
[[check]]
loss_on = "{TEXT}"
at_most = 10
"""


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_values_equal_those_of_whole_maps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepared(name, small_model(name), None, torch.device("cpu"))
    file = tmp_path / "rules.toml"
    file.write_text(RULES + LOSS)
    whole = attnviz.check(model, file, reduce="full")
    monkeypatch.setattr(observer, "_LONG", 2)
    monkeypatch.setattr(observer, "_LARGE", 2)
    monkeypatch.setattr(HeadOutputs, "take", lambda *_: pytest.fail("a run held whole maps"))
    sums = attnviz.check(model, file)
    for one, other in zip(whole.outcomes, sums.outcomes, strict=True):
        assert one.value > 0
        assert other.value == pytest.approx(one.value, abs=1e-5)
        assert other.measured_on == one.measured_on


def test_what_has_no_sums_is_refused_or_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepared("gemma2", small_model("gemma2"), None, torch.device("cpu"))
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    with pytest.raises(UnsupportedError, match="leave out --reduce fused"):
        attnviz.check(model, file, reduce="fused")
    whole = attnviz.check(model, file, reduce="full")
    monkeypatch.setattr(observer, "_LONG", 2)
    monkeypatch.setattr(observer, "_LARGE", 2)
    assert attnviz.check(model, file).outcomes == whole.outcomes
