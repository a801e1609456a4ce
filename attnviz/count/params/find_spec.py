"""Finds the architecture that a model's name means, from its config alone and without torch.

If its weights are on this machine, their dtypes are read from the headers of the safetensors files:
JSON with the dtype and shape of each tensor. No tensor is read.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from attnviz.count.params import specs
from attnviz.count.params.cost import MadeModel
from attnviz.count.params.decoders import Fields, UnclaimedError, read_decoder
from attnviz.count.params.encoders import (
    read_bart,
    read_encoder,
    read_t5,
    read_vision,
    read_whisper,
)
from attnviz.count.params.request import SHAPE, spec_from_options
from attnviz.count.params.specs import ModelSpec
from attnviz.errors import LoadError, UsageError
from attnviz.models.resolve import is_gguf, no_model, resolve
from attnviz.models.shapes import ABOUT_SCHEME, Shape, find_shape, nearest, shape_names
from attnviz.reading import PACKAGED, damaged, fits, read_toml

if TYPE_CHECKING:  # few models are quantised
    from attnviz.count.params.quantised import Storage

_BUNDLED = PACKAGED / "tiny"

_FLOATS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_AXES = 64  # the most axes of a tensor


class StoredWeights(NamedTuple):
    """The numbers of values and bytes that the weight files of a checkpoint contain.

    numbers: how many numbers have each floating-point dtype, the most frequent first.
    sizes: the bytes of all tensors by dtype, also of whole numbers such as quantised weights.
    """

    numbers: Mapping[str, int] = {}
    sizes: Mapping[str, int] = {}

    @property
    def quantised(self) -> bool:
        """Return True if most bytes are packed, so that one stored number is not one parameter."""
        packed = sum(size for kind, size in self.sizes.items() if kind not in self.numbers)
        return 2 * packed > sum(self.sizes.values())


class FoundSpec(NamedTuple):
    """The architecture that a model's name stands for.

    name: the requested name. source: where its numbers come from: a URL, a paper, a path.
    revision: the commit of a hub id, or None.
    config: the fields of its Hugging Face config; empty if it has none.
    spec: its description, or None if its class cannot be counted from the config; then
        ``meta_count.count_on_meta`` counts ``config``.
    architecture: the class to count; None for the config's own.
    stored: how the parameters next to the config are stored, if they are on this machine.
    made: the counts of a model without a spec, from building it or from its file.
    """

    name: str
    source: str
    revision: str | None
    config: Mapping[str, Any]
    spec: specs.ModelSpec | None
    architecture: str | None = None
    stored: StoredWeights | None = None
    made: MadeModel | None = None

    @property
    def dtype(self) -> str:
        """Return the dtype of the parameters that the config names; empty if it names none."""
        return stored_dtype(self.config)

    @property
    def cached(self) -> str:
        """Return the dtype in which its config says that keys and values are cached; else empty."""
        about = {**self.config, **quantisation_fields(self.config)[0]}
        if not about.keys() & {"kv_cache_quant_algo", "kv_cache_scheme"}:
            return ""
        from attnviz.count.params.quantised import cached_dtype

        return cached_dtype(about)

    def storage(self, counted: specs.ModelSpec | MadeModel, dtype: str) -> Storage | None:
        """Return how the model's parameters are stored; None if they are not quantised.

        counted: the parameters. dtype: of those that are not quantised.
        The bytes are those of the weight files; without files they follow from the config's scheme.
        """
        if self.made is not None and self.made.storage is not None:
            return self.made.storage
        about, nested = quantisation_fields(self.config)
        sizes = {} if self.stored is None else self.stored.sizes
        packed = self.stored is not None and self.stored.quantised
        # Weights that are packed without a word have a bit for each parameter at least.
        if not about and (not packed or 8 * sum(sizes.values()) < counted.total):
            return None
        from attnviz.count.params import quantised

        lines = tuple(quantised.StoredLine(kind, None, size) for kind, size in sizes.items())
        if not about:
            return quantised.Storage("packed", lines, buffered=True)
        if (scheme := quantised.find_scheme(about, nested)) is None:
            return None
        matrices = (
            counted.matrices
            if isinstance(counted, MadeModel)
            else tuple(quantised.matrices(counted))
        )
        planned = quantised.count_stored(scheme, matrices, counted.total, dtype)
        return planned._replace(lines=lines, buffered=True) if lines else planned


def find_spec(
    name: str, *, revision: str | None = None, offline: bool = False, shapes_first: bool = False
) -> FoundSpec:
    """Return the architecture of ``--model NAME``; no weights of a directory or hub id are fetched.

    revision: a branch, tag or commit on the hub. offline: True reads directories and the cache
        only. shapes_first: True if a bare name means a built-in model configuration even if it is a
        hub id as well.

    Raises LoadError if there is no such model, no access to it or no readable config, OfflineError
    if it is not in the cache and the network is not to be used or does not answer, UsageError for a
    revision of a directory.
    """
    if shapes_first and name in shape_names():
        return _shape(find_shape(name), name)
    if name.lower().endswith(".gguf") or is_gguf(name):
        return _gguf(name)
    source = resolve(name)
    if source.kind == "shape" and source.shape is not None:
        return _shape(source.shape, name)
    if source.kind == "own":
        return FoundSpec(name, "", None, {}, spec_from_options(name=name, d_model=64, heads=8))
    from attnviz.models.checkpoint_files import ADAPTER, local_directory, read_config

    bundled = source.kind == "bundled"
    where = str(_BUNDLED) if bundled else name

    def find(where: str, revision: str | None) -> tuple[Path, str | None]:
        if (directory := local_directory(where, revision)) is not None:
            return directory, None
        from attnviz.models.hub import find_config  # its client imports longer than all counting

        snapshot = find_config(where, revision, offline)
        return snapshot.directory, snapshot.revision

    directory, commit = find(where, revision)
    if (directory / ADAPTER).is_file():  # merged, it has as many weights as its base
        from attnviz.models.adapters import with_base  # needs NumPy

        directory, commit, _ = with_base(where, revision, find)
    config = read_config(where, directory)
    origin = "" if bundled else str(directory / "config.json")
    spec = spec_from_config(config, name=name, source=origin)
    stored = stored_weights(directory)
    if quantisation_fields(config)[0]:  # most numbers are in no dtype that the model computes in
        stored = stored._replace(numbers={})
    return FoundSpec(name, origin, commit, config, spec, stored=stored)


def spec_of_loaded(model: Any) -> FoundSpec:
    """Return the architecture of a model that Python code has loaded."""
    info, whole = model.info, getattr(model, "model", None)
    if whole is None:
        return find_spec(str(info.name))
    fields = {**whole.config.to_dict(), "architectures": [info.architecture], "dtype": info.dtype}
    fields.pop("torch_dtype", None)
    return FoundSpec(info.name, "", info.revision, fields, spec_from_config(fields, name=info.name))


def _gguf(name: str) -> FoundSpec:
    path = Path(name).expanduser()
    if not os.path.isfile(path):
        raise LoadError(f"no file {name!r} here")
    from attnviz.models.checkpoint_files import gguf_part

    if gguf_part(path):
        raise no_model(name)
    try:
        from attnviz.count.params.gguf_file import count_gguf
    except ImportError as error:
        raise LoadError("counting a GGUF file needs gguf: pip install 'attnviz[gguf]'") from error
    return FoundSpec(name, str(path), None, {"dtype": "float16"}, None, made=count_gguf(path))


def _shape(shape: Shape, name: str) -> FoundSpec:
    spec = spec_from_shape(shape)
    spec = spec and spec._replace(name=name)
    return FoundSpec(name, shape.source, None, shape.config, spec, shape.counts or None)


# Shapes of files ------------------------------------------------------------------------------


def spec_from_shape(shape: Shape) -> specs.ModelSpec | None:
    """Return the spec of a built-in configuration; None if its model class cannot be counted.

    Raises LoadError for an unknown key, with the nearest known one, or numbers that do not fit.
    """
    if shape.config:
        spec = spec_from_config(
            shape.config, name=shape.name, source=shape.source, architecture=shape.counts or None
        )
        if (wrong := misspelt_field(shape.config)) is not None:
            raise LoadError(
                f"the shape {shape.name!r} has an unknown field {wrong[0]!r}; did you mean "
                f"{wrong[1]!r}?"
            )
        return None if spec is None else spec._replace(notes=(*shape.notes, *spec.notes))
    try:
        stacks = tuple(_stack(table) for table in shape.stacks)
        tables = tuple(_made(specs.LookupTable, table) for table in shape.tables)
        matrices = tuple(_made(specs.Dense, table) for table in shape.matrices)
    except UsageError as error:
        raise LoadError(f"the shape {shape.name!r} cannot be counted: {error}") from error
    return specs.ModelSpec(shape.name, shape.source, stacks, tables, matrices, shape.notes)


def _stack(table: Mapping[str, Any]) -> specs.StackSpec:
    """Return the stack of a file's table: a ``StackSpec``, or options of the command line."""
    if "groups" in table:
        return _made(specs.StackSpec, table)
    for key in table:
        if key.replace("-", "_") not in SHAPE:
            known = [name.replace("_", "-") for name in SHAPE] if "-" in key else SHAPE
            raise UsageError(f"unknown key {key!r}{nearest(key, known)}")
    return spec_from_options(**{key.replace("-", "_"): own for key, own in table.items()}).main


def _made(kind: Any, value: Any) -> Any:
    """Return what a file's value describes, of the type ``kind``; UsageError if it is another."""
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_made(get_args(kind)[0], item) for item in value)
    for own in (kind, *get_args(kind)):
        if isinstance(value, dict) and hasattr(own, "_fields"):
            needed = set(own._fields) - own._field_defaults.keys()
            if needed <= value.keys() <= set(own._fields):
                hints = get_type_hints(own)
                return own(**{key: _made(hints[key], item) for key, item in value.items()})
    if not fits(value, kind) or (type(value) is int and value < 1):
        raise UsageError(f"{value!r} is no {getattr(kind, '__name__', kind)}")
    return value


# Stored weights -------------------------------------------------------------------------------


def stored_weights(directory: Path) -> StoredWeights:
    """Return dtypes and bytes in a directory's weight files; empty if no header can be read."""
    from attnviz.models.checkpoint_files import file_names, weight_files

    numbers, sizes = Counter[str](), Counter[str]()
    try:
        files = weight_files("", file_names(directory), directory.joinpath, False)
        tensors = [tensor for file in files for tensor in _tensors(directory / file)]
    except (LoadError, OSError):  # loading reports what is wrong; counting needs no weights
        return StoredWeights()
    for kind, shape, size in tensors:
        if not re.fullmatch("[A-Z][A-Z0-9_]{1,15}", kind):  # no dtype of safetensors
            return StoredWeights()
        sizes[_FLOATS.get(kind, kind.lower())] += size
        if kind in _FLOATS:
            numbers[_FLOATS[kind]] += math.prod(shape)
    return StoredWeights(dict(numbers.most_common()), dict(sizes.most_common()))


def _tensors(path: Path) -> Iterator[tuple[str, list[int], int]]:
    """Yield (dtype, shape, bytes) of each tensor in a file; LoadError for an invalid header."""
    from attnviz.models.checkpoint_files import tensor_header

    if not path.is_file():  # opening a pipe would wait
        raise LoadError(f"{path.name} is no file")
    with damaged(path.name):
        for tensor in tensor_header(path)[1].values():
            shape, (start, end) = tensor["shape"], tensor["data_offsets"]
            numbers = (*shape, end - start)
            if len(shape) > _AXES or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
                raise LoadError(f"{path.name} tells of tensors that cannot be")
            yield str(tensor["dtype"]), shape, end - start


# Configs --------------------------------------------------------------------------------------


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

_OF_FAMILIES = ("prefix", "classes", "sizes", "defaults", "spellings")
"""The settings of a family in ``families.toml``: the start of its class names, further ones by
purpose, default sizes in the order of its kind, default fields, and other names of fields. All
further settings are keywords for its reader."""


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
    """Return by model type the adapters of a kind of families, such as ``decoder``, or of all."""
    table, adapters = read_toml(_FAMILIES, "the families of models"), dict[str, Adapter]()
    kinds = table.pop("kinds")
    for name in table if not kind else [kind]:
        common, read = kinds[name], _READERS[name]
        for model_type, family in table[name].items():
            further = {key: value for key, value in family.items() if key not in _OF_FAMILIES}
            switches = {**common.get("switches", {}), **further}
            classes = {key: cls.format(family["prefix"]) for key, cls in common["classes"].items()}
            classes |= family.get("classes", {})
            filled = dict(zip(common.get("order", ()), family.get("sizes", ()), strict=False))
            adapters[model_type] = Adapter(
                {cls: partial(read, purpose=key, **switches) for key, cls in classes.items()},
                classes[common["assumed"]],
                {**common.get("defaults", {}), **filled, **family.get("defaults", {})},
                family.get("spellings") or common.get("spellings", {}),
            )
    return adapters


def spec_from_config(
    config: Mapping[str, Any], *, name: str = "", source: str = "", architecture: str | None = None
) -> ModelSpec | None:
    """Return the spec of a Hugging Face config; None if its model class cannot be counted.

    name: of the model. source: where the config comes from, to be shown.
    architecture: the class to count; None for the config's own, or the usual one where it names
        none: the one with the head that predicts tokens, the bare one of encoders.

    Raises LoadError for a field that should be a number and is not, or does not fit.
    """
    if (read := _read(config, name, architecture)) is None:
        return None
    return read[0]._replace(source=source, dtype=stored_dtype(config))


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
    wanted = architecture or str((config.get("architectures") or [adapter.assumed])[0])
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
