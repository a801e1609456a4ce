"""``heads`` on a text with pictures: shares, sinks, localisation heads and the general prompt."""

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.engine.capture import capture
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.heads.request import HeadsRequest
from attnviz.inspect.picture_text.picture_text import GENERAL, picture_text
from attnviz.inspect.picture_text.request import PictureTextRequest, picture_text_request
from attnviz.models.picture_texts import picture_text_model
from attnviz.models.pictures import PicturePrompt

from ...models import picture_models
from ...models.picture_models import tiny
from ...models.test_picture_texts import opened, prompt


def test_shares_and_rows_are_those_of_whole_maps():
    for name in ("llava_next", "qwen2_5_vl", "gemma3"):
        _, _, known = opened(name, layers=3, tower_layers=1)
        text = prompt((40, 24), (24, 40))
        report = picture_text(known, text, PictureTextRequest(token="picture"))
        tokens = known.encode(text)
        maps = capture(known, tokens, kind="self").layers
        control = known.encode(PicturePrompt(GENERAL, text.pictures))
        general = capture(known, control, kind="self").layers
        at = report.query
        assert tokens.texts[at] == "picture"
        images = tokens.layout.of_kind("patch", "newline")
        others = control.layout.of_kind("patch", "newline")
        for head in report.heads:
            row = maps[head.layer].weights[head.head, at]
            assert np.abs(head.row - row).max() < 1e-6
            assert head.picture == pytest.approx(row[images].sum(), abs=1e-6)
            beside = general[head.layer].weights[head.head, -1, others]
            assert np.abs(head.general[images] - beside).max() < 1e-6
            assert head.sinks == 0
        shares = [np.mean([layer.weights[:, at][:, images].sum(1) for layer in maps])]
        assert report.words[at] == pytest.approx(shares[0], abs=1e-6)


def made(monkeypatch, layers, text=(), side=16):
    """Return a LLaVA whose text or pictures have other sizes, and its processor."""
    family = picture_models.FAMILIES["llava"]
    cut = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    processor = picture_models.PROCESSORS["llava"] | {"settings": cut}
    sizes = {"tower": family["tower"] | {"image_size": side}, "text": family["text"] | dict(text)}
    monkeypatch.setitem(picture_models.FAMILIES, "made", family | sizes | {"processor": "made"})
    monkeypatch.setitem(picture_models.PROCESSORS, "made", processor)
    return tiny("made", layers=layers)


def test_a_planted_massive_activation_is_a_sink(monkeypatch):
    model, processor = made(monkeypatch, 4, {"hidden_size": 512, "head_dim": 128})

    def plant(module, args, output):
        states = output[0] if isinstance(output, tuple) else output
        states[:, 5, 7] += 4000.0

    model.model.language_model.layers[1].register_forward_hook(plant)
    known = picture_text_model("made", model, processor)
    report = picture_text(known, prompt((16, 16)), PictureTextRequest())
    assert report.sinks == {2: (5,), 3: (5,)}
    for head in report.heads:
        late = head.layer >= 2
        assert head.sinks == pytest.approx(head.row[5] if late else 0.0)
        assert report.without_sinks(head)[5] == (0.0 if late else head.row[5])
    largest = [head.row[:16].max() * (head.layer >= 2) for head in report.heads]
    assert 0 < report.sinks_by_chance <= np.mean(largest)
    assert "massive activations, in 2 layers from L2 on" in str(report)


def test_a_head_that_looks_at_one_spot_locates_it(monkeypatch):
    """A direction of the states marks four patches; a head's keys follow it, its query is fixed."""
    model, processor = made(monkeypatch, 4, side=32)
    layer = model.model.language_model.layers[3]
    spot = [row * 8 + column for row in (2, 3) for column in (4, 5)]

    def mark(module, args, output):
        states = output.clone()
        states[..., 3] = 0.0
        states[:, spot, 3] = 30.0
        return states

    layer.input_layernorm.register_forward_hook(mark)
    attention = layer.self_attn
    with torch.no_grad():
        attention.k_proj.weight[1] = torch.eye(16)[3]  # the second dimension hardly rotates
        attention.q_proj.weight[4:8] = 0.0
        attention.q_proj.bias = torch.nn.Parameter(torch.zeros(16))
        attention.q_proj.bias[5] = 1.0
    known = picture_text_model("made", model, processor)
    report = picture_text(known, prompt((32, 32)), PictureTextRequest())
    assert (3, 1) in [(head.layer, head.head) for head in report.locating]
    alone = picture_text(known, prompt((32, 32)), PictureTextRequest(head=("L3H1",)))
    assert alone.finding.startswith("“?” gives the image 100% of its weight in L3H1 (uniform: 91%)")
    assert alone.finding.endswith("L3H1 looks at row 3, columns 4–5.")  # 60% of the weight


def test_what_the_model_writes_may_look_too():
    _, _, known = opened("internvl", layers=2)
    asked = PictureTextRequest(generate=2)
    report = picture_text(known, prompt((32, 32)), asked)
    plain = picture_text(known, prompt((32, 32)), PictureTextRequest())
    assert report.query == plain.query + 2
    assert len(report.tokens.layout) == len(report.tokens) == len(plain.tokens) + 2
    assert report.written
    assert report.words[plain.query] == pytest.approx(plain.words[plain.query], abs=1e-6)


def test_the_prompt_of_a_model_that_reads_both_ways_does_not_see_the_answer():
    model, processor, known = opened("paligemma", layers=2)
    text = prompt((24, 40))
    report = picture_text(known, text, PictureTextRequest(generate=3))
    images = [Image.fromarray(text.pictures[0].pixels)]
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        made = processor(text=f"<image>{text}", images=images, return_tensors="pt")
        made.pop("labels", None)
        ids = model.generate(**made, max_new_tokens=3, do_sample=False)[0].tolist()
    length = made["input_ids"].shape[1]
    assert list(report.tokens.ids[length:]) == ids[length:]
    maps = capture(known, report.tokens, kind="self").layers
    alone = capture(known, known.encode(text), kind="self").layers
    for whole, first in zip(maps, alone, strict=True):
        np.testing.assert_allclose(whole.weights[:, :length, :length], first.weights, atol=1e-6)
        assert (first.weights[:, 0] > 0).all()
        assert (np.triu(whole.weights[:, length:, length:], 1) == 0).all()


def test_crops_of_pan_and_scan_are_refused():
    _, processor, known = opened("gemma3", layers=1)
    processor.image_processor.do_pan_and_scan = True
    with pytest.raises(UnsupportedError, match='set "do_pan_and_scan" to false'):
        known.encode(prompt((24, 40)))


def test_report_and_its_files(tmp_path):
    _, _, known = opened("smolvlm", layers=3)
    report = picture_text(known, prompt((40, 24)), PictureTextRequest(layer="2", index_base=0))
    assert {head.layer for head in report.heads} == {2}
    data = json.loads(json.dumps(report.to_dict()))
    assert data["schema"] == "attnviz.picture-text/1"
    assert [grid["name"] for grid in data["grids"]] == ["tiles", "overview"]
    for head in data["heads"]:
        assert sum(head["row"]) == pytest.approx(1, abs=1e-3)
        assert head["picture"] + head["text"] == pytest.approx(1)
    assert len(report.to_dicts()) == len(report.heads)
    for ending in (".npz", ".html", ".csv", ".md"):
        report.save(tmp_path / f"heads{ending}")
        assert (tmp_path / f"heads{ending}").stat().st_size


def test_wrong_requests():
    _, _, known = opened("llava", layers=1)
    with pytest.raises(UsageError, match="no token 'dog'"):
        picture_text(known, prompt((16, 16)), PictureTextRequest(token="dog"))
    _, _, chat = opened("qwen2_vl", layers=1)
    with pytest.raises(UsageError, match="comes before the image"):
        picture_text(chat, prompt((16, 16)), PictureTextRequest(token="0"))
    with pytest.raises(UsageError, match="--values is for texts alone"):
        picture_text_request(HeadsRequest(values=True), None)


def test_from_python_and_from_the_command_line(run, tmp_path):
    model, processor, _ = opened("llava", layers=3)
    pixels = prompt((20, 30)).pictures[0].pixels
    report = attnviz.heads(model, "what is in", image=[pixels, pixels], processor=processor)
    assert report.names == ("image 1", "image 2")
    with pytest.raises(UsageError, match="expected a processor of images and texts"):
        attnviz.heads(model, "what", image=pixels, processor=processor.image_processor)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    asked = ["heads", "what is in", "--image", "noise.png", "--model", "."]
    found = run(*asked, "--image", "noise.png", "--json").document
    rows = [head["row"] for head in found["heads"]]
    assert np.abs(np.array(rows) - [head.row for head in report.heads]).max() < 1e-6
    for more, why in (
        (["--at", "3,4"], "--at is not for a text with images"),
        (["--top", "3"], "--top is for texts alone"),
        (["--generate", "0"], "1"),
    ):
        refused = run(*asked, *more)
        assert refused.code == 2
        assert why in refused.err
    assert "--generate is for a text with" in run("heads", "what is in", "--generate", "3").err
