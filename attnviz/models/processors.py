"""Opens what makes a model's inputs of pictures and sounds: processors and feature extractors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers

from attnviz.errors import LoadError
from attnviz.models.picture_texts import without_videos
from attnviz.models.speech import plain_extractor
from attnviz.models.third_party import third_party
from attnviz.reading import read_json


def open_processor(name: str, directory: Path, trust_remote_code: bool) -> Any:
    """Return the image processor of a checkpoint's directory; LoadError without one."""
    settings = [directory / f"{kind}_config.json" for kind in ("preprocessor", "processor")]
    if not any(path.is_file() for path in settings):
        raise LoadError(
            f"{name!r} does not say how it reads images: copy preprocessor_config.json next to "
            "config.json"
        )
    with _processing(name, "image processor"):
        opened: Any = transformers.AutoImageProcessor
        return opened.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )


def open_text_processor(name: str, directory: Path, config: Any) -> Any:
    """Return a checkpoint's processor of pictures and texts; LoadError if none is known."""
    from transformers import ProcessorMixin  # only for pictures with texts: they import long
    from transformers.models.auto import processing_auto

    files_of = [directory / f"{kind}_config.json" for kind in ("processor", "preprocessor")]
    settings = [read_json(path) for path in files_of if path.is_file()]
    stated = [fields["processor_class"] for fields in settings if "processor_class" in fields]
    with _processing(name, "processor"):
        if stated:
            known = processing_auto.processor_class_from_name(str(stated[0]))
        else:
            known = processing_auto.PROCESSOR_MAPPING.get(type(config), None)
        if settings and isinstance(known, type) and issubclass(known, ProcessorMixin):
            return without_videos(known).from_pretrained(directory, local_files_only=True)
    what = (
        f"transformers {transformers.__version__} does not know its {stated[0]}"
        if stated
        else "it has no file"
    )
    raise LoadError(
        f"{name!r} does not say how it reads texts with images: {what}; copy "
        "processor_config.json and preprocessor_config.json next to config.json"
    )


def open_extractor(name: str, directory: Path, config: Any) -> Any:
    """Return the feature extractor of a Whisper checkpoint, or that of its config without one."""
    if not (directory / "preprocessor_config.json").is_file():
        return plain_extractor(config)
    with _processing(name, "feature extractor"):
        return transformers.WhisperFeatureExtractor.from_pretrained(
            directory, local_files_only=True
        )


@contextmanager
def _processing(name: str, kind: str) -> Iterator[None]:
    """Open a processor, silently; LoadError says which package it lacks."""
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
