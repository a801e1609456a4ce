"""``tiny``, the trained model that ships inside the package, run by NumPy alone."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import DecoderConfig, llama_stack, open_checkpoint
from attnviz.attention.family_reading import StoredParameters
from attnviz.errors import LoadError, UsageError
from attnviz.models.model import trained_tokens
from attnviz.models.stack_model import StackModel
from attnviz.reading import PACKAGED
from attnviz.records import ModelInfo

_DIRECTORY = PACKAGED / "tiny"


class Bundled(StackModel):
    """The bundled decoder language model; all its facts are read from its files.

    dtype: number type of the computation, ``float32`` or ``float64``; UsageError for another.
    seed: of random initial parameters, None for the trained ones.
    checkpoint: its opened files. tensors: its parameters by name, random ones if a seed is given.
    """

    def __init__(self, dtype: str = "float32", *, seed: int | None = None) -> None:
        if dtype not in ("float32", "float64"):
            raise UsageError(
                f"the bundled model supports float32 and float64, got {dtype}: choose one of them"
            )
        self.checkpoint = checkpoint = open_checkpoint(_DIRECTORY)
        config = checkpoint.config
        self.tensors = checkpoint.tensors if seed is None else _fresh(config, seed)
        info = ModelInfo(
            name="tiny",
            revision=checkpoint.metadata.get("revision") if seed is None else None,
            architecture="LlamaForCausalLM",
            dtype=dtype,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            weights="trained" if seed is None else "random",
            seed=seed,
            backend="numpy",
        )
        super().__init__(
            info,
            llama_stack(config, self.tensors, dtype),
            _open_tokenizer,
            ends=lambda: [config.eos],
            trained=trained_tokens(checkpoint.metadata),
            parameters=StoredParameters(sum(map(math.prod, config.tensor_shapes().values())), True),
        )


def _open_tokenizer() -> Tokenizer:
    """Return the model's tokenizer; it puts the beginning-of-text token first."""
    path = _DIRECTORY / "tokenizer.json"
    if not path.is_file():
        raise LoadError(f"{path} was not found; install attnviz again")
    return Tokenizer.from_file(str(path))


def _fresh(config: DecoderConfig, seed: int) -> dict[str, NDArray[np.floating]]:
    """Return random initial parameters by name: normal matrices, gains of one, biases of zero."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.floating]] = {}
    for name, shape in config.tensor_shapes().items():
        if len(shape) > 1:
            drawn = generator.standard_normal(shape, np.float32)
            tensors[name] = drawn * np.float32(config.initializer_range)
        else:
            tensors[name] = np.full(shape, not name.endswith(".bias"), np.float32)
    return tensors
