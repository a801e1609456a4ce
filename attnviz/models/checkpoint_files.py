"""Finds out which files of a checkpoint are needed, and whether they are here and complete."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from safetensors import safe_open

from attnviz.errors import LoadError, UsageError
from attnviz.models.shapes import ABOUT_SCHEME
from attnviz.models.third_party import one_line
from attnviz.reading import damage, damaged, parse_json, read_json, repeated

ADAPTER = "adapter_config.json"  # makes a directory that of an adapter, alone or beside a model

QUANTISED = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""The files that say how weights are quantised where config.json does not, and what writes them."""

_GGUF_PARTS = {
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix",
    "mmproj": "an encoder of images or sound",
    "clip": "an encoder of images or sound",
    "controlvector": "a control vector",
}
"""What GGUF files hold that are no model, by their ``general.type`` or architecture."""

_GGUF_KIND = re.compile(rb"general\.(?:type|architecture)\x08\0\0\0(.{8})", re.DOTALL)

_SAFE = ("model.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_VOCABULARY = (
    *("tokenizer.json", "*vocab*", "merges.txt", "tekken.json"),
    *("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes"),
)
_SIDE = ("generation_config.json", "*token*.json", "chat_template.jinja", *_VOCABULARY)
_LONGEST_NAME = 255
_HEADER_BYTES = 2**25  # the longest header of a safetensors file, enough for 300,000 tensors
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".ot", ".gguf")


Shapes = Mapping[str, tuple[int, ...]]  # shapes of the tensors in weight files by name
_LAYERS = re.compile(r"(num_|n_)?((hidden|encoder|decoder)_)?layers?")
_REPEATED = re.compile(
    r".*(layers?|blocks|depths?|codebooks|groups|group_num|experts|stages|block_sizes|repeats|replace|"
    r"networks|per_block|quantizers|inputs|ngram)"
)
_MOST_REPEATED = 2_000  # the most layers or other parts: building more would take minutes
_ROTARY = re.compile("(rope|rotary).*(theta|base)|^factor$")
_EXPERTS = re.compile(r"(num|n)(_routed|_local)?_experts")
_MOST_EXPERTS = 2**17  # the largest number of experts in all layers; known models have up to 20,000
_LIMITS = {"num_labels": 10**6}  # limits of further fields: a model may have many text classes
_MOST_SHARED = 128  # the most layers with shared weights; no model is known to have more


class PickleError(LoadError):
    """Raised if a checkpoint has its parameters only as pickles, which were not allowed."""


def local_directory(name: str, revision: str | None) -> Path | None:
    """Return ``name`` as a directory, or the transformer's in it, ``0_Transformer``; or None."""
    path = os.path.expanduser(name)
    if not os.path.isdir(path):
        return None
    if revision is not None:
        raise UsageError(f"{name!r} is a directory and has no revision {revision!r}")
    if not os.access(path, os.R_OK | os.X_OK):
        raise LoadError(f"the directory {name!r} may not be read")
    inner = sorted(Path(path).glob("0_*/config.json"))
    whole = os.path.isfile(os.path.join(path, "config.json"))
    return inner[0].parent if inner and not whole else Path(path)


def file_names(directory: Path) -> set[str]:
    """Return the names of the files that lie directly in ``directory``."""
    return {entry.name for entry in directory.iterdir() if entry.is_file()}


def has_vocabulary(names: Collection[str]) -> bool:
    """Return whether any of the file names is that of a tokenizer's vocabulary."""
    return any(_matches(name, _VOCABULARY) for name in names)


def side_files(names: Collection[str], with_code: bool) -> list[str]:
    """Return those of ``names`` that are a tokenizer's files, or if ``with_code`` Python files."""
    patterns = (*_SIDE, "*.py") if with_code else _SIDE
    return sorted(name for name in names if _matches(name, patterns))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    if "/" in name or name.endswith(_WEIGHTS):
        return False
    return any(fnmatch(name, pattern) for pattern in patterns)


def weight_files(
    name: str, names: Collection[str], fetch: Callable[[str], Path], allow_pickle: bool
) -> list[str]:
    """Return the names of the files with parameters: safetensors, or pickles if allowed.

    names: of all files. fetch: returns the local path of one, such as the index of the shards.
    Raises PickleError if there are only pickles, which are not allowed, LoadError if there are no
    weights or the index cannot be read.
    """
    for whole, index in (_SAFE, _PICKLED) if allow_pickle else (_SAFE,):
        if whole in names:
            return [whole]
        if index in names:
            ending, table = Path(whole).suffix, read_json(fetch(index)).get("weight_map")
            shards = list(table.values()) if isinstance(table, dict) else []
            if not shards or not all(isinstance(shard, str) for shard in shards):
                raise LoadError(f"{name!r} is damaged: {index} has no 'weight_map' of file names")
            for shard in set(shards):
                if not _is_plain(shard, ending):
                    raise LoadError(
                        f"{name!r} is refused: {index} names the file {shard!r}, expected names "
                        f"that end in {ending} of files inside its directory"
                    )
            return sorted(set(shards))
    if not allow_pickle and any(pickle in names for pickle in _PICKLED):
        raise PickleError(
            f"{name!r} has its weights only as pickles, which can run any code when they are read; "
            f"convert them to safetensors, or pass --allow-pickle if you trust their author"
        )
    others = sorted(other for other in names if other.endswith(_WEIGHTS))
    has = f"only {', '.join(others[:3])}, which cannot be read here" if others else "none"
    raise LoadError(f"{name!r} has no weights: expected {_SAFE[0]}, found {has}")


def _is_plain(file: str, ending: str) -> bool:
    """Return True if a file stays inside its directory and is valid on any file system."""
    path = PurePosixPath(file)
    return (
        path.suffix == ending
        and not path.is_absolute()
        and ".." not in path.parts
        and file.isprintable()
        and not set(file) & {"\\", ":"}
        and all(len(part.encode()) <= _LONGEST_NAME for part in path.parts)
    )


def check_weights(name: str, directory: Path, weights: list[str]) -> Shapes:
    """Return each safetensors tensor's shape by name; LoadError for missing or damaged files."""
    absent = [file for file in weights if not (directory / file).is_file()]
    if absent:
        others = f", and {len(absent) - 1} more of its {len(weights)} weight files"
        more = others if len(absent) > 1 else ""
        raise LoadError(f"{name!r} is incomplete: {absent[0]} is missing{more}")
    shapes: dict[str, tuple[int, ...]] = {}
    for path in (directory / file for file in weights if file.endswith(".safetensors")):
        try:
            with path.open("rb") as stream:
                _header_length(stream)
            with safe_open(path, framework="numpy") as file:
                names = file.keys()  # the file contains no mapping
                shapes |= {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in names}
        except damage() as error:
            raise LoadError(
                f"{name!r} is damaged: {path.name} is not a complete safetensors file "
                f"({one_line(error)}); delete {str(path.resolve())!r} and get it again"
            ) from error
    return shapes


def stored_metadata(directory: Path, weights: list[str]) -> dict[str, str]:
    """Return the metadata of a single safetensors file; empty for several files or pickles."""
    if len(weights) != 1 or not weights[0].endswith(".safetensors"):
        return {}
    with safe_open(directory / weights[0], framework="numpy") as file:
        return dict(file.metadata() or {})


def tensor_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the byte where a safetensors file's tensors begin, and its header; else LoadError."""
    with damaged(path.name), path.open("rb") as file:
        length = _header_length(file)
        header = parse_json(file.read(length), f"the header of {path.name}", _HEADER_BYTES)
        header.pop("__metadata__", None)
        return file.tell(), header


def _header_length(stream: BinaryIO) -> int:
    if (start := stream.read(8)) == b"version ":
        raise ValueError("it is a pointer of Git LFS, which git lfs pull replaces")
    if (length := int.from_bytes(start, "little")) > _HEADER_BYTES:
        raise ValueError(f"its header has {length:,} bytes")
    return length


def read_config(name: str, directory: Path) -> dict[str, Any]:
    """Return the fields of config.json; LoadError for none, or one of an absurd type or value."""
    path = directory / "config.json"
    if not path.is_file():
        files = filter(Path.is_file, sorted(directory.glob("*.gguf")))
        gguf = next((file for file in files if not gguf_part(file)), None)
        typed = f"; attnviz params {shlex.quote(str(gguf))} counts its GGUF" if gguf else ""
        inside = [*directory.glob("*/config.json"), *directory.glob(f"*/{ADAPTER}")]
        if inside:  # as a trainer leaves them
            last = max(inside, key=os.path.getmtime).parent
            typed = f"; its subdirectory {last.name!r} has one: type {shlex.quote(str(last))}"
        raise LoadError(f"{name!r} is not a checkpoint: the directory has no config.json{typed}")
    with damaged(f"the config.json of {name!r}"):
        fields: dict[str, Any] = _plain(read_json(path))
    for field, expected, fits in _FIELDS:
        if fields.get(field) is not None and not fits(fields[field]):
            raise LoadError(
                f"the config.json of {name!r} has {field} = {fields[field]!r}: expected {expected}"
            )
    _check_rotary(name, fields)
    text = fields.get("text_config")
    for own in (fields, text if isinstance(text, dict) else {}):
        if any(own.get(key) for key in ABOUT_SCHEME):
            return fields
    return fields | _beside_config(directory)


def _beside_config(directory: Path) -> dict[str, Any]:
    """Return the ``quantization_config`` in a file next to config.json, or nothing."""
    for file, method in QUANTISED.items():
        if (path := directory / file).is_file():
            fields = read_json(path)
            if method == "modelopt":
                about = fields.get("quantization")
                fields = about if isinstance(about, dict) else {}
                if fields.get("quant_algo") is None:  # only the cache
                    return {key: fields[key] for key in fields.keys() & {"kv_cache_quant_algo"}}
            return {"quantization_config": {"quant_method": method, **fields}}
    return {}


def _check_rotary(name: str, fields: Mapping[str, Any]) -> None:
    """Raise LoadError for a base or factor of rotary positions that is not above 0."""
    for key, value in fields.items():
        if isinstance(value, dict):
            _check_rotary(name, value)
        elif _ROTARY.search(str(key)) and type(value) in (int, float) and not 0 < value < 1e30:
            raise LoadError(
                f"the config.json of {name!r} has {key} = {value!r:.40}: expected a number above 0"
            )


def _plain(value: Any) -> Any:
    """Return a value with transformers' ``{"__float__": …}`` objects as infinities and NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {key: _plain(item) for key, item in value.items()}


def gguf_part(path: Path) -> str:
    """Return what a GGUF header says it holds that is no model; else nothing."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2**16)
    except OSError:  # reading it says what is wrong
        return ""
    for told in _GGUF_KIND.finditer(head):
        length = min(int.from_bytes(told[1], "little"), 40)
        kind = head[told.end() : told.end() + length].decode("latin-1")
        if kind in _GGUF_PARTS:
            return _GGUF_PARTS[kind]
    bare = re.match(rb"GGUF[\2\3]\0{11}", head) and not re.search(r"-\d{5}-of-\d{5}$", path.stem)
    return "a vocabulary without weights" if bare else ""


def check_layers(name: str, fields: Mapping[str, Any], shapes: Shapes | None = None) -> None:
    """Raise LoadError if a config has, at any depth, more layers than its files have tensors.

    Without this check each layer would be built before the first missing tensor is noticed. shapes:
    of the tensors in the files; if empty or None, a fixed limit applies.
    """
    most = max(len(shapes), _MOST_SHARED) if shapes else _MOST_REPEATED
    layers, experts = 0, 0
    for key, value in fields.items():
        field = str(key)  # a config that transformers has read numbers its labels
        if isinstance(value, dict):
            check_layers(name, value, shapes)
        if field == "attention_types" and value is not None:
            with damaged(f"attention_types in the config.json of {name!r}"):
                repeated(value, _MOST_REPEATED)
        listed = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int)]
        indices = listed == sorted(set(listed)) and len(listed) > 1  # of layers, no numbers of them
        number = max(listed) if indices else sum(listed)
        allowed = _MOST_REPEATED if _REPEATED.fullmatch(field) else _LIMITS.get(field, number)
        if number > allowed:
            raise LoadError(
                f"the config.json of {name!r} has {field} = {number:,}: expected at most "
                f"{allowed:,}"
            )
        if _LAYERS.fullmatch(field) and not isinstance(value, list):
            layers = max(layers, number)
        elif _EXPERTS.fullmatch(field):
            experts = max(experts, number)
        if layers > most:
            raise LoadError(
                f"{name!r} does not fit its config.json: that has {field} = {number:,}, and its "
                f"files hold {len(shapes or ()):,} tensors"
            )
    if layers * experts > _MOST_EXPERTS:
        raise LoadError(
            f"the config.json of {name!r} has {layers:,} layers of {experts:,} experts: expected "
            f"at most {_MOST_EXPERTS:,} of them all"
        )


_FIELDS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("model_type", "the name of a model type", lambda value: isinstance(value, str)),
    (
        "architectures",
        "a list of class names",
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    ),
    ("auto_map", "an object of class names", lambda value: isinstance(value, dict)),
    (
        "sliding_window",
        "a number of tokens",
        lambda value: not isinstance(value, int | float) or value >= 0,
    ),
    ("tokenizer_class", "the name of a class", lambda value: isinstance(value, str)),
    ("configuration_files", "none: only config.json is read", lambda value: False),
)
