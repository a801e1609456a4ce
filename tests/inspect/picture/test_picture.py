"""What is asked of a picture, and what is said of it."""

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.picture.on_picture import on_picture
from attnviz.inspect.picture.picture import picture, pooling_weights
from attnviz.inspect.picture.request import PictureRequest
from attnviz.models.pictures import read_picture
from attnviz.models.vision import handed_pictures
from tests.models.vision_models import build, noise, processor


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
