"""Turns a config.json into a ``ModelSpec``, if ``families.toml`` has its model class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.count.params.decoders import Fields, UnclaimedError, read_decoder
from attnviz.count.params.encoders import (
    read_bart,
    read_encoder,
    read_t5,
    read_vision,
    read_whisper,
)
from attnviz.count.params.specs import ModelSpec
from attnviz.models.shapes import ABOUT_SCHEME
from attnviz.reading import read_toml

_FAMILIES = Path(__file__).with_name("families.toml")
_READERS: Mapping[str, Callable[..., ModelSpec]] = {
    "decoder": read_decoder,
    "gpt": read_decoder,
    "encoder": read_encoder,
    "vision": read_vision,
    "t5": read_t5,
    "bart": read_bart,
    "whisper": read_whisper,
}
"""By kind of families, what makes a spec of a config."""


class Adapter(NamedTuple):
    """The rules that turn configs of one ``model_type`` into ``ModelSpec``s.

    classes: for each supported model class the function that makes a spec of ``Fields``.
    assumed: the class that is counted where a config names none.
    defaults: the fields that its config class fills in.
    spellings: other names of a field, the family's own first.
    """

    classes: Mapping[str, Callable[..., ModelSpec]]
    assumed: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, Sequence[str]]


@cache
def families(kind: str = "") -> dict[str, Adapter]:
    """Return by model type the adapters that turn its configs into specs.

    kind: the kind of families wanted, such as ``decoder``; empty for all.
    """
    table = read_toml(_FAMILIES, "the families of models")
    kinds = table.pop("kinds")
    return {
        model_type: _adapter(_READERS[name], kinds[name], **family)
        for name, of_kind in table.items()
        for model_type, family in of_kind.items()
        if kind in ("", name)
    }


def _adapter(
    read: Callable[..., ModelSpec],
    kind: Mapping[str, Any],
    prefix: str,
    classes: Mapping[str, str] | None = None,
    sizes: Sequence[Any] = (),
    defaults: Mapping[str, Any] | None = None,
    spellings: Mapping[str, Sequence[str]] | None = None,
    **switches: Any,
) -> Adapter:
    """Return the adapter of a family, made from the family's table in ``families.toml``.

    read: makes a spec of a config. kind: the settings that families of this kind share.
    prefix: the start of the family's class names. classes: further class names by purpose.
    sizes: default sizes, in the order that ``kind`` gives. defaults: default fields.
    spellings: other names of fields. switches: keywords for ``read``.
    """
    switches = {**kind.get("switches", {}), **switches}
    named = {purpose: name.format(prefix) for purpose, name in kind["classes"].items()}
    named |= classes or {}
    filled = dict(zip(kind.get("order", ()), sizes, strict=False))
    return Adapter(
        {name: partial(read, purpose=purpose, **switches) for purpose, name in named.items()},
        named[kind["assumed"]],
        {**kind.get("defaults", {}), **filled, **(defaults or {})},
        spellings or kind.get("spellings", {}),
    )


def spec_from_config(
    config: Mapping[str, Any], *, name: str = "", source: str = "", architecture: str | None = None
) -> ModelSpec | None:
    """Return the spec of a Hugging Face config; None if its model class cannot be counted.

    name: of the model. source: where the config comes from, to be shown.
    architecture: the class to count; None for the config's own, or the usual one where it names
        none: the one with the head that predicts tokens, the bare one of encoders.

    Raises LoadError for a field that should be a number and is not, or does not fit.
    """
    read = _read(config, name, architecture)
    if read is None:
        return None
    spec, _ = read
    return spec._replace(source=source, dtype=stored_dtype(config))


def stored_dtype(config: Mapping[str, Any]) -> str:
    """Return the dtype of the parameters that a config names; empty if it names none."""
    for fields in (config, _text(config)):
        stored = fields.get("torch_dtype") or fields.get("dtype")
        if isinstance(stored, str):
            return stored
    return ""


def quantisation_fields(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a config's fields on quantised weights, and whether they are of its text part alone.

    The fields are empty if it has none.
    """
    for fields in (config, _text(config)):
        for key in ABOUT_SCHEME:
            if about := fields.get(key):
                known = isinstance(about, dict)  # what else stands there names no known scheme
                return about if known else {"quant_method": str(about)[:40]}, fields is not config
    return {}, False


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, dict) else {}


def misspelt_field(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a probably misspelt field and the field that was meant, or None."""
    read = _read(config, "", None)
    return None if read is None else read[1].misspelt()


def _read(
    config: Mapping[str, Any], name: str, architecture: str | None
) -> tuple[ModelSpec, Fields] | None:
    adapter = families().get(str(config.get("model_type")))
    if adapter is None:
        return None
    named = config.get("architectures") or [adapter.assumed]
    wanted = architecture or str(named[0])
    if wanted not in adapter.classes:
        return None
    fields = Fields(config, name, adapter.defaults, adapter.spellings)
    try:
        spec = adapter.classes[wanted](fields)
    except UnclaimedError:
        return None
    assumed = (f"the config names no class; counted as {wanted}",)
    notes = () if config.get("architectures") or architecture else assumed
    return spec._replace(architecture=wanted, notes=notes), fields
