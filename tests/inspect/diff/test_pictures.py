"""``diff`` over pictures: a planted change is found, rounding is none, other grids are refused."""

import copy

import pytest
import torch
from PIL import Image

import attnviz
from attnviz.errors import UsageError
from attnviz.models.vision import handed_pictures
from tests.models.picture_models import tiny
from tests.models.vision_models import build, noise, processor

PICTURES = [noise(seed=seed) for seed in range(6)]


@pytest.fixture(scope="module")
def sides():
    """A model, and the same one with another query in one head."""
    model = build("Dinov2WithRegistersModel")
    changed = copy.deepcopy(model)
    query = changed.encoder.layer[1].attention.q_proj.weight
    with torch.no_grad():
        query[24:36] = query[24:36].roll(5, 0)  # of L1H2
    return model, changed


def test_a_planted_change_is_found_on_pictures(sides, tmp_path):
    report = attnviz.diff(*sides, image=PICTURES, processor=processor())
    assert [change.head for change in report.changes if change.changed] == [(1, 2)]
    assert report.changed[0].js > 10 * report.noise.floor.js > 0
    assert (report.texts, report.tokens) == (6, 6 * 21)
    assert "L1H2" in report.finding
    found = report.to_dict()
    assert found["of_pictures"] is True
    assert {"local", "sink: registers"} <= found["heads"][0]["scores_a"].keys()
    report.save(tmp_path / "out.html")
    assert "L1H2 in B" in (tmp_path / "out.html").read_text()  # its map on a picture


def test_other_numbers_are_no_change_on_pictures(sides):
    again = copy.deepcopy(sides[0]).to(torch.bfloat16)
    report = attnviz.diff(sides[0], again, image=PICTURES, processor=processor())
    assert report.changed == ()


def test_two_vision_language_models_are_compared_over_a_prompt():
    model, reads = tiny("llava", layers=2, tower_layers=1)
    changed = copy.deepcopy(model)
    query = changed.get_decoder().layers[1].self_attn.q_proj.weight
    with torch.no_grad():
        query[:] = query.flip(0)
    report = attnviz.diff(
        model, changed, "what is in the picture ?", image=PICTURES[0], processor=reads
    )
    assert (report.texts, report.of_pictures) == (1, False)
    assert {change.head[0] for change in report.changes if change.js > 0} == {1}
    assert report.noise.floor.js > 0
    assert report.predictions.kl > 0


def test_pictures_whose_patches_do_not_match_are_refused(sides):
    small = handed_pictures(sides[0], processor())
    large = handed_pictures(build("Dinov2Model", image_size=40), processor(40, 40))
    with pytest.raises(UsageError, match="4 x 4 patches to A, 5 x 5"):
        attnviz.diff(small, large, image=PICTURES[0])


def test_bad_input_is_one_line(run, tmp_path):
    for at, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(tmp_path / f"{at}.png")
    for words, why in (
        (("--image", "0.png", "--text-b", "a"), "--text-b is for texts"),
        (("--images", ".", "--image", "0.png"), "--images gives all images"),
        (("--images", ".", "--texts", "a.txt"), "--texts is for texts"),
        (("--images", "none"), "no directory 'none' here"),
        (("--image", "none.png"), "no file 'none.png' here"),
        (("--image", "0.png"), "'tiny' reads text"),
    ):
        shown = run("diff", "tiny", *words)
        assert shown.code != 0
        assert why in shown.err
        assert len(shown.err.splitlines()) == 1
