"""Vision-language models: a prompt with pictures is a text, some tokens of which are patches.

The model's own processor expands the prompt and makes what the model reads of the pictures. Image
tokens get ids beyond the vocabulary, of their own for each prompt, and a hook of the model replaces
them by the model's image token and adds the pictures: so whatever runs a model on token ids runs
this one. The part of the model that reads the pictures runs unobserved.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.models.attention_interface import unobserved
from attnviz.models.chats import finished_chat
from attnviz.models.layouts import READS_BOTH_WAYS, prompt_layout, require_layout, seen_box
from attnviz.models.model import ChatTemplate
from attnviz.models.pictures import PictureFile, PicturePrompt
from attnviz.models.prepare import described, moved
from attnviz.models.split import device_of
from attnviz.models.third_party import third_party
from attnviz.models.transformers_model import TransformersModel
from attnviz.models.vision import arguments_of, handed, own_copy, processing
from attnviz.reading import read_json
from attnviz.records import Tokens

_BY_TOKEN = "token_type_ids"  # how inputs with a number for each token of the prompt end
_BATCHES = 2  # the most batches whose pictures and tower's output are kept: those of two pictures
_TILES = ("rows", "cols")  # what some processors know of their tiles and return only when asked


@dataclass(frozen=True, eq=False)
class _Read:
    """A prompt as the model reads it: its tokens, and the model's other inputs for its pictures."""

    tokens: Tokens
    inputs: dict[str, Tensor]
    images: int


@dataclass(frozen=True, eq=False, repr=False)
class PictureTextModel(TransformersModel):
    """A model of texts with pictures: ``encode`` takes a ``PicturePrompt``, or a text alone.

    processor: of pictures and texts. read: the prompts with pictures that were read. continues:
    whether a prompt that sees itself both ways is written on. batches: what the last batches read
    of their pictures, by the numbers of their prompts.
    """

    processor: Any = None
    continues: bool = False
    read: dict[tuple[str, tuple[PictureFile, ...]], _Read] = field(default_factory=dict)
    batches: OrderedDict[tuple[int, ...], dict[str, Tensor]] = field(default_factory=OrderedDict)

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """Return the tokens of a text; of a prompt with pictures with the places of their patches.

        A model with a chat template reads the prompt as a message of the user. Raises UsageError if
        a prompt with pictures must be cut, or the model cannot read as many.
        """
        if not isinstance(text, PicturePrompt):
            return super().encode(text, limit)
        key = str(text), text.pictures
        if key not in self.read:
            self.read[key] = self._read(text)
        tokens = self.read[key].tokens
        if limit is not None and len(tokens) > limit:
            raise UsageError(
                f"the prompt and its images have {len(tokens):,} tokens, and {self.info.name!r} "
                f"reads {limit:,}: give smaller or fewer images, or a shorter text"
            )
        return tokens

    def scrambled(self, tokens: Tokens, generator: np.random.Generator) -> Tokens:
        """Return the tokens of a prompt that was read, with the pixels of its pictures mixed up."""
        known = self.read.items()
        text, pictures = next(key for key, prompt in known if prompt.tokens.ids == tokens.ids)
        mixed = [
            PictureFile(
                f"{picture.name}, mixed up",
                generator.permutation(picture.pixels.reshape(-1, 3)).reshape(picture.pixels.shape),
            )
            for picture in pictures
        ]
        return self.encode(PicturePrompt(text, mixed))

    @property
    def chat_template(self) -> ChatTemplate | None:
        source = getattr(self.processor, "chat_template", None)
        own = super().chat_template
        if not isinstance(source, str):
            return own
        return ChatTemplate(source, self._special_texts)

    def _read(self, prompt: PicturePrompt) -> _Read:
        from PIL import Image

        name, pictures = self.info.name, prompt.pictures
        text = self._written(prompt)
        images = [Image.fromarray(picture.pixels) for picture in pictures]
        begun = str(getattr(self.tokenizer, "bos_token", None) or "\0")
        framed = {"add_special_tokens": False} if text.startswith(begun) else {}
        reads = self.processor.image_processor
        if getattr(reads, "do_pan_and_scan", False):
            raise UnsupportedError(
                f"{name!r} reads crops of an image beside it (pan and scan), whose places are not "
                'known: set "do_pan_and_scan" to false in its preprocessor_config.json'
            )
        with third_party(f"the processor of {name!r} cannot read this prompt"):
            made = dict(self.processor(text=text, images=[images], return_tensors="pt", **framed))
            if hasattr(reads, "return_row_col_info"):
                asked = reads(images=[images], return_row_col_info=True)
                made |= {name: asked[name] for name in _TILES}
        ids = made.pop("input_ids")[0]
        sizes = [picture.size for picture in pictures]
        boxes = [seen_box(reads, *size) for size in sizes]
        layout = prompt_layout(self.model.config, ids, made, sizes, boxes)
        layout = replace(layout, pictures=tuple(picture.pixels for picture in pictures))
        plain, places = self._tokens(ids.tolist()), layout.names()
        image = _image_token(self.model)
        texts = tuple(name or own for name, own in zip(places, plain.texts, strict=True))
        special = tuple(
            kind == "newline" or (kind == "text" and own)
            for kind, own in zip(layout.kinds, plain.special, strict=True)
        )
        marked = torch.where(ids == image, self._first_own + len(self.read), ids)
        device, kind = device_of(self.model), self.model.dtype
        inputs = {
            name: value.to(device, kind if value.is_floating_point() else None)
            for name, value in made.items()
            if isinstance(value, Tensor)
            if name in arguments_of(self.model.base_model) and name != "attention_mask"
        }
        tokens = Tokens(tuple(marked.tolist()), texts, special, layout=layout)
        return _Read(tokens, inputs, int((ids == image).sum()))

    def _written(self, prompt: PicturePrompt) -> str:
        """Return the prompt as the model's chat template writes it, or behind its image tokens."""
        template, count = self.chat_template, len(prompt.pictures)
        token = getattr(self.processor, "image_token", "<image>")
        if template is not None:
            parts = [{"type": "image"}] * count + [{"type": "text", "text": str(prompt)}]
            chat = [{"role": "user", "content": parts}]
            text = finished_chat(self.info.name, template, chat, answering=True)
            if text.count(token) != count:
                raise UnsupportedError(
                    f"the chat template of {self.info.name!r} writes {text.count(token)} image "
                    f"tokens for {count} images"
                )
            return text
        return f"{token}\n" * (count - 1) + token + str(prompt)

    @property
    def _first_own(self) -> int:
        """Return the first id that is no token of the model's."""
        return max(self._vocabulary, _image_token(self.model) + 1)

    def with_pictures(
        self, module: Any, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return a call's arguments with its pictures; a prompt that was cut has none."""
        ids = named.get("input_ids")
        if ids is None or not bool((ids >= self._first_own).any()):
            return None
        own = ids >= self._first_own
        plain = torch.where(own, _image_token(self.model), ids)
        known, numbers = list(self.read.values()), list[int]()
        for row, marks in zip(ids, own, strict=True):
            prompts = (row[marks] - self._first_own).unique().tolist()
            if len(prompts) != 1 or int(marks.sum()) != known[prompts[0]].images:
                return args, {**named, "input_ids": plain}
            numbers += prompts
        inputs, tokens = dict(self._batch(tuple(numbers))), ids.shape[1]
        for name in inputs:
            if name.endswith(_BY_TOKEN):  # a number for each token, cut or filled up
                more, behind = max(0, tokens - inputs[name].shape[1]), int(self.continues)
                padded = torch.nn.functional.pad(inputs[name], (0, more), value=behind)
                inputs[name] = padded[:, :tokens]
        return args, {**named, "input_ids": plain, **inputs}

    def _batch(self, numbers: tuple[int, ...]) -> dict[str, Tensor]:
        """Return what is read of prompts' pictures, one object: see ``_image_features``."""
        if numbers not in self.batches:
            known = list(self.read.values())
            rows = [known[number].inputs for number in numbers]
            with torch.inference_mode(False):  # a run with gradients reads them, too
                joined = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
            self.batches[numbers] = joined
            while len(self.batches) > _BATCHES:
                self.batches.popitem(last=False)
        self.batches.move_to_end(numbers)
        return self.batches[numbers]


_TOWERS: Any = WeakIdKeyDictionary()
"""What towers put out, by the tensor of pixels that they read, by the model that has the tower, and
by how it computes."""


def _image_features(trunk: Any, pixel_values: Tensor, *args: Any, **named: Any) -> Any:
    """Return what a model's tower puts out, unobserved, and once for the same tensor of pixels.

    A run with a head of the decoder changed reads the same pictures: its tower puts out the same,
    as long as nobody writes other numbers into its parameters.
    """
    changes = sum(own._version for own in trunk.parameters() if not own.is_inference())
    way = trunk.dtype, trunk.device, torch.is_inference_mode_enabled(), changes
    known = _TOWERS.setdefault(pixel_values, WeakIdKeyDictionary()).setdefault(trunk, {})
    if way not in known:
        with unobserved():
            known[way] = type(trunk).get_image_features(trunk, pixel_values, *args, **named)
    return known[way]


def _image_token(model: Any) -> int:
    return int(model.config.image_token_id)


def require_picture_text(name: str, config: Any) -> None:
    """Raise UnsupportedError if a model does not read texts with pictures, in a known order."""
    if getattr(config, "image_token_id", None) is None:
        raise UnsupportedError(
            f"{name!r} ({config.model_type}) reads no text with images: leave the text out, or "
            "choose a vision-language model such as Qwen2.5-VL, LLaVA or SmolVLM"
        )
    require_layout(config)


def picture_text_model(
    name: str, model: Any, processor: Any, *, device: torch.device | None = None, **facts: Any
) -> PictureTextModel:
    """Return a loaded vision-language model with its processor, in the form that is observed.

    The model itself is not changed: what is observed is a copy that shares all of its parts.
    facts: those of ``prepare.described``, such as the revision and notes.
    Raises UnsupportedError if the places of its image tokens are not known.
    """
    require_picture_text(name, model.config)
    model = model if device is None else moved(name, model, device)
    twin = own_copy(model)
    trunk = twin.base_model
    if trunk is not twin:
        trunk = twin._modules[twin.base_model_prefix] = own_copy(trunk)
    trunk.get_image_features = MethodType(_image_features, trunk)
    known = described(name, twin, processor.tokenizer, **facts)
    continues = model.config.model_type in READS_BOTH_WAYS
    opened = PictureTextModel(**vars(known), processor=processor, continues=continues)
    for part in {twin, trunk}:
        part.register_forward_pre_hook(opened.with_pictures, with_kwargs=True)
    return opened


def handed_picture_texts(model: Any, processor: Any) -> PictureTextModel:
    """Return a loaded vision-language model; UsageError if it or its processor is none."""
    model, name = handed(model, processor)
    if not hasattr(processor, "tokenizer") or not hasattr(processor, "image_processor"):
        raise UsageError(
            f"expected a processor of images and texts, got {type(processor).__name__}: give "
            "processor=AutoProcessor.from_pretrained(…)"
        )
    return picture_text_model(name, model, processor, loaded=True)


def open_text_processor(name: str, directory: Path, config: Any) -> Any:
    """Return a checkpoint's processor of pictures and texts; LoadError if none is known."""
    from transformers import ProcessorMixin  # only for pictures with texts: they import long
    from transformers.models.auto import processing_auto

    files_of = [directory / f"{kind}_config.json" for kind in ("processor", "preprocessor")]
    settings = [read_json(path) for path in files_of if path.is_file()]
    stated = [fields["processor_class"] for fields in settings if "processor_class" in fields]
    with processing(name, "processor"):
        if stated:
            known = processing_auto.processor_class_from_name(str(stated[0]))
        else:
            known = processing_auto.PROCESSOR_MAPPING.get(type(config), None)
        if settings and isinstance(known, type) and issubclass(known, ProcessorMixin):
            return without_videos(known).from_pretrained(directory, local_files_only=True)
    reason = "it has no file"
    if stated:
        reason = f"transformers {transformers.__version__} does not know its {stated[0]}"
    raise LoadError(
        f"{name!r} does not say how it reads texts with images: {reason}; copy "
        "processor_config.json and preprocessor_config.json next to config.json"
    )


def without_videos(processor: Any) -> Any:
    """Return a class of processor without the part for videos, which needs torchvision."""
    kept = [name for name in processor.get_attributes() if name != "video_processor"]
    return type(processor.__name__, (processor,), {"get_attributes": classmethod(lambda _: kept)})
