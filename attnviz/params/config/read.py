"""The design behind a config.json, where the arithmetic claims its model class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnviz.params.config.families import FAMILIES
from attnviz.params.config.fields import Fields, UnclaimedError
from attnviz.params.specs import Design

__all__ = ["claimed_classes", "design_from_config", "misspelt_field", "stored_dtype"]


def claimed_classes() -> dict[str, tuple[str, ...]]:
    """The model classes that the arithmetic claims, by model type."""
    return {name: tuple(family.classes) for name, family in FAMILIES.items()}


def design_from_config(
    config: Mapping[str, Any],
    *,
    name: str = "",
    source: str = "",
    architecture: str | None = None,
) -> Design | None:
    """The design of a Hugging Face config; None where the arithmetic does not claim it.

    architecture: the class to count; None for the config's own, or the usual one where it names
        none: the one with the head that predicts tokens, the bare one of encoders.

    Raises:
        LoadError: a field that is no fitting number.
    """
    read = _read(config, name, architecture)
    if read is None:
        return None
    design, _ = read
    return replace(design, source=source, dtype=stored_dtype(config))


def stored_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that a config names for the checkpoint's weights; empty where it names none."""
    stored = config.get("torch_dtype") or config.get("dtype")
    return stored if isinstance(stored, str) else ""


def misspelt_field(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """A field that resembles one that counts and is missing, and that one; None without such."""
    read = _read(config, "", None)
    return None if read is None else read[1].misspelt()


def _read(
    config: Mapping[str, Any], name: str, architecture: str | None
) -> tuple[Design, Fields] | None:
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    named = config.get("architectures") or [family.assumed]
    wanted = architecture or str(named[0])
    if wanted not in family.classes:
        return None
    fields = Fields(config, name, family.defaults, family.spellings)
    try:
        design = family.classes[wanted](fields)
    except UnclaimedError:
        return None
    notes = () if config.get("architectures") or architecture else (_assumed(wanted),)
    return replace(design, architecture=wanted, notes=notes), fields


def _assumed(wanted: str) -> str:
    return f"the config names no class; counted as {wanted}"
