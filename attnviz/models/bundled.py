"""``tiny``, the trained model that ships inside the package, run in place by NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from attnviz.attention.checkpoint import open_checkpoint
from attnviz.attention.decoder_config import DecoderConfig
from attnviz.attention.family_reading import llama_stack
from attnviz.errors import LoadError, UsageError
from attnviz.models.model import (
    ObserveBlock,
    ObserveQueriesKeys,
    ObserveWeights,
    Vocabulary,
    Wants,
    beyond_training,
    frame_of,
    trained_tokens,
)
from attnviz.models.pieces import token_texts
from attnviz.records import Kind, ModelInfo, Tokens

_DIRECTORY = Path(__file__).resolve().parent.parent / "data" / "tiny"


class Bundled:
    """The bundled decoder language model; everything about it is read from its files.

    dtype: of the computation, ``float32`` or ``float64``; UsageError for another.
    seed: of random weights in place of the trained ones, as training begins; None for these.
    decoder: the model itself, for more than its weights.
    checkpoint: its opened files, for those that run it in another way. tensors: its weights by
        name, of a seed the random ones.
    """

    def __init__(self, dtype: str = "float32", *, seed: int | None = None) -> None:
        if dtype not in ("float32", "float64"):
            raise UsageError(
                f"the bundled model computes in float32 or float64, got {dtype}; choose one of them"
            )
        self.checkpoint = checkpoint = open_checkpoint(_DIRECTORY)
        config = checkpoint.config
        self.tensors = checkpoint.tensors if seed is None else _fresh(config, seed)
        self.decoder = llama_stack(config, self.tensors, dtype)
        self._trained_tokens = trained_tokens(checkpoint.metadata)
        self._info = ModelInfo(
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

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return ("self",)

    @property
    def causal(self) -> bool:
        return True

    @property
    def context(self) -> int:
        return self.decoder.shape.context

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; it puts the beginning-of-text token first."""
        path = _DIRECTORY / "tokenizer.json"
        if not path.is_file():
            raise LoadError(f"{path} was not found; install attnviz again")
        return Tokenizer.from_file(str(path))

    def encode(self, text: str, limit: int | None = None) -> Tokens:
        """The text's tokens, the beginning-of-text token first; at most ``limit`` of them."""
        encoding = self.tokenizer.encode(text)
        kept = slice(limit)
        return Tokens(
            ids=tuple(encoding.ids[kept]),
            texts=token_texts(self.tokenizer, encoding.tokens[kept]),
            special=tuple(map(bool, encoding.special_tokens_mask[kept])),
        )

    def vocabulary(self) -> Vocabulary:
        """Its plain tokens; byte-level BPE numbers them in the order of their merges."""
        added = self.tokenizer.get_added_tokens_decoder()
        plain = [id for id in range(self.decoder.shape.vocabulary) if id not in added]
        before, after = frame_of(self.encode("a"))
        return Vocabulary(np.asarray(plain), before, after, ranked=True, texts=self._texts)

    def _texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        return token_texts(self.tokenizer, [self.tokenizer.id_to_token(id) or "" for id in ids])

    def notes_for(self, tokens: Tokens) -> tuple[str, ...]:
        """What a reader must know about a run over these tokens, beside ``info.notes``."""
        return beyond_training(self._trained_tokens, tokens)

    def run(self, tokens: Tokens, wants: Wants, observe: ObserveWeights) -> None:
        """Hand over the weights (head, query, key) of each wanted layer; see ``NumpyModel``."""
        self.decoder.run(tokens.ids, wants, observe)

    def run_queries_keys(self, tokens: Tokens, wants: Wants, observe: ObserveQueriesKeys) -> None:
        """Hand over queries and keys of each wanted layer; see ``QueryKeyModel``."""
        self.decoder.run_queries_keys(tokens.ids, wants, observe)

    def run_rows(
        self,
        ids: Sequence[Sequence[int]],
        rows: int,
        wants: Wants,
        observe: ObserveBlock,
        *,
        norms: bool = False,
    ) -> None:
        """Hand over blocks of the weights of each wanted layer; see ``RowModel``."""
        self.decoder.run_rows(ids, rows, wants, observe, norms=norms)


def _fresh(config: DecoderConfig, seed: int) -> dict[str, NDArray[np.floating]]:
    """Weights as training begins: projections normal around zero, gains one, biases zero."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, NDArray[np.floating]] = {}
    for name, shape in config.tensor_shapes().items():
        if len(shape) > 1:
            drawn = generator.standard_normal(shape, np.float32)
            tensors[name] = drawn * np.float32(config.initializer_range)
        else:
            tensors[name] = np.full(shape, not name.endswith(".bias"), np.float32)
    return tensors
