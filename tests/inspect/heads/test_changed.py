"""``heads --ablate`` and ``--norm-weighted``: other weights, and every outlet says so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attnviz.models.bundled import Bundled

SENTENCE = "The cat sat on the mat because it was tired."


def maps(run: Any, *options: str) -> tuple[dict[str, Any], dict[tuple[int, int], np.ndarray]]:
    """The facts, and each head's weights."""
    found = json.loads(run("heads", SENTENCE, "--json", *options).out)
    return found, {
        (head["layer"], head["head"]): np.array(head["weights"]) for head in found["heads"]
    }


def test_an_ablated_head_changes_what_lies_behind_it(run: Any) -> None:
    _, plain = maps(run)
    found, ablated = maps(run, "--ablate", "1.*")
    assert found["ablated"] == [[1, head] for head in range(4)]
    moved = {head for head in plain if np.abs(plain[head] - ablated[head]).max() > 1e-4}
    assert moved == {head for head in plain if head[0] > 1}
    _, one_based = maps(run, "--ablate", "L2H1,L2H2,L2H3,L2H4", "--index-base", "1")
    assert all(np.array_equal(one_based[head], ablated[head]) for head in plain)


def test_norm_weights_are_those_of_values_computed_by_hand(run: Any) -> None:
    """Layer 0 alone: its input is the embedding, RMS-normed (Kobayashi et al. 2020, eq. 3)."""
    _, plain = maps(run)
    found, weighted = maps(run, "--norm-weighted", "--layer", "0")
    assert found["norm_weighted"] is True
    model = Bundled()
    config, tensors = model.checkpoint.config, model.tensors
    part = {name.removeprefix("model."): np.asarray(t, np.float64) for name, t in tensors.items()}
    x = part["embed_tokens.weight"][list(found["token_ids"])]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    x = x * part["layers.0.input_layernorm.weight"]
    values = (x @ part["layers.0.self_attn.v_proj.weight"].T).reshape(len(x), config.kv_heads, -1)
    dim = values.shape[-1]
    for head in range(config.heads):
        output = part["layers.0.self_attn.o_proj.weight"][:, head * dim : (head + 1) * dim]
        norms = np.linalg.norm(
            values[:, head * config.kv_heads // config.heads] @ output.T, axis=-1
        )
        expected = plain[0, head] * norms
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(weighted[0, head], expected, atol=2e-6)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ablate", "L0H1"], "without L0H1"),
        (["--norm-weighted", "--head", "L3H1"], "norm-weighted"),
        (
            ["--ablate", "0.*,1.*", "--norm-weighted", "--no-sink"],
            "without L0H0, L0H1, 6 more · norm-weighted",
        ),
    ],
)
def test_the_first_screen_says_so(
    redrawn: Any, options: list[str], said: str, size: tuple[int, int]
) -> None:
    place = {"COLUMNS": str(size[0]), "LINES": str(size[1])}
    result = redrawn("heads", SENTENCE, "--no-full", *options, env=place)
    assert said in result.lines[0]
    assert any(each in result.lines[1] for each in ("more than usual", "No link", "above usual"))
    assert len(result.lines) <= size[1]


def test_what_does_not_go_together_is_refused(run: Any) -> None:
    for options in (["--ablate", "L9H0"], ["--pair", "it", "cat", "--norm-weighted"]):
        result = run("heads", SENTENCE, *options)
        assert (result.code, result.out) == (2, "")
        assert len(result.err.splitlines()) <= 3
