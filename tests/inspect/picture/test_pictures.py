"""Labels over many pictures are those that a head keeps."""

import numpy as np
import pytest
from PIL import Image

from attnviz.errors import LoadError, UsageError
from attnviz.inspect.picture.picture import picture, pictures
from attnviz.inspect.picture.request import PictureRequest
from attnviz.models.pictures import picture_files, read_picture
from attnviz.models.vision import handed_pictures
from tests.models.vision_models import build, noise, processor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos")
    for seed in range(5):
        Image.fromarray(noise(seed=seed)).save(path / f"{seed}.PNG")
    (path / "notes.txt").write_text("no picture")
    return path


def test_means_over_pictures_are_those_of_each_alone(folder):
    model = handed_pictures(build("Dinov2WithRegistersModel"), processor())
    files = picture_files(str(folder))
    report = pictures(model, files)
    assert not model.pictures  # none is kept
    alone = [
        picture(model, model.read(read_picture(path)), PictureRequest(token="mean")).heads
        for path in files
    ]
    for head, *seen in zip(report.heads, *alone, strict=True):
        assert head.distance == pytest.approx(np.mean([one.distance for one in seen]))
        assert head.register == pytest.approx(np.mean([one.register for one in seen]))
        assert head.interval[0] < head.distance < head.interval[1]
        if head.label:
            assert sum(one.label == head.label for one in seen) == head.times >= 4
    assert len(report.to_dicts()) == 8
    assert report.to_dict()["schema"] == "attnviz.pictures/1"


def test_few_pictures_have_no_interval(folder):
    model = handed_pictures(build("DeiTModel"), processor())
    report = pictures(model, picture_files(str(folder))[:2])
    assert {head.interval for head in report.heads} == {None}
    assert "2 images" in report.finding


def test_directories_without_pictures(tmp_path):
    with pytest.raises(LoadError, match="no directory"):
        picture_files(str(tmp_path / "none"))
    with pytest.raises(UsageError, match="there is no image"):
        picture_files(str(tmp_path))
