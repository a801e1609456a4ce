"""Reads picture files with Pillow, as what a person sees: upright, in red, green and blue.

Nothing is decoded before its header was read: a small file may claim a picture that fills the
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.errors import LoadError, UsageError
from attnviz.models.third_party import third_party

MOST_PIXELS = 50_000_000  # the most pixels of a picture: 150 MB, more than any model reads
_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")

_ORIENTATION = 0x0112  # the EXIF tag of how a camera was held; 1 is upright
_WIDE = ("I;16", "I;16B", "I;16L", "I;16N")
_DEEP = 257  # the number of 16-bit steps in one of 8 bits


@dataclass(frozen=True, eq=False)
class PictureFile:
    """A picture as a person sees it.

    name: its path as typed, or what a person calls it. pixels: (height, width, 3), from 0 to 255.
    notes: sentences on what was changed to make it so.
    """

    name: str
    pixels: NDArray[np.uint8]
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Return the width and the height in pixels."""
        height, width, _ = self.pixels.shape
        return width, height


def read_picture(source: Any, name: str = "the image") -> PictureFile:
    """Return the picture of a path, of a PIL image or of an array (height, width[, channel]).

    An array has whole numbers from 0 to 255 or other numbers from 0 to 1, in 1, 3 or 4 channels.
    name: what an image or an array without a file is called. Parts that are transparent become
    white, and a photograph is turned upright as its camera says.

    Raises LoadError without Pillow and for a file that is missing, damaged, no picture or too
    large; UsageError for several frames, or an array of another shape.
    """
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        name = repr(str(path))
        if not os.path.exists(path):
            raise LoadError(f"no file {name} here")
        if not os.path.isfile(path):
            raise LoadError(f"{name} is not a file: give an image as a PNG, JPEG or WebP file")
        with _opening(name) as image_class, image_class.open(path) as image:
            return _upright(image, str(path))
    if hasattr(source, "getbands"):  # a PIL image
        with _opening(name):
            return _upright(source, name)
    if isinstance(source, np.ndarray) or hasattr(source, "__array_interface__"):
        return _of_array(np.asarray(source), name)
    raise UsageError(
        f"expected an image as a path, a PIL image or an array (height, width, 3), got "
        f"{type(source).__name__}"
    )


class NamedPicture(str):
    """The name of a picture, in place of a text, with the picture itself."""

    file: PictureFile

    def __new__(cls, file: PictureFile) -> NamedPicture:
        made = super().__new__(cls, file.name)
        made.file = file
        return made


class PicturePrompt(str):
    """A prompt, and the pictures that stand before it."""

    pictures: tuple[PictureFile, ...]

    def __new__(cls, text: str, pictures: Iterable[PictureFile]) -> PicturePrompt:
        made = super().__new__(cls, text)
        made.pictures = tuple(pictures)
        return made


def picture_prompt(text: str, images: Any) -> PicturePrompt:
    """Return a prompt with a picture, or a list of them, each as ``read_picture`` takes it."""
    return PicturePrompt(text, _pictures(images))


def named_pictures(images: Any) -> tuple[NamedPicture, ...]:
    """Return a picture, or each of a list, under its name, in place of texts."""
    return tuple(map(NamedPicture, _pictures(images)))


def _pictures(images: Any) -> list[PictureFile]:
    given = images if isinstance(images, list | tuple) else [images]
    return [read_picture(image, f"image {at}") for at, image in enumerate(given, 1)]


def picture_files(directory: str) -> tuple[str, ...]:
    """Return the paths of a directory's pictures in order; LoadError or UsageError without any."""
    folder = Path(os.path.expanduser(directory))
    if not folder.is_dir():
        raise LoadError(f"no directory {directory!r} here: --images takes one with images in it")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)
    if not files:
        raise UsageError(f"there is no image in {directory!r}: expected {', '.join(_ENDINGS)}")
    return tuple(map(str, files))


@contextmanager
def _opening(name: str) -> Iterator[Any]:
    """Yield Pillow's module of images; its errors become a LoadError that names the picture."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise LoadError("images are read with Pillow: pip install 'attnviz[image]'") from error
    try:
        with third_party(f"the image {name} cannot be read"):
            yield Image
    except LoadError as error:
        if isinstance(error.__cause__, UnidentifiedImageError):
            raise LoadError(
                f"{name} is not an image that Pillow knows, such as PNG or JPEG"
            ) from None
        if type(error.__cause__).__name__.startswith("DecompressionBomb"):
            raise _too_large(name, "") from None
        raise


def _too_large(name: str, size: str) -> LoadError:
    return LoadError(f"{name} has {size or 'too many'} pixels: at most {MOST_PIXELS:,} are read")


def _upright(image: Any, name: str) -> PictureFile:
    """Return an opened PIL image, which was not decoded yet, as a person sees it."""
    from PIL import Image, ImageOps

    width, height = image.size
    if width * height > MOST_PIXELS:
        raise _too_large(repr(name), f"{width:,} x {height:,}")
    if not width * height:
        raise UsageError(f"{name!r} has no pixels")
    if (frames := getattr(image, "n_frames", 1)) > 1:
        raise UsageError(f"{name!r} has {frames} frames: save the one that is meant as an image")
    notes = []
    turned = image
    if image.getexif().get(_ORIENTATION, 1) != 1:
        turned = ImageOps.exif_transpose(image)
        notes.append("the image was turned upright, as its camera says")
    if turned.mode in _WIDE or turned.mode == "I":
        wide = np.asarray(turned).astype(np.float64) / _DEEP
        turned = Image.fromarray(np.clip(np.round(wide), 0, 255).astype(np.uint8))
    elif turned.mode == "F":
        raise UsageError(f"{name!r} has real numbers as pixels, whose white nobody knows")
    if "A" in turned.getbands() or "transparency" in turned.info:
        layered = turned.convert("RGBA")
        if layered.getextrema()[3][0] < 255:
            notes.append("transparent parts of the image became white")
        ground = Image.new("RGBA", layered.size, "white")
        turned = Image.alpha_composite(ground, layered)
    pixels = np.array(turned.convert("RGB"), np.uint8)
    return PictureFile(name, pixels, tuple(notes))


def _of_array(array: NDArray[Any], name: str) -> PictureFile:
    """Return an array (height, width[, channel]) as a picture."""
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise UsageError(
            f"expected the pixels of {name} as (height, width, 3), got {array.shape}: channels "
            "come last"
        )
    if array.shape[0] * array.shape[1] > MOST_PIXELS:
        raise _too_large(name, f"{array.shape[1]:,} x {array.shape[0]:,}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise UsageError(f"expected the pixels of {name} as numbers from 0 to 1, or as uint8")
        array = np.round(array * 255)
    elif array.dtype.kind not in "ui" or array.min() < 0 or array.max() > 255:
        raise UsageError(f"expected the pixels of {name} as whole numbers from 0 to 255")
    pixels, notes = array.astype(np.float64), tuple[str, ...]()
    if array.shape[2] == 4:
        alpha = pixels[..., 3:] / 255
        if alpha.min() < 1:
            notes = ("transparent parts of the image became white",)
        pixels = pixels[..., :3] * alpha + 255 * (1 - alpha)
    pixels = np.repeat(pixels, 3, 2) if pixels.shape[2] == 1 else pixels
    return PictureFile(name, np.round(pixels).astype(np.uint8), notes)
