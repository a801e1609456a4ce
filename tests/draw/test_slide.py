"""A slide is the first screen in 16 to 9."""

import pytest

import attnviz
from attnviz.draw.drawing import Label
from attnviz.draw.figure import slide_drawing


@pytest.fixture(scope="module")
def report():
    return attnviz.heads("tiny", "The cat sat on the mat.")


def test_it_has_the_finding_inside_16_to_9(report):
    drawing = slide_drawing(report.document(), "viridis")
    assert drawing.width / drawing.height == 16 / 9
    words = " ".join(item.content for item in drawing.items if isinstance(item, Label))
    assert " ".join(report.finding.split()[:6]) in " ".join(words.split())
    assert all(
        0 <= item.x <= drawing.width and 0 <= item.y <= drawing.height for item in drawing.items
    )
    assert all(label.ink for label in drawing.items if isinstance(label, Label))


def test_pictures_of_it(report, tmp_path):
    report.save(tmp_path / "s.svg", slide=True)
    assert 'viewBox="0 0 1024 576"' in (tmp_path / "s.svg").read_text()
    image = pytest.importorskip("matplotlib.image")
    report.save(tmp_path / "s.png", slide=True)
    assert image.imread(tmp_path / "s.png").shape[:2] == (1080, 1920)
