"""What is asked of a picture, and what is said of it."""

import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image

import attnviz
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.picture.on_picture import on_picture
from attnviz.inspect.picture.picture import picture, pooling_weights
from attnviz.inspect.picture.request import PictureRequest
from attnviz.models.pictures import read_picture
from attnviz.models.vision import handed_pictures
from tests.models.vision_models import SIDE, build, noise, processor

from ...cli.test_boundary import refusals


@pytest.fixture(scope="module")
def vit():
    return handed_pictures(build("ViTForImageClassification"), processor())


@pytest.fixture(scope="module")
def siglip():
    return handed_pictures(build("SiglipVisionModel"), processor())


def asked(model, **request):
    return picture(model, model.read(read_picture(noise())), PictureRequest(**request))


def test_the_query_is_cls_a_patch_a_pixel_or_the_mean(vit):
    whole = attnviz.capture(vit, vit.read(read_picture(noise())).file.name)
    for request, row in (
        ({}, 0),
        ({"token": "cls"}, 0),
        ({"token": "2,3"}, 12),
        ({"at": (43, 0)}, 4),  # of 44 x 60 pixels on 4 x 4 patches: row 0, column 3
        ({"at": (0, 59)}, 13),
    ):
        report = asked(vit, **request)
        for head in report.heads:
            np.testing.assert_allclose(head.row, whole[head.layer, head.head][row], atol=1e-6)
    mean = asked(vit, token="mean").heads[5]
    np.testing.assert_allclose(mean.row, whole[mean.layer, mean.head][1:].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"token": "R1"}, "no token 'R1' on this image: expected CLS, mean, or ROW,COLUMN"),
        ({"token": "pool"}, "no token 'pool'"),
        ({"token": "4,0"}, "rows go from 0 to 3"),
        ({"token": "4"}, "expected two numbers"),
        ({"at": (44, 0)}, "the image has 44 x 60"),
        ({"at": (1, 1), "token": "CLS"}, "give one of them"),
        ({"head": ("L2H0",)}, "no layer 2"),
    ],
)
def test_what_is_no_query(vit, request_, words):
    with pytest.raises(UsageError, match=words):
        asked(vit, **request_)


def test_chosen_heads_alone(vit):
    report = asked(vit, head=("L1H2",), index_base=0)
    assert [report.head_name(head) for head in report.heads] == ["L1H2"]
    assert report.selected


def test_pooling_is_recomputed_and_compared_with_the_module(siglip):
    report = asked(siglip)
    assert report.query.name == "pool"
    read = siglip.read(read_picture(noise()))
    head = siglip.pooling
    with torch.no_grad():
        states = siglip.model(input_ids=torch.tensor([read.tokens.ids]))[0]
        _, expected = head.attention(
            head.probe, states, states, need_weights=True, average_attn_weights=False
        )
    np.testing.assert_allclose([one.row for one in report.asking], expected[0, :, 0], atol=1e-6)
    with pytest.raises(UnsupportedError, match="cannot be read"):
        pooling_weights(torch.nn.Linear(2, 2), states[0], read)


def test_random_weights_claim_nothing():
    even = handed_pictures(build("DeiTModel"), processor())
    for parameter in even.model.parameters():
        parameter.data *= 0.01
    assert "looks everywhere alike" in asked(even).finding


def test_a_sink_and_a_region_are_told(vit):
    """Heads that are made to look at one place say so; the query's region is tested on others."""
    report = asked(vit)
    tokens = len(report.layout)
    corner = np.zeros(tokens)
    corner[[1, 2, 5, 6]] = 0.25
    patch = np.full(tokens, 0.1 / (tokens - 1))
    patch[9] = 0.9
    object.__setattr__(
        report,
        "heads",
        tuple(
            type(head)(head.layer, head.head, corner, patch, 1.0, 0.0, None, 9, "sink: one patch")
            for head in report.heads
        ),
    )
    assert "falls on 25% of them (mean of L1; rows 0–1, columns 0–1)" in report.finding
    assert report.finding.endswith("times what the average patch puts there.")
    assert "patch 2,0 in 8" in str(report)


def test_numbers_that_are_none(vit):
    report = asked(vit)
    broken = [type(head)(head.layer, head.head, head.row * np.nan) for head in report.heads]
    object.__setattr__(report, "heads", tuple(broken))
    assert "not numbers" in report.finding


def test_an_even_map_lets_its_picture_through(vit):
    layout = asked(vit).layout
    even = np.full(len(layout), 1 / len(layout))
    assert on_picture(layout, even, "even").full == pytest.approx(3 * even[0])
    peaked = np.where(np.arange(len(layout)) == 3, 1.0, 0.0)
    assert on_picture(layout, peaked, "peaked").full == 1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a classifier, its processor, and five pictures in it."""
    folder = tmp_path_factory.mktemp("pictures")
    build("ViTForImageClassification").save_pretrained(folder / "vit")
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": SIDE, "width": SIDE},
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "photos").mkdir()
    for seed in range(5):
        Image.fromarray(noise(seed=seed)).save(folder / "photos" / f"{seed}.png")
    return folder


@pytest.fixture
def typed(run, place, monkeypatch):
    """Run a command in that directory, on its model, and return what it printed."""
    monkeypatch.chdir(place)

    def typed(*words, code=0):
        done = run(*words, "--model", "./vit")
        assert done.code == code, done.err
        return done.out if not code else done.err

    return typed


def test_each_command_reads_pictures(typed, place):
    first = typed("heads", "--image", "photos/0.png", "--at", "3,4")
    assert "query 0,0" in first
    assert "4 × 4 patches" in first
    chosen = json.loads(typed("heads", "--image", "photos/0.png", "--head", "L1H2", "--json"))
    assert [head["head"] for head in chosen["heads"]] == ["L1H2"]
    card = typed("head", "L1H2", "--image", "photos/0.png", "--token", "1,2", "--json")
    assert (json.loads(card)["query"], len(json.loads(card)["heads"])) == ("1,2", 1)
    assert typed("heads", "a text", "--image", "photos/0.png", "--tower", "--at", "3,4") == first
    assert "60% of what CLS draws" in typed("rollout", "--image", "photos/0.png")
    many = [word for seed in range(5) for word in ("--image", f"photos/{seed}.png")]
    ablated = json.loads(typed("ablate", *many, "--json"))
    assert len(ablated["heads"]) == 8
    assert "5 images" in typed("patterns", "--images", "photos")


def test_every_kind_of_file(typed, place):
    endings = ("json", "csv", "md", "txt", "html", "svg", "png", "npz")
    words = [word for ending in endings for word in ("--save", f"out.{ending}")]
    typed("heads", "--image", "photos/0.png", *words)
    assert all((place / f"out.{ending}").stat().st_size > 500 for ending in endings)
    page = (place / "out.html").read_text(encoding="utf-8")
    assert '"panes": [{' in page or '"panes":[{' in page


@pytest.mark.parametrize(("code", "line", "words"), [*refusals(__file__)])
def test_bad_input(typed, code, line, words):
    assert words in typed(*shlex.split(line), code=code)


def test_models_that_read_no_pictures(run, place):
    picture = str(place / "photos" / "0.png")
    for model, code, line in (
        ("tiny", 2, "'tiny' reads text: give a vision model"),
        ("configs/gpt2", 5, "takes no image"),
    ):
        done = run("heads", "--image", picture, "--model", model)
        assert (done.code, line in done.err) == (code, True)


def test_a_processor_that_is_missing(run, place, tmp_path):
    (tmp_path / "vit").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "vit" / name).write_bytes((place / "vit" / name).read_bytes())
    done = run("heads", "--image", str(place / "photos/0.png"), "--model", str(tmp_path / "vit"))
    assert done.code == 3
    assert "copy preprocessor_config.json next to config.json" in done.err
