"""Vision-language models: a prompt with pictures is a text whose tokens may be patches."""

from __future__ import annotations

from typing import Any


def without_videos(processor: Any) -> Any:
    """Return a class of processor without the part for videos, which needs torchvision."""
    kept = [name for name in processor.get_attributes() if name != "video_processor"]
    return type(processor.__name__, (processor,), {"get_attributes": classmethod(lambda _: kept)})
