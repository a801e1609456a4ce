"""Reads how a config says that weights are quantised, and counts their bytes.

Quantised weights are packed numbers, and the scales stored beside them. ``schemes.toml`` has the
formats. A format, a width or a list of modules that is not known gives a scheme without rules,
whose bytes nothing tells.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnviz.count.params.cache import byte_count
from attnviz.count.params.specs import ModelSpec
from attnviz.reading import read_toml

_FORMATS = Path(__file__).with_name("schemes.toml")
_QUANTISED = ("linear", "experts")
_IGNORED = (
    *("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "skip_modules"),
    "llm_int8_skip_modules",
)
_MOST_LAYERS = 500
_MOST_STEPS = 300_000  # about the most steps of matching a name with the patterns of a config
MatrixKind = Literal["linear", "experts", "router", "embedding", "head"]
"""What a matrix is for: formats quantise some of these kinds and leave others alone."""

_KINDS: Mapping[str, MatrixKind] = {
    **dict.fromkeys(("query", "key", "value", "output", "latent", "up", "gate", "down"), "linear"),
    **{kind: kind for kind in ("router", "embedding", "head")},
}
"""The kind of a matrix by the role of its term; terms of other roles are never quantised."""


class WeightMatrix(NamedTuple):
    """Equal matrices of a model, one or more in each of some layers.

    names: the names that checkpoints give it; ``#`` stands for the index of the layer.
    kind: what it is for. inputs, outputs: its widths. copies: how many a layer has, such as one for
        each expert. layers: the indices of the layers that have it.
    """

    names: tuple[str, ...]
    kind: MatrixKind
    inputs: int
    outputs: int
    copies: int = 1
    layers: Sequence[int] = (0,)


class Packing(NamedTuple):
    """The way in which a quantised matrix is stored.

    bits: of a number, fractions of a bit included. rows, columns: the outputs and inputs of a block
        that has its own scale; 0 rows for blocks of the flattened matrix, 0 columns for all inputs,
        0 for both if the matrix has one scale.
    block_bits: of everything that is stored for a block, such as its scale and zero point.
    input_bits: of what is stored for an input. matrix_bits: of what is stored for a matrix.
    fits: whether only a matrix whose inputs make whole blocks is quantised.
    """

    bits: Fraction | int
    rows: int = 1
    columns: int = 0
    block_bits: Fraction | int = 0
    input_bits: int = 0
    matrix_bits: int = 0
    fits: bool = False

    def bytes_of(self, inputs: int, outputs: int) -> int:
        """Return the bytes of a matrix with its scales, rounded up."""
        columns = self.columns or inputs
        blocks = -(-outputs // (self.rows or 1)) * -(-inputs // columns)
        if not self.rows:
            blocks = -(-inputs * outputs // columns) if self.columns else 1
        beside = blocks * self.block_bits + inputs * self.input_bits + self.matrix_bits
        return int(-(-inputs * outputs * self.bits // 8) - (-beside // 8))


class StoredLine(NamedTuple):
    """A part of the numbers of a model, all stored in one way.

    label: the way. numbers: how many; None if a file does not say. bytes: of all of them.
    """

    label: str
    numbers: int | None
    bytes: int


class Storage(NamedTuple):
    """How the parameters of a quantised model are stored.

    scheme: the name of the format. lines: the numbers by how they are stored; empty if the format
        is not known. narrowest: the dtype of the narrowest quantised numbers, empty if unknown.
    experts, tables: the bytes of all routed experts and of token tables; None if unknown.
    buffered: whether the lines contain the buffers of the model too, as files do.
    """

    scheme: str
    lines: tuple[StoredLine, ...] = ()
    narrowest: str = ""
    experts: int | None = None
    tables: int | None = None
    buffered: bool = False

    @property
    def bytes(self) -> int | None:
        """Return the bytes of all lines; None if the format is not known."""
        return sum(line.bytes for line in self.lines) if self.lines else None


def matrices(spec: ModelSpec) -> Iterator[WeightMatrix]:
    """Yield the matrices of an architecture that formats may quantise, those of layers last."""
    for part in sorted(spec.placed, key=lambda part: part.group is not None):
        term, start = part.term, "model."
        indices: Sequence[int] = (0,)
        if part.stack is not None and part.group is not None:
            start = f"{'model' if part.stack.causal else part.stack.name}.layers.#."
            layers = range(part.group.repeat) if part.group.indices is None else part.group.indices
            indices = layers[: part.group.stored]
            if part.share not in ("attention", "feed_forward"):
                continue
        if term.role in _KINDS and len(term.factors) > 1:
            *copies, inputs, outputs = term.factors
            kind: MatrixKind = "experts" if copies else _KINDS[term.role]
            if kind == "embedding":  # a row for each token, as a head has
                inputs, outputs = outputs, inputs
            known = _table()["names"].get(term.label, (term.label.replace(" ", "_"),))
            named = tuple(start + name for name in known)
            yield WeightMatrix(named, kind, inputs, outputs, math.prod(copies), indices)


# What a config says ---------------------------------------------------------------------------


class _UnknownError(Exception):
    """Raised with the words for a scheme whose bytes cannot be counted."""


class _Modules(NamedTuple):
    """Modules that a config lists: whole names between dots, and a pattern of all others."""

    plain: frozenset[str]
    pattern: re.Pattern[str]

    def contain(self, name: str) -> bool:
        """Return whether a module of this name is one of them."""
        parts = (name := _TEXT_PART.sub("", name)).split(".")
        runs = itertools.combinations(range(len(parts) + 1), 2)
        plain = any(".".join(parts[start:end]) in self.plain for start, end in runs)
        return plain or self.pattern.match(name) is not None


_TEXT_PART = re.compile(r"language_model\\?\.")  # in names of models of texts and images alone
_Rule = tuple[_Modules, Packing | None]  # modules, and how they are stored; None: plain


class Scheme(NamedTuple):
    """The way in which a model's weights are quantised, as its config describes it.

    label: its name on the screen. rules: the first that matches says how a matrix is stored; empty
        for a scheme that is not known. kinds: the kinds of matrices that are quantised.
    narrowest: the dtype of the narrowest quantised numbers.
    """

    label: str
    rules: tuple[_Rule, ...] = ()
    kinds: tuple[str, ...] = _QUANTISED
    narrowest: str = ""


def find_scheme(about: Mapping[str, Any], nested: bool) -> Scheme | None:
    """Return the quantisation in the result of ``quantisation_fields``; None if it has none."""
    try:
        return _read(about, nested)
    except _UnknownError as error:
        return Scheme(str(error))


def cached_dtype(about: Mapping[str, Any]) -> str:
    """Return the dtype in which a config says that keys and values are cached, or nothing.

    about: the fields of its quantisation. A way that is not known is returned as it is written.
    """
    scheme = _dict(about.get("kv_cache_scheme"))
    named = about.get("kv_cache_quant_algo")
    if scheme and not named:
        named = f"{scheme.get('type') or 'int'}{scheme.get('num_bits') or 8}"
    written = str(named or "none")[:40].lower()
    return _CACHED.get(written, written)


_CACHED = {"none": "", "fp8": "float8", "float4": "nvfp4"}
_CACHED |= {name: name for name in ("float8", "int8", "int4", "nvfp4")}


@cache
def _table() -> dict[str, Any]:
    return read_toml(_FORMATS, "the formats of quantised weights")


def _read(about: Mapping[str, Any], nested: bool) -> Scheme | None:
    """Return the scheme of a config's fields; raise _UnknownError if a part of it is not known."""
    method, labels, narrowest = _method(about), [], "float8"
    rules: list[_Rule] = []
    row: Mapping[str, Any] = {}
    for variant, targets, fields in _variants(method, about):
        name = f"{method} {variant}".strip()
        row = _table()["formats"].get(name)
        if row is None:
            raise _UnknownError(name)
        bits, packing = _packing(row, fields, name)
        rules += [*_exceptions(method, about, row, name), (_names(targets), packing)]
        labels.append(row["label"].format(bits))
        narrowest = "int8" if narrowest != "int4" and not row.get("float") else narrowest
        narrowest = "int4" if bits <= 4 else narrowest
    if not rules:  # only activations or the cache
        return None
    ignored = [name for key in _IGNORED for name in _listed(about.get(key))]
    ignored += _table()["towers"]["names"] if row.get("text") or nested else []
    kinds = (*row.get("kinds", _QUANTISED), *["head"] * bool(about.get("lm_head")))
    kinds += ("head", "embedding") * bool(about.get("include_input_output_embeddings"))
    label = " and ".join(dict.fromkeys(labels))
    return Scheme(label, ((_names(ignored), None), *rules), kinds, narrowest)


def _method(about: Mapping[str, Any]) -> str:
    if isinstance(method := about.get("quant_method"), str):
        method = method.lower().removeprefix("intel/")
        return "modelopt" if method.startswith("modelopt_") else method
    if "quant_algo" in about:
        return "modelopt"
    if about.get("load_in_8bit") or about.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in about:
        return "compressed-tensors"
    return "mlx" if {"bits", "group_size"} <= about.keys() else "an unnamed format"


def _variants(
    method: str, about: Mapping[str, Any]
) -> Iterator[tuple[str, list[str], Mapping[str, Any]]]:
    """Yield (variant, names of modules, fields with width and group) of a method."""
    variant, inner, every = "", about, ["re:"]
    match method:
        case "compressed-tensors":
            if _dict(about.get("sparsity_config")).get("format", "dense") != "dense":
                raise _UnknownError(f"{method} with sparse weights")
            groups = [_dict(group) for group in _dict(about.get("config_groups")).values()]
            listed = [(_listed(group.get("targets")), group) for group in groups]
            for targets, group in sorted(listed, key=lambda pair: "Linear" in pair[0]):
                if weights := _dict(group.get("weights")):
                    form = str(group.get("format") or about.get("format"))
                    weights = {**weights, "activations": group.get("input_activations")}
                    yield form, every if "Linear" in targets else targets, weights
            return
        case "modelopt" if layers := _dict(about.get("quantized_layers")):
            ways = [_dict(way) for way in layers.values()]
            for way in {json.dumps(way, sort_keys=True): way for way in ways}.values():
                named = [name for name, own in layers.items() if own == way]
                yield str(way.get("quant_algo")).lower(), named, way
            return
        case "gptq":
            marlin = about.get("checkpoint_format") == "marlin" or about.get("is_marlin_format")
            variant = "marlin" if marlin else variant
            chosen = about.get("modules_in_block_to_quantize")  # a list of lists
            every = [name for names in chosen or () for name in _listed(names)] or every
        case "fp8" if about.get("expert_dtype", "fp8") != "fp8" or about.get("modules_to_convert"):
            variant = "with other experts or modules"
        case "bitsandbytes":
            variant = "4bit double" if about.get("bnb_4bit_use_double_quant") else "4bit"
            variant = "8bit" if about.get("load_in_8bit") or about.get("_load_in_8bit") else variant
        case "mlx":
            variant = str(about.get("mode") or "affine")
        case "modelopt":
            if about.get("quant_algo") is None:  # only the cache
                return
            variant = str(about["quant_algo"]).lower()
        case "torchao":
            default = _dict(_dict(about.get("quant_type")).get("default"))
            kind = default.get("_type") or about.get("quant_type")
            variant = re.sub(r"_|config$", "", str(kind).lower())[:40]
            inner = _dict(default.get("_data")) or _dict(about.get("quant_type_kwargs"))
        case "hqq":
            quantised = _dict(about.get("quant_config"))
            inner = _dict(quantised.get("weight_quant_params")) or quantised
    yield variant, every, inner


def _packing(row: Mapping[str, Any], about: Mapping[str, Any], name: str) -> tuple[int, Packing]:
    """Return the width of a number, and how the format ``name`` stores a matrix."""

    def whole(value: Any, least: int = 1) -> int:
        if type(value) is not int or not least <= value <= 2**20:
            raise _UnknownError(f"{name} with {str(value)[:20]} as width or block")
        return value

    given = [about[key] for key in ("bits", "num_bits", "w_bit", "nbits") if about.get(key)]
    bits = whole(given[0] if given else row.get("bits"))
    if bits not in row.get("widths", [row.get("bits")]):
        raise _UnknownError(f"{name} with {bits} bits")
    rows, columns = row.get("rows", 1), row.get("group", 0)
    for key in ("group_size", "q_group_size"):
        if "group" in row and about.get(key) is not None:
            columns = max(whole(about[key], -1), 0)
    rows, columns = {"tensor": (0, 0), "channel": (1, 0)}.get(
        str(about.get("strategy")), (rows, columns)
    )
    block = about.get("weight_block_size") or about.get("block_structure")
    if block is not None:
        if not isinstance(block, list) or len(block) != 2:
            raise _UnknownError(f"{name} with blocks of {str(block)[:20]}")
        rows, columns = map(whole, block)
    zero = row.get("zero") or about.get("symmetric") is False
    inputs = about.get("activations")
    static = isinstance(inputs, dict) and inputs.get("dynamic") is not True
    packing = Packing(
        bits=Fraction(row.get("stored", {}).get(str(bits), bits)),
        rows=rows,
        columns=columns,
        block_bits=Fraction(row.get("scale", 0)) + bits * bool(zero),
        input_bits=row.get("input", 32 * (about.get("actorder") == "group")),
        matrix_bits=row.get("matrix", 0) + row.get("static", 0) * static,
        fits=bool(row.get("fits")),
    )
    return bits, packing


def _exceptions(
    method: str, about: Mapping[str, Any], row: Mapping[str, Any], name: str
) -> Iterator[_Rule]:
    """Yield rules for single modules that a config stores in another way, or not quantised."""
    own = {"gptq": "dynamic", "auto-round": "extra_config", "hqq": "quant_config"}.get(method, "")
    for module, fields in _dict(about if method == "mlx" else about.get(own)).items():
        inner = _dict(_dict(fields).get("weight_quant_params")) or _dict(fields)
        plain = fields is False or module.startswith("-:") or inner.get("bits") in (16, 32)
        if plain or (inner and not module.endswith("_quant_params")):
            packing = None if plain else _packing(row, {**about, **inner}, name)[1]
            yield _names([re.sub(r"^[+-]:", "re:", module)]), packing


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _names(listed: Iterable[str]) -> _Modules:
    """Return the modules of a list of names, ends of names, globs, and regexes after ``re:``.

    Raises _UnknownError if matching could take long."""
    plain, runs, regexes, steps = set[str](), [r"(?!)"], [r"(?!)"], 0
    for text in (_TEXT_PART.sub("", entry) for entry in listed):
        regex = text.removeprefix("re:")
        if regex != text:
            regexes.append(regex)
            stars, groups = len(re.findall("[*+]", regex)), regex.count("(")
            steps += 40 ** max(stars - 1, 0) * (regex.count("|") + 1) ** groups
        elif "*" in text:
            runs.append(".*".join(map(re.escape, text.replace(".*", "*").split("*"))))
            steps += 40 ** max(text.count("*") - 1, 0)
        else:
            plain.add(text)
        if len(text) > 500 or steps > _MOST_STEPS or re.search(r"\)[*+{]|\{", regex):
            raise _UnknownError(f"a format with the modules {text[:40]}")
    try:
        globs = rf"(?:^|.*\.)(?:{'|'.join(runs)})(?:\.|$)"
        return _Modules(frozenset(plain), re.compile(rf"{globs}|(?:{'|'.join(regexes)})"))
    except re.error as error:
        raise _UnknownError(f"a format with the modules {regexes[-1][:40]}") from error


# Bytes ------------------------------------------------------------------------------------------


def count_stored(
    scheme: Scheme, matrices: Iterable[WeightMatrix], total: int, dtype: str
) -> Storage:
    """Return how the parameters of a quantised model are stored, with their bytes.

    matrices: those of the model. total: all its parameters; those outside the quantised matrices
    have the dtype ``dtype``.
    """
    if not scheme.rules:
        return Storage(scheme.label)
    numbers, sizes, by_kind = Counter[str](), Counter[str](), Counter[str]()
    for matrix in matrices:
        if len(matrix.layers) > _MOST_LAYERS:
            return Storage(f"{scheme.label} in {len(matrix.layers):,} layers")
        area = matrix.inputs * matrix.outputs
        packings = Counter(_packing_of(scheme, matrix, layer) for layer in matrix.layers)
        for packing, layers in packings.items():
            many, size = layers * matrix.copies, byte_count(area, dtype)
            if packing is not None:
                size = packing.bytes_of(matrix.inputs, matrix.outputs)
                label = f"{float(packing.bits):g} bits + scales"
                numbers[label] += many * area
                sizes[label] += many * size
            by_kind[matrix.kind] += many * size
    rest = total - numbers.total()
    lines = [StoredLine(label, many, sizes[label]) for label, many in numbers.items()]
    lines.append(StoredLine(dtype, rest, byte_count(rest, dtype)))
    tables, experts = by_kind["embedding"], by_kind["experts"]
    return Storage(scheme.label, tuple(lines), scheme.narrowest, experts, tables)


def _packing_of(scheme: Scheme, matrix: WeightMatrix, layer: int) -> Packing | None:
    """Return how a matrix of a layer is stored; None if it is not quantised."""
    if matrix.kind not in scheme.kinds:
        return None
    names = [name.replace("#", str(layer)) for name in matrix.names]
    for listed, packing in scheme.rules:
        if any(map(listed.contain, names)):
            partial = packing and packing.fits and matrix.inputs % packing.columns
            return None if partial else packing
    return None
