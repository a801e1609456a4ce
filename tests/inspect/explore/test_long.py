"""Explore over a long text: what its pooled maps and its windows show is that of the whole maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnviz.draw.provenance import share
from attnviz.engine import observer
from attnviz.engine.backend import backend_of
from attnviz.engine.observer import KeepWeights
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.explore import long, session
from attnviz.inspect.explore.desk import SideSource
from attnviz.inspect.explore.session import LiveSession
from attnviz.inspect.explore.view import View
from attnviz.models.prepare import prepared
from attnviz.models.transformers_model import TransformersModel
from attnviz.records import Input

from ...small_models import bert_fields, llama_fields
from .playing import Played, explorer, line, play

TOKENS, SIDE = 203, 40
TEXT = " ".join(f"w{number}" for number in np.random.default_rng(5).integers(0, 60, TOKENS))


def made(name: str) -> TransformersModel:
    torch.manual_seed(3)
    if name == "llama":
        fields = llama_fields(12, 17, 131_072, (6, 2, 4), layers=2)
        config = transformers.LlamaConfig(vocab_size=101, initializer_range=1.0, **fields)
        model = transformers.LlamaForCausalLM(config)
    else:
        fields = bert_fields(12, 17, 512) | {"num_attention_heads": 6}
        config = transformers.BertConfig(vocab_size=101, initializer_range=1.0, **fields)
        model = transformers.BertForMaskedLM(config)
    return prepared("made", model, None, torch.device("cpu"))


MODELS = {name: made(name) for name in ("llama", "bert")}


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """No map of the text can be held, and a window has a few of its tokens."""
    monkeypatch.setattr(session, "_LARGEST", 10**5)
    monkeypatch.setattr(long, "_SIDE", SIDE)


def whole_of(model: TransformersModel) -> dict[int, np.ndarray]:
    keep = KeepWeights("self")
    backend_of(model).observe(keep, [Input(model.encode(TEXT))], cells=None)
    return {layer.layer: layer.weights for layer in keep.layers}


def played(*keys: Any, text: str = TEXT) -> Played:
    """Keys over the text, or over another one, in the model of causal attention."""
    app = explorer(text, session=LiveSession(MODELS["llama"]))
    return play(app, *keys, size=(120, 40))


def test_pooled_maps_are_means_of_sums(name: str) -> None:
    model = MODELS[name]
    frame, whole = LiveSession(model).frame(TEXT), whole_of(model)
    part = frame.long
    assert part is not None
    assert part.pooled
    size = part.queries.step
    assert part.keys == part.queries == range(0, TOKENS, size)
    assert size == 4
    for layer, weights in whole.items():
        for head, matrix in enumerate(weights):
            shown = frame.weights((layer, head))
            for query, start in enumerate(part.queries):
                for key, first in enumerate(part.keys):
                    cells = matrix[start : start + size, first : first + size]
                    if name == "llama" and key > query:
                        assert np.isnan(shown[query, key])
                    else:
                        assert shown[query, key] == pytest.approx(cells.sum(-1).mean(), abs=1e-5)


@pytest.mark.parametrize("held", [2 * 10**9, 0])
def test_a_window_is_a_part_of_the_whole_map(
    name: str, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the queries and keys are not held, so that it takes another pass."""
    monkeypatch.setattr(long, "_HELD", held)
    model = MODELS[name]
    overview, whole = LiveSession(model).frame(TEXT).long, whole_of(model)
    assert overview is not None
    for query, key in ((150, 20), (0, 0), (TOKENS - 1, TOKENS - 1), (90, 80)):
        part = overview.text.around(query, key)
        cell = part.cell(query, key)
        assert cell is not None
        assert part.place(*cell) == (query, key)
        assert len(part.queries) == len(part.keys) == SIDE
        for layer, head, shown in part.report.record:
            expected = whole[layer][head][np.ix_(part.queries, part.keys)].copy()
            if name == "llama":
                expected[np.greater.outer(part.keys, part.queries).T] = np.nan
            np.testing.assert_allclose(shown, expected, atol=1e-5)


@pytest.mark.long
def test_enter_opens_a_cell_keys_move_the_window_and_esc_leaves_it() -> None:
    whole = whole_of(MODELS["llama"])
    pooled = played()
    assert "a cell: 4 × 4 tokens" in pooled.screen
    assert f"{TOKENS} tokens" in pooled.lines[0]
    last = TOKENS - 1
    assert f"{TOKENS - 3}–{last} → {TOKENS - 3}–{last}" in pooled.screen

    opened = played("enter", *["up"] * 3, *["left"] * (SIDE + 5))
    part, view = opened.view.frame.long, opened.view
    assert part is not None
    assert not part.pooled
    query, key = part.queries[view.query], part.keys[view.key]
    assert (query, key) == (TOKENS - 1 - 3, TOKENS - 1 - 3 - SIDE - 5)
    layer, head = view.head
    weight = whole[layer][head][query, key]
    assert opened.view.weights[view.query, view.key] == pytest.approx(weight, abs=1e-5)
    assert f" ({query}) → " in opened.screen
    assert f" ({key}) " in opened.screen
    if weight > 0.005:
        assert share(float(weight)) in opened.screen

    moves = ["enter", *["up"] * 3, *["left"] * (SIDE + 5), "escape"]
    back = played(*moves)
    again = back.view.frame.long
    assert again is not None
    assert again.pooled
    assert (back.view.query, back.view.key) == (query // 4, key // 4)


def test_a_token_is_found_anywhere_in_the_text() -> None:
    token = MODELS["llama"].encode(TEXT).texts[7]
    found = played("slash", line(token), "enter")
    part = found.view.frame.long
    assert part is not None
    assert not part.pooled
    assert part.text.tokens.texts[part.queries[found.view.query]].startswith(token)


def test_the_text_of_a_window_is_coloured_and_that_of_a_cell_is_not() -> None:
    pooled = played("c")
    assert "open it with Enter first" in pooled.screen
    assert not pooled.app.map_pane.as_text
    assert played("enter", "c").app.map_pane.as_text


@pytest.mark.parametrize(
    ("key", "told"),
    [("x", "attnviz ablate"), ("i", "attnviz ablate"), ("v", "attnviz ablate"),
     ("g", "attnviz generate"), ("w", "attnviz link"), ("s", "attnviz heads"),
     ("2", "weights as they are")],
)  # fmt: skip
def test_what_needs_whole_maps_says_what_to_use(key: str, told: str) -> None:
    assert told in " ".join(played(key).screen.split())


def test_a_text_may_grow_long_and_short_again() -> None:
    grown = played("e", line(TEXT), "enter", text="w1 w2 w3")
    assert grown.view.frame.long is not None
    assert "a cell: 4 × 4" in grown.screen
    short = played("enter", "e", line("w1 w2 w3"), "enter")
    assert short.view.frame.long is None
    assert "1.0" in short.screen


def test_the_command_gives_the_window() -> None:
    app = played("enter", "y").app
    last = TOKENS - 1
    assert f"--queries {TOKENS - SIDE}-{last} --keys {TOKENS - SIDE}-{last}" in app.clipboard


def test_zoom_opens_the_window_and_says_what_is_not_there() -> None:
    frame = LiveSession(MODELS["llama"]).frame(TEXT)
    view = View.of(frame).zoomed("L1H4@150,20")
    part = view.frame.long
    assert part is not None
    assert view.head == (1, 4)
    assert (part.queries[view.query], part.keys[view.key]) == (150, 20)
    whole = whole_of(MODELS["llama"])[1][4][150, 20]
    assert view.weights[view.query, view.key] == pytest.approx(whole, abs=1e-5)
    with pytest.raises(UsageError, match="203 queries"):
        View.of(frame).zoomed("L1H4@203,0")


def test_a_long_text_has_no_second_side() -> None:
    found = LiveSession(MODELS["llama"])
    app = explorer("w1 w2", session=found, second=SideSource(found, "w1 w3"))
    said = play(app, "e", line(TEXT), "enter", size=(120, 40))
    assert "attnviz diff" in said.screen
    assert said.view.frame.long is None


def test_heads_are_not_ablated_over_a_long_text() -> None:
    with pytest.raises(UsageError, match="no head is ablated"):
        LiveSession(MODELS["llama"]).frame(TEXT, frozenset({(0, 1)}))


def test_a_text_is_long_where_heads_keeps_no_maps(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their rule, with every head; a model whose sums are unknown shows its whole maps."""
    monkeypatch.setattr(session, "_LARGEST", 2 * 10**9)
    live = LiveSession(MODELS[name])
    assert live.frame(TEXT).long is None
    monkeypatch.setattr(observer, "_LONG", TOKENS)
    monkeypatch.setattr(observer, "_LARGE", 1)
    assert live.frame(TEXT).long is not None
    assert live.frame(TEXT, frozenset({(0, 0)})).long is None

    def unknown(*asked: object, **more: object) -> None:
        raise UnsupportedError("no sums")

    monkeypatch.setattr(session, "LongText", unknown)
    assert live.frame(TEXT).report.record.layers[0].weights.shape[-1] == TOKENS
