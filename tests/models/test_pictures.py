"""Picture files become what a person sees, or one line says why not."""

import numpy as np
import pytest
from PIL import Image

from attnviz.errors import LoadError, UsageError
from attnviz.models import pictures
from attnviz.models.pictures import read_picture

RED = np.zeros((4, 6, 3), np.uint8)
RED[..., 0] = 255


def saved(path, image, **options):
    image.save(path, **options)
    return str(path)


@pytest.mark.parametrize("mode", ["RGB", "P", "CMYK", "RGBA"])
def test_every_mode_is_the_same_picture(tmp_path, mode):
    ending = "tif" if mode == "CMYK" else "png"
    path = saved(tmp_path / f"a.{ending}", Image.fromarray(RED).convert(mode))
    read = read_picture(path)
    assert np.array_equal(read.pixels, RED)
    assert read.size == (6, 4)
    assert read.notes == ()


def test_grey_of_8_and_of_16_bits(tmp_path):
    deep = np.full((2, 3), 32896, np.uint16)  # 128 · 257
    assert (read_picture(saved(tmp_path / "deep.png", Image.fromarray(deep))).pixels == 128).all()
    assert (read_picture(Image.new("L", (3, 2), 128)).pixels == 128).all()


def test_transparent_parts_become_white_with_a_note(tmp_path):
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    image.putpixel((1, 0), (255, 0, 0, 255))
    read = read_picture(saved(tmp_path / "a.png", image))
    assert read.pixels.tolist() == [[[255, 255, 255], [255, 0, 0]]]
    assert "white" in read.notes[0]
    array = read_picture(np.asarray(image))
    assert array.pixels.tolist() == read.pixels.tolist()
    assert array.notes == read.notes


def test_a_photograph_is_turned_upright_with_a_note(tmp_path):
    image = Image.fromarray(RED)
    exif = image.getexif()
    exif[0x0112] = 6  # rotate by 90°
    read = read_picture(saved(tmp_path / "a.jpg", image, exif=exif))
    assert read.size == (4, 6)
    assert "upright" in read.notes[0]


def test_arrays_of_whole_and_of_real_numbers():
    assert np.array_equal(read_picture(RED).pixels, RED)
    assert np.array_equal(read_picture(RED / 255).pixels, RED)
    assert read_picture(np.ones((2, 2))).pixels.tolist() == np.full((2, 2, 3), 255).tolist()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 4, 6)), "channels come last"),
        (np.zeros((0, 4, 3)), "channels come last"),
        (np.full((2, 2, 3), 7.0), "from 0 to 1"),
        (np.full((2, 2, 3), np.nan), "from 0 to 1"),
        (np.full((2, 2, 3), 300), "from 0 to 255"),
        (np.full((2, 2, 3), -1), "from 0 to 255"),
        (b"text", "got bytes"),
    ],
)
def test_what_is_no_picture(array, words):
    with pytest.raises(UsageError, match=words):
        read_picture(array)


def test_bad_files(tmp_path):
    text = tmp_path / "a.png"
    text.write_text("no picture")
    half = tmp_path / "half.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(half)
    half.write_bytes(half.read_bytes()[:3000])
    moving = tmp_path / "moving.gif"
    frames = [Image.new("L", (2, 2), shade) for shade in (0, 255)]
    frames[0].save(moving, save_all=True, append_images=frames[1:])
    for path, error, words in (
        (tmp_path / "none.png", LoadError, "no file"),
        (tmp_path, LoadError, "is not a file"),
        (text, LoadError, "not an image that Pillow knows"),
        (half, LoadError, "cannot be read"),
        (moving, UsageError, "2 frames"),
    ):
        with pytest.raises(error, match=words) as raised:
            read_picture(str(path))
        assert "\n" not in str(raised.value)


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", Image.fromarray(RED))
    monkeypatch.setattr(pictures, "MOST_PIXELS", 23)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    with pytest.raises(LoadError, match="6 x 4 pixels: at most 23"):
        read_picture(path)
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 5)  # Pillow's own limit
    with pytest.raises(LoadError, match="too many pixels"):
        read_picture(path)
