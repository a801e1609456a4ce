"""The small decoder on disk: its configuration, and a Hugging Face Llama directory of it.

Its shape is Llama's architecture (Touvron et al. 2023, section 2.2). The directory holds
``config.json``, as transformers 4 or 5 write it, ``model.safetensors``, ``tokenizer.json`` and
``tokenizer_config.json``; transformers' ``LlamaForCausalLM`` and ``AutoTokenizer`` load it as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from attnviz.attention.families import LLAMA, NotUnderstoodError
from attnviz.attention.family_reading import Shapes, by_role, checkpoint_layout, expected_tensors
from attnviz.attention.numpy_stack import LazyTensors, NumpyStack, StackShape
from attnviz.errors import LoadError, UsageError
from attnviz.reading import read_json

GROWING = ("layers", "d_model", "head_dim", "d_ff")
"""The sizes that ``torch_decoder.grown`` can enlarge in a trained decoder."""

LLAMA_PROJECTIONS = {
    "query_projection": "q_proj",
    "key_projection": "k_proj",
    "value_projection": "v_proj",
    "output_projection": "o_proj",
}
"""The projections' names in ``MultiHeadAttention``, and the names in Llama checkpoints."""


@dataclass(frozen=True)
class DecoderConfig:
    """The configuration of a decoder: all sizes and settings that its computation depends on.

    vocabulary: number of tokens in the vocabulary.
    d_model: width of the residual stream; a multiple of ``heads``, as Llama demands.
    layers, heads, kv_heads: ``heads // kv_heads`` query heads share a key/value head.
    head_dim: width of one head; even, and need not equal ``d_model / heads``.
    d_ff: width inside the gated feed-forward.
    context: the longest sequence of tokens that the decoder accepts.
    norm_eps: added to the mean square under the norm's root.
    rope_theta: base of the rotary wavelengths.
    tied: whether the vocabulary projection is the embedding.
    attention_bias, mlp_bias: whether the projections of attention and feed-forward have biases.
    attention_dropout: share of attention weights dropped in training, in [0, 1).
    initializer_range: standard deviation of initial parameters.
    bos, eos: ids of the tokens that begin and end a text, None if there is none.

    Raises UsageError if the sizes do not fit together.
    """

    vocabulary: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    context: int = 2048
    norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "heads", "kv_heads", "context", *GROWING):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.d_model % self.heads:
            raise UsageError(f"d_model {self.d_model} is not a multiple of {self.heads} heads")
        if self.heads % self.kv_heads:
            raise UsageError(
                f"{self.heads} query heads cannot share {self.kv_heads} key/value heads evenly"
            )
        if self.head_dim % 2:
            raise UsageError(f"head_dim must be even for rotary positions, got {self.head_dim}")
        if self.rope_theta <= 0:
            raise UsageError(f"rope_theta must be above 0, got {self.rope_theta}")
        if not 0 <= self.attention_dropout < 1:
            raise UsageError(f"attention_dropout must be in [0, 1), got {self.attention_dropout}")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the name and shape of every tensor of a Llama checkpoint of this configuration."""
        _, shapes = expected_tensors(LLAMA, vars(self), {**vars(self), "embedding": self.d_model})
        named = {f"model.{name}": shape for name, shape in shapes.items()}
        return named if self.tied else {**named, "lm_head.weight": (self.vocabulary, self.d_model)}

    def require_tensors(self, tensors: Mapping[str, NDArray[np.floating]]) -> None:
        """Raise ValueError unless ``tensors`` have the names and shapes of ``tensor_shapes``."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if wrong := sorted(shapes.items() ^ self.tensor_shapes().items()):
            raise ValueError(f"the tensors are not those of the configuration: {wrong}")


def require_growth(small: DecoderConfig, large: DecoderConfig) -> None:
    """Raise UsageError if ``torch_decoder.grown`` cannot enlarge ``small`` to ``large``.

    Layers, d_model, head_dim and d_ff may grow, head_dim by a whole factor, so that every rotary
    wavelength of the small decoder is one of the large decoder's; all else must be equal.
    """
    for name in GROWING:
        before, after = getattr(small, name), getattr(large, name)
        if before > after:
            raise UsageError(f"{name} must not shrink, got {before:,} and then {after:,}")
    if large.head_dim % small.head_dim:
        raise UsageError(
            f"head_dim must grow by a whole factor, got {small.head_dim} and then {large.head_dim}"
        )
    sizes = {name: getattr(large, name) for name in GROWING}
    if replace(small, **sizes) != large:
        raise UsageError(f"only {', '.join(GROWING)} may grow")


def config_from_llama(fields: Mapping[str, Any], shape: StackShape) -> DecoderConfig:
    """Return the configuration of a Llama ``config.json`` with these sizes, or raise UsageError."""
    sizes = ("vocabulary", "layers", "heads", "kv_heads", "head_dim", "context", "norm_eps")
    eos = fields.get("eos_token_id")
    return DecoderConfig(
        **{name: getattr(shape, name) for name in sizes},
        d_model=fields["hidden_size"],
        d_ff=fields["intermediate_size"],
        rope_theta=10_000.0 if shape.rotary is None else shape.rotary.theta,
        tied=fields.get("tie_word_embeddings", False),
        attention_bias=fields.get("attention_bias", False),
        mlp_bias=fields.get("mlp_bias", False),
        attention_dropout=float(fields.get("attention_dropout", 0)),
        initializer_range=float(fields.get("initializer_range", 0.02)),
        bos=fields.get("bos_token_id"),
        eos=tuple(eos) if isinstance(eos, list) else eos,
    )


def config_to_llama(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """Return the fields of a Llama ``config.json``. dtype: the number type of the tensors."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.d_ff,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        # transformers 5 reads the first, 4 the second
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "attention_dropout": config.attention_dropout,
        "initializer_range": config.initializer_range,
        "bos_token_id": config.bos,
        "eos_token_id": list(config.eos) if isinstance(config.eos, tuple) else config.eos,
        "dtype": dtype,
    }


# The directory -----------------------------------------------------------------------------------

StoredType = Literal["float16", "float32"]

_STORED_TYPES = {"F16", "F32"}


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint directory with every tensor of its configuration, in the right shape.

    tensors: the tensors by Llama's names, each read from the file at its first access. metadata:
        further strings in the safetensors header; ``revision`` identifies the tensors' content.
    """

    directory: Path
    config: DecoderConfig
    tensors: Mapping[str, NDArray[np.floating]]
    metadata: Mapping[str, str]


def open_checkpoint(directory: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint directory; raise LoadError, naming file and tensor, for what is damaged."""
    directory = Path(directory)
    config_path, path = directory / "config.json", directory / "model.safetensors"
    for needed in (config_path, path):
        if not needed.exists():
            raise LoadError(f"{needed} was not found; a model directory must hold it")
    fields = read_json(config_path)
    try:
        file: Any = safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise LoadError(
            f"{path} is not a complete safetensors file ({error}); fetch or save it again"
        ) from error
    names = file.keys()  # the file contains no mapping
    slices = {name: file.get_slice(name) for name in names}
    for name, stored in slices.items():
        if stored.get_dtype() not in _STORED_TYPES:
            raise LoadError(f"{path}: the tensor {name} is stored as {stored.get_dtype()}")
    try:
        shapes = {name: tuple(stored.get_shape()) for name, stored in slices.items()}
        config = read_decoder(fields, shapes)
    except LoadError as error:
        raise LoadError(f"{directory}: {error}") from error
    return Checkpoint(
        directory, config, LazyTensors(slices, file.get_tensor), dict(file.metadata() or {})
    )


def save_checkpoint(
    directory: str | os.PathLike[str],
    config: DecoderConfig,
    tensors: Mapping[str, NDArray[np.floating]],
    tokenizer: str,
    *,
    dtype: StoredType = "float32",
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Write a checkpoint directory, all of its files or none, and return its revision.

    tensors: every tensor of ``config.tensor_shapes()``; ValueError if names or shapes differ.
    tokenizer: the content of a ``tokenizer.json``. dtype: the stored number type; UsageError for a
    number too large for it. metadata: stored with the tensors, ``format`` and ``revision`` added.
    """
    # Imported late: reading does not need it.
    from safetensors.numpy import save

    directory = Path(directory)
    config.require_tensors(tensors)
    stored: dict[str, NDArray[np.floating]] = {}
    for name, tensor in tensors.items():
        largest = np.abs(tensor).max()
        if not largest <= np.finfo(dtype).max:  # NaN fails this test too
            raise UsageError(
                f"the tensor {name} holds {largest}, which {dtype} cannot store: float32 may, or "
                "train with a smaller learning rate"
            )
        stored[name] = np.ascontiguousarray(tensor, dtype=dtype)
    revision = tensor_revision(stored)
    # Other programs refuse a file that does not name its framework.
    header = {**(metadata or {}), "format": "pt", "revision": revision}
    files = {
        "tokenizer.json": tokenizer.encode(),
        "tokenizer_config.json": _json(_tokenizer_config(config, tokenizer)),
        "model.safetensors": _in_order(save(stored, metadata=header)),
        "config.json": _json(config_to_llama(config, dtype)),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_together(directory, files)
    except OSError as error:
        raise LoadError(f"{directory} cannot be written: {error.strerror}") from error
    return revision


def tensor_revision(tensors: Mapping[str, NDArray[np.floating]]) -> str:
    """Return a digest of tensors: 12 hexadecimal digits of a SHA-256 over them, sorted by name."""
    # Imported late: reading does not need it.
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()[:12]


def _tokenizer_config(config: DecoderConfig, tokenizer: str) -> dict[str, Any]:
    """Return the tokenizer_config.json that lets transformers use ``tokenizer`` unchanged."""
    added = {token["id"]: token["content"] for token in json.loads(tokenizer)["added_tokens"]}
    eos = config.eos[0] if isinstance(config.eos, tuple) else config.eos
    named = {"bos_token": added.get(config.bos), "eos_token": added.get(eos)}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context,
        "clean_up_tokenization_spaces": False,
        **{name: content for name, content in named.items() if content is not None},
    }


def _in_order(content: bytes) -> bytes:
    """Return a safetensors file with sorted metadata, which the library writes in any order.

    It begins with the length of its JSON header, padded to a multiple of eight bytes.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _write_together(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write all files under temporary names, then rename them: a reader meets none half written."""
    written: dict[Path, Path] = {}
    try:
        for name, content in files.items():
            temporary = directory / f".{name}.{os.getpid()}.tmp"
            written[temporary] = directory / name
            temporary.unlink(missing_ok=True)
            with temporary.open("xb") as file:  # never through an existing link
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for temporary, path in written.items():
            os.replace(temporary, path)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)


def read_decoder(fields: Mapping[str, Any], stored: Shapes) -> DecoderConfig:
    """Return the configuration of what ``save_checkpoint`` wrote; LoadError for anything else."""
    try:
        layout = checkpoint_layout(fields, stored)
        config = config_from_llama(fields, layout.shape)
        expected = config.tensor_shapes()
        for name in sorted(stored.keys() - expected.keys()):
            raise NotUnderstoodError(f"the tensor {name} has no place")
        if checkpoint_layout(config_to_llama(config, "float32"), expected) != layout:
            raise NotUnderstoodError("config.json asks for more than a plain Llama")
    except (NotUnderstoodError, UsageError) as error:
        raise LoadError(str(error)) from error
    return config


def llama_stack(
    config: DecoderConfig,
    tensors: Mapping[str, NDArray[np.floating]],
    dtype: DTypeLike = np.float32,
) -> NumpyStack:
    """Return a NumPy decoder over tensors by Llama's names, each read when it is first needed."""
    layout = checkpoint_layout(config_to_llama(config, "float32"), config.tensor_shapes())
    return NumpyStack(layout.shape, by_role(tensors, layout.parts), dtype)
