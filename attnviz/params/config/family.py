"""What is known of one model type: its classes, its defaults, its spellings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnviz.params.config.fields import Fields
from attnviz.params.specs import ModelSpec

__all__ = ["Adapter", "Reader"]

Reader = Callable[[Fields], ModelSpec]


@dataclass(frozen=True)
class Adapter:
    """One model type.

    classes: the class names that are claimed, each with what reads its design.
    assumed: the class that is counted where a config names none.
    defaults: the fields that its config class fills in.
    spellings: other names of a field, the family's own first.
    """

    classes: Mapping[str, Reader]
    assumed: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
