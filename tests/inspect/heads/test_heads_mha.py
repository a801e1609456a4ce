"""``--model mha``: the textbook's figure, over the words of any language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

KOREAN = "나는 오늘 학교에 갔다 ."
FIGURE = (KOREAN, "--model", "mha", "--d-model", "64", "--heads", "8", "--causal")


def test_the_textbooks_figure(run: Any) -> None:
    result = run("heads", *FIGURE)
    assert (result.code, result.err) == (0, "")
    assert "mha · " in result.lines[0]
    assert "random weights" in result.out
    assert "seed 0" in result.out
    for head in range(8):
        assert f"L0H{head}" in result.out
    for word in KOREAN.split():
        assert word in result.out


def test_causal_or_not(document: Any) -> None:
    for option, sees_future in (
        ("--causal", False),
        ("--no-causal", True),
        ("--seed=0", True),
    ):
        found = document(KOREAN, "--model", "mha", option)
        weights = np.array([head["weights"] for head in found["heads"]])
        assert found["causal"] == (not sees_future)
        assert bool(np.triu(weights, 1).any()) == sees_future
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(("kv_heads", "groups"), [(1, [0] * 4), (2, [0, 0, 1, 1])])
def test_shared_key_value_heads(document: Any, kv_heads: int, groups: list[int]) -> None:
    options = ("--model", "mha", "--heads", "4", "--kv-heads", str(kv_heads))
    found = document(KOREAN, *options)
    assert (found["model"]["heads"], found["model"]["kv_heads"]) == (4, kv_heads)
    assert found["model"]["head_dim"] == 16
    assert [head["kv_head"] for head in found["heads"]] == groups


def test_a_seed_is_a_picture(document: Any) -> None:
    first = document(KOREAN, "--model", "mha", "--seed", "3")
    assert document(KOREAN, "--model", "mha", "--seed", "3") == first
    assert document(KOREAN, "--model", "mha", "--seed", "4")["heads"] != first["heads"]


def test_equal_words_have_equal_maps(document: Any) -> None:
    weights = np.array(document("가 나 가", "--model", "mha")["heads"][0]["weights"])
    np.testing.assert_allclose(weights[0], weights[2], atol=1e-7)


@pytest.mark.parametrize(
    "text", ["العربية من اليمين", "日本語 の 文", "🙂 👨‍👩‍👧 🏳️‍🌈", "e\u0301 a\u0308", "ไทย ภาษา"]
)
def test_any_language(run: Any, text: str) -> None:
    result = run("heads", text, "--model", "mha", "--width", "60")
    assert (result.code, result.err) == (0, "")
