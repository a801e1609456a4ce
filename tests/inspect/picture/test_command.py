"""The commands on pictures, as a person types them, on a checkpoint of random weights."""

import json
import shlex

import pytest
from PIL import Image

from tests.models.vision_models import SIDE, build, noise

from ...cli.test_boundary import refusals


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
def asked(run, place, monkeypatch):
    """Run a command in that directory, on its model, and return what it printed."""
    monkeypatch.chdir(place)

    def asked(*words, code=0):
        done = run(*words, "--model", "./vit")
        assert done.code == code, done.err
        return done.out if not code else done.err

    return asked


def test_each_command_reads_pictures(asked, place):
    first = asked("heads", "--image", "photos/0.png", "--at", "3,4")
    assert "query 0,0" in first
    assert "4 x 4 patches" in first
    chosen = json.loads(asked("heads", "--image", "photos/0.png", "--head", "L1H2", "--json"))
    assert [head["head"] for head in chosen["heads"]] == ["L1H2"]
    card = asked("head", "L1H2", "--image", "photos/0.png", "--token", "1,2", "--json")
    assert (json.loads(card)["query"], len(json.loads(card)["heads"])) == ("1,2", 1)
    assert asked("heads", "a text", "--image", "photos/0.png", "--tower", "--at", "3,4") == first
    assert "60% of what CLS draws" in asked("rollout", "--image", "photos/0.png")
    many = [word for seed in range(5) for word in ("--image", f"photos/{seed}.png")]
    ablated = json.loads(asked("ablate", *many, "--json"))
    assert len(ablated["heads"]) == 8
    assert "5 pictures" in asked("patterns", "--images", "photos")


def test_every_kind_of_file(asked, place):
    endings = ("json", "csv", "md", "txt", "html", "svg", "png", "npz")
    words = [word for ending in endings for word in ("--save", f"out.{ending}")]
    asked("heads", "--image", "photos/0.png", *words)
    assert all((place / f"out.{ending}").stat().st_size > 500 for ending in endings)
    page = (place / "out.html").read_text(encoding="utf-8")
    assert '"panes": [{' in page or '"panes":[{' in page


@pytest.mark.parametrize(("code", "line", "words"), [*refusals(__file__)])
def test_bad_input(asked, code, line, words):
    assert words in asked(*shlex.split(line), code=code)


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
