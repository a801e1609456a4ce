"""Reads how a config says that weights are quantised, and counts their bytes from first principles.

``schemes.toml`` has the formats. A format, a width or a list of modules that is not known gives a
scheme without rules, whose bytes nobody can tell.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attnviz.count.params.config.read import quantisation_fields
from attnviz.count.params.counting.cache import byte_count
from attnviz.count.params.counting.storage import Matrix, Packing, Storage, StoredLine
from attnviz.reading import read_toml

_FORMATS = Path(__file__).with_name("schemes.toml")
_LINEAR = ("linear", "experts")
_IGNORED = (
    *("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "skip_modules"),
    "llm_int8_skip_modules",
)
_MOST_STEPS = 300_000
"""About the most steps that matching one name with all patterns of a config may take."""
_MOST_LAYERS = 500
_UNSAFE = re.compile(r"\)[*+{]|\{")


class _UnknownError(Exception):
    """Raised with the words for a scheme whose bytes cannot be counted."""


class _Names(NamedTuple):
    """A list of modules as configs write it: names or runs of their parts, globs, and regexes."""

    runs: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    def match(self, name: str) -> bool:
        parts = name.split(".")
        ends = range(len(parts) + 1)
        runs = {".".join(parts[start:end]) for end in ends for start in range(end)}
        return not self.runs.isdisjoint(runs) or any(one.match(name) for one in self.patterns)


class _Rule(NamedTuple):
    """How the modules of ``names`` are stored, all if None; ``packing`` is None if as before."""

    names: _Names | None
    packing: Packing | None


class Scheme(NamedTuple):
    """How a config says that weights are quantised.

    label: its name on the screen. rules: the first that fits a matrix says how it is stored; empty
    for a scheme that is not known. kinds: the kinds of matrices that are quantised. narrowest: the
    dtype of the narrowest quantised numbers. by_layer: whether it may differ between equal layers.
    """

    label: str
    rules: tuple[_Rule, ...] = ()
    kinds: tuple[str, ...] = _LINEAR
    narrowest: str = ""
    by_layer: bool = False


def find_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """Return how a config says that its model's weights are quantised, or None if it does not."""
    about, nested = quantisation_fields(config)
    if not about:
        return None
    method = _method(about)
    try:
        return _read(method, about, nested)
    except _UnknownError as error:
        return Scheme(str(error) or method)


def _method(about: Mapping[str, Any]) -> str:
    method = about.get("quant_method")
    if isinstance(method, str):
        return {"intel/auto-round": "auto-round"}.get(method.lower(), method.lower())
    if about.get("load_in_8bit") or about.get("load_in_4bit"):
        return "bitsandbytes"
    if "config_groups" in about:
        return "compressed-tensors"
    return "mlx" if {"bits", "group_size"} <= about.keys() else "an unnamed format"


def _read(method: str, about: Mapping[str, Any], nested: bool) -> Scheme:
    """Return the scheme of a method; raise _UnknownError if a part of it is not known.

    about: the fields of the config on it. nested: whether they are of the text part alone.
    """
    table = _table()
    ignored = [name for key in _IGNORED for name in _listed(about.get(key))]
    if method == "compressed-tensors":
        label, kinds, rules, narrowest = _compressed(about)
        text = False
    else:
        name = f"{method} {_variant(method, about)}".strip()
        row = table["formats"].get(name)
        if row is None:
            raise _UnknownError(name)
        fields = _fields(method, about)
        bits, packing = _packing(row, fields, name)
        narrowest = "float8" if row.get("float") else "int4" if bits <= 4 else "int8"
        label = row["label"] if row["label"][-1].isdecimal() else f"{row['label']} {bits}-bit"
        kinds, text = tuple(row.get("kinds", _LINEAR)), bool(row.get("text"))
        kinds += ("head",) * bool(about.get("lm_head"))
        kinds += ("head", "embedding") * bool(about.get("include_input_output_embeddings"))
        rules = [*_exceptions(method, about, row, name), _Rule(None, packing)]
    towers = table["towers"]["names"] if text or nested else []
    first = [_Rule(_names([*ignored, *towers]), None)] if ignored or towers else []
    digits = any(re.search(r"[\d\\\[]", pattern) for pattern in ignored)
    digits = digits or any(rule.names is not None for rule in rules)
    return Scheme(label, (*first, *rules), kinds, narrowest, digits)


@cache
def _table() -> dict[str, Any]:
    return read_toml(_FORMATS, "the formats of quantised weights")


def usual_names() -> dict[str, tuple[str, ...]]:
    """Return the usual names of matrices in checkpoints, by the label of their term."""
    return {label: tuple(names) for label, names in _table()["names"].items()}


# The formats ------------------------------------------------------------------------------------


def _variant(method: str, about: Mapping[str, Any]) -> str:
    """Return the part of a format's name in ``schemes.toml`` after the method."""
    match method:
        case "gptq" if about.get("checkpoint_format") == "marlin" or about.get("is_marlin_format"):
            return "marlin"
        case "bitsandbytes":
            if about.get("load_in_8bit") or about.get("_load_in_8bit"):
                return "8bit"
            return "4bit double" if about.get("bnb_4bit_use_double_quant") else "4bit"
        case "mlx":
            return str(about.get("mode") or "affine")
        case "modelopt":
            return str(about.get("quant_algo")).lower()
        case "torchao":
            kind = about.get("quant_type")
            if isinstance(kind, dict):
                default = kind.get("default")
                kind = default.get("_type") if isinstance(default, dict) else None
            return re.sub(r"_|config$", "", str(kind).lower())
    return ""


def _fields(method: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields with width and group of a format that nests them."""
    inner: Any = about
    if method == "hqq":
        inner = about.get("quant_config")
        inner = inner.get("weight_quant_params", inner) if isinstance(inner, dict) else None
    elif method == "torchao":
        kind = about.get("quant_type")
        default = kind.get("default") if isinstance(kind, dict) else None
        inner = default.get("_data") if isinstance(default, dict) else None
        inner = inner or about.get("quant_type_kwargs")
    return inner if isinstance(inner, dict) else {}


def _packing(row: Mapping[str, Any], about: Mapping[str, Any], name: str) -> tuple[int, Packing]:
    """Return the width of a number, and how a matrix is stored.

    row: the format. about: the fields of the config that may change it. name: of the format.
    """
    bits = _whole(about, name, "bits", "w_bit", "nbits") or row.get("bits", 0)
    group = _whole(about, name, "group_size", "q_group_size", least=-1)
    if bits not in row.get("widths", [row.get("bits")]):
        raise _UnknownError(f"{name} with {bits} bits")
    rows, columns = row.get("rows", 1), row.get("group", 0)
    if "group" in row and group is not None:
        columns = max(group, 0)
    block = about.get("weight_block_size")
    if block is not None:
        rows, columns = _block(block, name)
    packing = Packing(
        bits=Fraction(str(row.get("stored", {}).get(str(bits), bits))),
        rows=rows,
        columns=columns,
        block_bits=Fraction(row.get("scale", 0)) + bits * bool(row.get("zero")),
        input_bits=row.get("input", 0),
        matrix_bits=row.get("matrix", 0),
        fits=bool(row.get("fits")),
    )
    return bits, packing


def _exceptions(
    method: str, about: Mapping[str, Any], row: Mapping[str, Any], name: str
) -> Iterator[_Rule]:
    """Yield rules for single modules that a config stores in another way, or not quantised."""
    own = {"gptq": "dynamic", "auto-round": "extra_config", "hqq": "quant_config"}.get(method)
    listed = about if method == "mlx" else about.get(own or "") or {}
    if not isinstance(listed, dict):
        raise _UnknownError(f"{name} with {own} = {listed!r}")
    for module, fields in listed.items():
        left_out = fields is False or module.startswith("-:") or _plain_width(fields)
        if not left_out and not isinstance(fields, dict):
            continue  # a field of the format itself
        if method == "hqq" and module.endswith("_quant_params"):
            continue
        inner = fields.get("weight_quant_params", fields) if isinstance(fields, dict) else {}
        pattern = re.sub(r"^[+-]:", "re:", module)
        packing = None if left_out else _packing(row, {**_fields(method, about), **inner}, name)[1]
        yield _Rule(_names([pattern]), packing)


def _plain_width(fields: Any) -> bool:
    return isinstance(fields, dict) and fields.get("bits") in (16, 32)


def _compressed(
    about: Mapping[str, Any],
) -> tuple[str, tuple[str, ...], list[_Rule], str]:
    """Return label, kinds, rules and narrowest dtype of the format of compressed-tensors."""
    name = "compressed-tensors"
    groups, sparse = about.get("config_groups"), about.get("sparsity_config") or {}
    if not isinstance(groups, dict) or not groups:
        raise _UnknownError(f"{name} without config_groups")
    if not isinstance(sparse, dict) or sparse.get("format", "dense") != "dense":
        raise _UnknownError(f"{name} with sparse weights")
    rules, labels, narrowest = [], [], "float8"
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        form = str(group.get("format") or about.get("format"))
        bits, packing = _compressed_packing(form, weights)
        of_float = weights.get("type") == "float"
        narrowest = "int4" if bits <= 4 else narrowest if of_float else "int8"
        labels.append(f"{'float' if of_float else 'int'} {bits}-bit")
        targets = _listed(group.get("targets"))
        rules.append(_Rule(None if "Linear" in targets else _names(targets), packing))
    rules.sort(key=lambda rule: rule.names is None)
    words = " and ".join(dict.fromkeys(labels))
    return f"{name} {words}".strip(), (*_LINEAR, "router", "head"), rules, narrowest


def _compressed_packing(form: str, weights: Mapping[str, Any]) -> tuple[int, Packing]:
    """Return the width of a number and how a matrix is stored, by compressed-tensors.

    form: its name of how numbers are packed. weights: the fields on the weights.
    """
    name = f"compressed-tensors {form}"
    bits = _whole(weights, name, "num_bits") or 0
    packed = form.removesuffix("-quantized") in ("pack", "nvfp4-pack", "mxfp4-pack")
    known = packed or form in ("int-quantized", "float-quantized", "naive-quantized")
    if not known or not 1 <= bits <= 8:
        raise _UnknownError(f"{name} with {bits} bits" if known else name)
    group = _whole(weights, name, "group_size", least=-1) or 0
    strategy = weights.get("strategy") or ("group" if group > 0 else "tensor")
    rows, columns = {"tensor": (0, 0), "channel": (1, 0)}.get(str(strategy), (1, max(group, 0)))
    if strategy == "block":
        rows, columns = _block(weights.get("block_structure"), name)
    scale, matrix = 16, 128 if form == "pack-quantized" else 0
    if form in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
        scale, matrix = 8, 64 if form.startswith("nvfp4") else 0
    zero = bits if packed else 8
    whole = form == "pack-quantized"  # in int32: what does not fill one stays empty
    packing = Packing(
        bits=Fraction(32, 32 // bits) if whole else Fraction(bits if packed else 8),
        rows=rows,
        columns=columns,
        block_bits=Fraction(scale + zero * (weights.get("symmetric") is False)),
        input_bits=32 * (weights.get("actorder") == "group"),
        matrix_bits=matrix,
    )
    return bits, packing


def _whole(about: Mapping[str, Any], name: str, *keys: str, least: int = 1) -> int | None:
    for key in keys:
        value = about.get(key)
        if value is not None:
            if type(value) is not int or not least <= value <= 2**20:
                raise _UnknownError(f"{name} with {key} = {str(value)[:20]}")
            return value
    return None


def _block(value: Any, name: str) -> tuple[int, int]:
    """Return the outputs and inputs of a block that has its own scale."""
    if not isinstance(value, list) or len(value) != 2:
        raise _UnknownError(f"{name} with blocks of {str(value)[:20]}")
    sizes = dict(zip(("rows", "columns"), value, strict=True))
    return _whole(sizes, name, "rows") or 0, _whole(sizes, name, "columns") or 0


def _listed(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _names(listed: Iterable[str]) -> _Names:
    """Return a list of modules to match names with; raise _UnknownError if that could take long.

    Entries that begin with ``re:`` are regexes, which have to match from the start.
    """
    runs, patterns, steps = set(), [], 0
    for text in listed:
        regex = text.removeprefix("re:")
        if regex == text and "*" not in text:
            runs.add(text.removesuffix(".weight"))
            continue
        if regex == text:
            inner = r".*".join(map(re.escape, text.replace(".*", "*").split("*")))
            regex = rf"(?:.*\.)?{inner}(?:\.|$)"
        stars, groups = len(re.findall("[*+]", text)), text.count("(")
        steps += 40 ** max(stars - 1, 0) * (text.count("|") + 1) ** groups
        if len(text) > 500 or _UNSAFE.search(text) or steps > _MOST_STEPS:
            raise _UnknownError("a format with the module pattern " + text[:40])
        try:
            patterns.append(re.compile(regex))
        except re.error as error:
            raise _UnknownError("a format with the module pattern " + text[:40]) from error
    return _Names(frozenset(runs), tuple(patterns))


# Bytes ------------------------------------------------------------------------------------------


def count_stored(scheme: Scheme, matrices: Iterable[Matrix], total: int, dtype: str) -> Storage:
    """Return how the parameters of a quantised model are stored, with their bytes.

    matrices: those of the model. total: all its parameters; those outside the quantised matrices
    have the dtype ``dtype``.
    """
    if not scheme.rules:
        return Storage(scheme.label)
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    for matrix in matrices:
        one = matrix.inputs * matrix.outputs
        if scheme.by_layer and len(matrix.layers) > _MOST_LAYERS:
            return Storage(f"{scheme.label} by layer")
        layers = matrix.layers if scheme.by_layer else matrix.layers[:1]
        found = Counter(_packing_of(scheme, matrix, layer) for layer in layers)
        for packing, times in found.items():
            many = matrix.copies * (times if scheme.by_layer else len(matrix.layers))
            size = byte_count(one, dtype)
            if packing is not None:
                size = packing.bytes_of(matrix.inputs, matrix.outputs)
                label = f"{float(packing.bits):g} bits + scales"
                numbers[label] += many * one
                sizes[label] += many * size
            by_kind[matrix.kind] += many * size
    rest = total - sum(numbers.values())
    lines = [StoredLine(label, many, sizes[label]) for label, many in numbers.items()]
    lines.append(StoredLine(dtype, rest, byte_count(rest, dtype)))
    tables, experts = by_kind["embedding"], by_kind["experts"]
    return Storage(scheme.label, tuple(lines), scheme.narrowest, experts, tables)


def _packing_of(scheme: Scheme, matrix: Matrix, layer: int) -> Packing | None:
    """Return how a matrix of a layer is stored; None if it is not quantised."""
    if matrix.kind not in scheme.kinds:
        return None
    names = [name.replace("#", str(layer)) for name in matrix.names]
    for rule in scheme.rules:
        if rule.names is None or any(map(rule.names.match, names)):
            packing = rule.packing
            whole = packing is None or not packing.fits or matrix.inputs % packing.columns == 0
            return packing if whole else None
    return None
