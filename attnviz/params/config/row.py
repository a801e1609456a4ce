"""How a decoder is described whose family differs from others in spellings and switches only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnviz.params.config.fields import Fields

__all__ = ["ExpertsRow", "NormKind", "Row"]

NormKind = Literal["rms", "layer", "scale", "none"]
"""RMS norm; layer norm; layer norm without bias; layer norm without parameters."""


@dataclass(frozen=True)
class ExpertsRow:
    """How a family spells its mixture of experts.

    count, active, width: fields of the experts, of those a token passes, and of their width.
    shared: field of how many shared experts of that width there are; ``shared_width`` of the
        width of a single one, which has a gate where ``shared_gate``.
    bias, router_bias: whether experts and router have biases.
    corrected: whether the router stores a correction for each expert that is not trained.
    every: field of which layers have experts: ``first_k_dense_replace`` or
        ``decoder_sparse_step`` with ``mlp_only_layers``; empty for all.
    """

    count: str = "num_local_experts"
    active: str = "num_experts_per_tok"
    width: str = "intermediate_size"
    shared: str = ""
    shared_width: str = ""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    corrected: bool = False
    every: Literal["", "first_k_dense_replace", "decoder_sparse_step"] = ""


@dataclass(frozen=True)
class Row:
    """One family of decoders.

    prefix: of its classes: ``<prefix>Model`` and ``<prefix>ForCausalLM``.
    defaults: the fields that its config class fills in.
    norm, layer_norms: the kind of its norms, and how many stand in a layer.
    qkv_bias, output_bias, ffn_bias, head_bias: fixed, or the field that says so.
    gated: a gated feed-forward part.
    query_norm: field that switches norms of queries and keys on, or fixed; with what they span:
        ``head`` (a head's width), ``all`` (all heads together), ``each`` (each head its own).
    query_norm_kind: their kind.
    windows: which layers slide where they are not listed; None where none can.
    windows_switched: they slide only where ``use_sliding_window`` says so.
    own_head_dim: a field may tell the width of a head.
    sinks: a learned sink per head.
    latent: latent attention.
    experts: its mixture of experts.
    """

    prefix: str
    defaults: Mapping[str, Any]
    norm: NormKind = "rms"
    layer_norms: int | Literal["parallel"] = 2
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    ffn_bias: bool | str = False
    head_bias: bool | str = False
    gated: bool = True
    query_norm: bool | str = False
    query_norm_span: Literal["head", "all", "each"] = "head"
    query_norm_kind: NormKind = "rms"
    windows: Callable[[int, Fields], bool] | None = None
    windows_switched: bool = False
    own_head_dim: bool = True
    sinks: bool = False
    latent: bool = False
    experts: ExpertsRow | None = None
