"""A vision model in the form that the engine observes: a picture is a text of patches.

The model's own processor makes the numbers that it reads. Its tokens have ids of their own, and a
hook of the model replaces such ids by the numbers of their picture: so whatever runs a model on
token ids runs this one, and nothing else learns about pictures.
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.attention_interface import PreTrainedModel
from attnviz.models.layouts import seen_box, tower_layouts
from attnviz.models.model import ChatTemplate, Placed, Vocabulary
from attnviz.models.pictures import PictureFile, read_picture
from attnviz.models.prepare import described, moved
from attnviz.models.split import device_of
from attnviz.models.third_party import third_party
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.whole import unwrapped
from attnviz.records import Tokens
from attnviz.token_layout import TokenLayout

PIXELS = "pixel_values"
_TRIAL_SIDE = 64
# The switches of image processors that cut a picture into tiles beside the whole one.
_SPLITTING = ("do_image_splitting", "crop_to_patches")
_OF_TILES = 5  # the number of axes of the pixels of tiles: picture, tile, colour, row and column

_GRIDS = "grid_thw"  # the argument of towers that run pictures, frames and windows as one sequence
_POOLED = "use_head"  # SigLIP's switch of the head that pools its patches


@dataclass(frozen=True, eq=False)
class ReadPicture:
    """A picture as a model reads it: the file, its arguments of a batch of one, and its tokens."""

    file: PictureFile
    inputs: dict[str, Tensor]
    tokens: Tokens


@dataclass(frozen=True, eq=False, repr=False)
class PictureModel(TransformersModel):
    """A model of pictures alone; ``encode`` takes the path of a picture.

    processor: what makes the model's inputs of a picture. pooling: a head of the model with an
    attention of its own, which pools all patches; None without one. pictures: those that were
    read, by the name of their file.
    """

    processor: Any = None
    pooling: nn.Module | None = None
    pictures: dict[str, ReadPicture] = field(default_factory=dict)

    reads_text = False

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Return the tokens of a picture, by its path or by the name of one that was read.

        Raises LoadError or UsageError as ``read_picture`` does, UsageError if it must be cut,
        UnsupportedError if its layers run in parts, which only ``heads`` and ``patterns`` join.
        """
        if self.joins_calls:
            raise UnsupportedError(
                f"{self.info.name!r} reads an image in parts, which heads --image and patterns "
                "--images join: no other command shows this tower"
            )
        tokens = self.read(text).tokens
        if limit is not None and len(tokens) > limit:
            raise UsageError(f"{self.info.name!r} reads an image whole: leave out --truncate")
        return tokens

    @property
    def joins_calls(self) -> bool:
        """Return True if its attention runs once for each picture, frame or window of a layer."""
        return _GRIDS in arguments_of(self.model)

    @property
    def trial(self) -> Tokens:
        """Return the tokens of a picture for trials: the first that was read, or a grey one."""
        known = next(iter(self.pictures.values()), None)
        grey = np.full((_TRIAL_SIDE, _TRIAL_SIDE, 3), 127, np.uint8)
        return (known or self.read(PictureFile("a grey image", grey))).tokens

    def read(self, picture: str | PictureFile) -> ReadPicture:
        """Return a picture as the model reads it, and keep it for its runs."""
        picture = getattr(picture, "file", picture)  # of a name that has its picture
        known = self.pictures.get(picture if isinstance(picture, str) else picture.name)
        if known is not None and (
            isinstance(picture, str) or np.array_equal(known.file.pixels, picture.pixels)
        ):
            return known
        file = read_picture(picture) if isinstance(picture, str) else picture
        whole = {name: False for name in _SPLITTING if getattr(self.processor, name, False)}
        with third_party(f"the processor of {self.info.name!r} cannot read {file.name!r}"):
            made = self.processor(
                images=file.pixels, input_data_format="channels_last", return_tensors="pt", **whole
            )
        given = {name: value for name, value in made.items() if isinstance(value, Tensor)}
        tiled = given[PIXELS].ndim == _OF_TILES and given[PIXELS].shape[1] > 1
        if given[PIXELS].ndim == _OF_TILES:  # the first is the whole picture
            given = {name: value[:, 0] for name, value in given.items() if value.ndim > 2}
        if whole or tiled:
            note = "tiles are left out: the image is shown as the model reads it whole"
            file = replace(file, notes=(*file.notes, note))
        seen = seen_box(self.processor, *file.size)
        (layout,) = tower_layouts(self.model.config, given, [seen])
        device, kind = device_of(self.model), self.model.dtype
        inputs = {
            name: value.to(device, kind if value.is_floating_point() else None)
            for name, value in _as_arguments(given, self.model.config, layout).items()
            if name in arguments_of(self.model)
        }
        layout = replace(layout, pictures=(file.pixels,))
        ends = (other.tokens.ids[-1] + 1 for other in self.pictures.values())
        first = max(ends, default=0)
        ids = tuple(range(first, first + len(layout)))
        special = tuple(kind != "patch" for kind in layout.kinds)
        tokens = Tokens(ids, layout.names(), special, layout=layout)
        self.pictures[file.name] = read = ReadPicture(file, inputs, tokens)
        return read

    def forget(self, read: ReadPicture) -> None:
        """Let go of a picture; its tokens cannot be run any more."""
        del self.pictures[read.file.name]

    def inputs_of(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the model's arguments for the pictures (picture, token) of these ids."""
        by_first = {picture.tokens.ids[0]: picture.inputs for picture in self.pictures.values()}
        rows = [by_first[int(row[0])] for row in ids]
        return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}

    def vocabulary(self) -> Vocabulary:
        raise UnsupportedError(f"{self.info.name!r} reads images: it has no words to draw from")

    @property
    def chat_template(self) -> ChatTemplate | None:
        return None

    def placed(self, text: str, second: str | None = None, *, bare: bool = False) -> Placed:
        raise UnsupportedError(f"{self.info.name!r} reads an image, which has no characters")


def picture_model(
    name: str, model: Any, processor: Any, *, device: torch.device | None = None, **facts: Any
) -> PictureModel:
    """Return the part of a loaded model that reads pictures, with its processor.

    The model itself is not changed: what is observed is a copy that shares all of its parts.
    facts: those of ``prepare.described``, such as the revision and notes.
    Raises UnsupportedError if no part of the model reads pictures, or its tokens have no place.
    """
    model = model if device is None else moved(name, model, device)
    twin = own_copy(vision_tower(model, name))
    pooling = getattr(twin, "head", None) if getattr(twin, _POOLED, False) else None
    if pooling is not None:  # it does not look its attention up: it is run apart
        setattr(twin, _POOLED, False)
    trunk = getattr(twin, twin.base_model_prefix or "-", None)
    if isinstance(trunk, PreTrainedModel) and PIXELS in arguments_of(trunk):
        twin._modules[twin.base_model_prefix] = trunk = own_copy(trunk)
    else:
        twin.base_model_prefix, trunk = "", twin
    known = described(name, twin, None, **facts)
    opened = PictureModel(**vars(known), processor=processor, pooling=pooling)

    def pictures_for_ids(
        module: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids = named.pop("input_ids", None)
        if ids is None:
            return args, named
        for name, value in opened.inputs_of(ids).items():  # a copy may compute in other numbers
            named[name] = value.to(module.dtype) if value.is_floating_point() else value
        return args, named

    for part in {twin, trunk}:
        part.register_forward_pre_hook(pictures_for_ids, with_kwargs=True)
    return opened


def _as_arguments(given: dict[str, Tensor], config: Any, layout: TokenLayout) -> dict[str, Tensor]:
    """Return what a processor made under the names of a tower's arguments, too."""
    named = dict(given)
    if "image_grid_thw" in given:
        named |= {"hidden_states": given[PIXELS], _GRIDS: given["image_grid_thw"]}
    mask = given.get("pixel_attention_mask")
    if mask is not None and mask.ndim > 2:  # of pixels, not of patches
        high, wide = (size // config.patch_size for size in mask.shape[-2:])
        seen = torch.tensor([kind != "padding" for kind in layout.kinds])
        named["patch_attention_mask"] = seen.reshape(1, high, wide)
    return named


def own_copy(model: Any) -> Any:
    """Return a copy that shares all parts and may have hooks and parts of its own."""
    twin = copy.copy(model)
    twin._modules = dict(twin._modules)
    twin._forward_pre_hooks, twin._forward_pre_hooks_with_kwargs = OrderedDict(), OrderedDict()
    twin.main_input_name = "input_ids"
    return twin


def handed_pictures(model: Any, processor: Any) -> PictureModel:
    """Return a loaded vision model with its image processor; UsageError if it cannot be used."""
    model, name = handed(model, processor)
    reads = getattr(processor, "image_processor", processor)
    return picture_model(name, model, reads, loaded=True)


def handed(model: Any, processor: Any, kind: str = "vision") -> tuple[Any, str]:
    """Return a model without wrappers, and its name; UsageError if it cannot be used.

    kind: of the model, in words; a vision model needs a processor.
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise UsageError(
            f"expected the name of a {kind} model or a loaded transformers model, got "
            f"{type(model).__name__}"
        )
    if processor is None and kind == "vision":
        raise UsageError(
            "a loaded model needs its processor to read an image: give processor=, such as "
            "AutoImageProcessor.from_pretrained(…)"
        )
    return model, Path(str(model.name_or_path or "") or type(model).__name__).name


def vision_tower(model: Any, name: str) -> Any:
    """Return the part of a model that reads pictures alone, or itself; UnsupportedError without."""
    takes = arguments_of(model)
    if PIXELS in takes and "input_ids" not in takes:
        return model
    config = getattr(model.config, "vision_config", None)
    for module in model.modules():
        own = isinstance(module, PreTrainedModel) and module is not model
        reads = not {PIXELS, _GRIDS}.isdisjoint(arguments_of(module))
        if own and type(module.config) is type(config) and reads:
            return module
    raise UnsupportedError(
        f"{name!r} is a {type(model).__name__}, of which no part reads images alone: choose a "
        "vision model, such as ViT, CLIP, SigLIP or DINOv2"
    )


def arguments_of(module: Any) -> Sequence[str]:
    """Return the names of the arguments of a module's call."""
    return tuple(inspect.signature(module.forward).parameters)


def open_processor(name: str, directory: Path, trust_remote_code: bool) -> Any:
    """Return the image processor of a checkpoint's directory; LoadError without one."""
    settings = [directory / f"{kind}_config.json" for kind in ("preprocessor", "processor")]
    if not any(path.is_file() for path in settings):
        raise LoadError(
            f"{name!r} does not say how it reads images: copy preprocessor_config.json next to "
            "config.json"
        )
    with processing(name, "image processor"):
        opened: Any = transformers.AutoImageProcessor
        return opened.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )


@contextmanager
def processing(name: str, kind: str) -> Iterator[None]:
    """Open what reads pictures or sounds, silently; LoadError says which package it lacks."""
    try:
        with third_party(f"the {kind} of {name!r} cannot be used"):
            yield
    except LoadError as error:
        for package in ("torchvision", "num2words"):
            if package in f"{error} {error.__cause__}".lower():
                needs = f"the {kind} of {name!r} needs {package}: pip install {package}"
                raise LoadError(needs) from error
        raise


def plain_processor(model: Any) -> Any:
    """Return a processor for random weights: the whole picture in the model's size, around 0."""
    config = getattr(model.config, "vision_config", None) or model.config
    side = config.image_size
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return transformers.ViTImageProcessorPil(size={"height": height, "width": width})
