"""Which checkpoints ``NumpyStack`` can run: one description for each family, no code.

A description says how ``config.json`` calls the sizes, which of its settings are computed and which
say nothing about the forward pass, and how the tensors of each role are called. A checkpoint whose
config has any other field, or another value, is not understood; neither is one with a tensor that
has no place.

To add a family: copy the nearest one, change what differs, and add a small config of it to
``tests/attention/test_families.py``, which holds its weights against transformers'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from attnviz.attention.functional import Rotary
from attnviz.attention.numpy_stack import Activation, StackShape


class NotUnderstoodError(Exception):
    """What of a checkpoint no description covers, in words."""


_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""What transformers calls them."""

_SILENT = {
    *("architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version"),
    *("torch_dtype", "dtype", "use_cache", "initializer_range", "gradient_checkpointing"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id"),
    *("decoder_start_token_id", "task_specific_params", "finetuning_task", "problem_type"),
    *("id2label", "label2id", "return_dict", "output_attentions", "output_hidden_states"),
    *("tie_word_embeddings", "attention_dropout", "pretraining_tp", "_commit_hash"),
}
"""Fields of every family that say nothing about the forward pass of attention."""

_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
    "tf_legacy_loss": (False,),
    "use_bfloat16": (False,),
    "torchscript": (False,),
}
"""Fields of every family, and the values with which the computation is the plain one."""


@dataclass(frozen=True)
class Family:
    """How a checkpoint of one architecture is read.

    model_types: as ``config.json`` says them.
    sizes: our names, such as ``layers``, and the config's fields; behind ``=`` what holds where
        the field is missing or null: a number, or other sizes as in ``d_model/heads``.
    tensors: role and stored name, with ``N`` for the layer. Roles that share a name are stacked in
        one tensor, one below the other, in the order in which they stand here.
    prefixes: what may stand before all of the names.
    norm, order, causal: see ``StackShape``. norm_eps: the field of it.
    activation: the field of that of the feed-forward.
    biases: roles, and whether they have one: always, or where a field says so.
    rotary: whether query and key are turned by position.
    first_position: the row of learned positions that the first token has.
    transposed: whether the linear maps are stored (in, out), as GPT-2's ``Conv1D`` does.
    by_head: whether stacked queries, keys and values alternate head by head.
    settings: further fields, and the values with which the computation is the one described; a
        missing field has the first of them.
    silent: further fields that say nothing about the attention.
    unused: what else may be stored, as a pattern of names: heads, and buffers of older versions.
    """

    model_types: tuple[str, ...]
    sizes: Mapping[str, str]
    tensors: Mapping[str, str]
    prefixes: tuple[str, ...]
    norm: Literal["rms", "layer"]
    order: Literal["before", "after", "parallel"]
    norm_eps: str
    activation: str
    causal: bool
    biases: Mapping[str, bool | str]
    unused: str
    rotary: bool = False
    first_position: int = 0
    transposed: bool = False
    by_head: bool = False
    settings: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()


_LINEAR = ("query", "key", "value", "output", "gate", "up", "down")
_ATTENTION, _FEED_FORWARD = _LINEAR[:4], _LINEAR[4:]

_LLAMA = Family(
    model_types=("llama",),
    sizes={
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads=heads",
        "d_model": "hidden_size",
        "head_dim": "head_dim=d_model/heads",
        "d_ff": "intermediate_size",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings=2048",
    },
    tensors={
        "tokens": "embed_tokens",
        "layers.N.attention_norm": "layers.N.input_layernorm",
        "layers.N.query": "layers.N.self_attn.q_proj",
        "layers.N.key": "layers.N.self_attn.k_proj",
        "layers.N.value": "layers.N.self_attn.v_proj",
        "layers.N.output": "layers.N.self_attn.o_proj",
        "layers.N.feed_norm": "layers.N.post_attention_layernorm",
        "layers.N.gate": "layers.N.mlp.gate_proj",
        "layers.N.up": "layers.N.mlp.up_proj",
        "layers.N.down": "layers.N.mlp.down_proj",
        "final_norm": "norm",
    },
    prefixes=("model.", ""),
    norm="rms",
    order="before",
    norm_eps="rms_norm_eps",
    activation="hidden_act",
    causal=True,
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias"),
        **dict.fromkeys(_FEED_FORWARD, "mlp_bias"),
    },
    rotary=True,
    unused=r"lm_head\.weight|score\..*|.*rotary_emb\.inv_freq",
)

_MISTRAL = replace(_LLAMA, model_types=("mistral",), biases={})

_QWEN2 = replace(
    _LLAMA,
    model_types=("qwen2",),
    biases=dict.fromkeys(("query", "key", "value"), True),
    settings={"use_sliding_window": (False,), "use_mrope": (False,)},
    silent=("max_window_layers", "sliding_window"),
)

_QWEN3 = replace(
    _QWEN2,
    model_types=("qwen3",),
    sizes={**_LLAMA.sizes, "head_dim": "head_dim=128"},
    tensors={
        **_LLAMA.tensors,
        "layers.N.query_norm": "layers.N.self_attn.q_norm",
        "layers.N.key_norm": "layers.N.self_attn.k_norm",
    },
    biases=dict.fromkeys(_ATTENTION, "attention_bias"),
)

_PHI3 = replace(
    _LLAMA,
    model_types=("phi3",),
    tensors={
        **_LLAMA.tensors,
        **dict.fromkeys(
            ("layers.N.query", "layers.N.key", "layers.N.value"), "layers.N.self_attn.qkv_proj"
        ),
        **dict.fromkeys(("layers.N.gate", "layers.N.up"), "layers.N.mlp.gate_up_proj"),
    },
    biases={},
    silent=("resid_pdrop", "embd_pdrop", "original_max_position_embeddings"),
)

_GPT2 = Family(
    model_types=("gpt2",),
    sizes={
        "layers": "n_layer",
        "heads": "n_head",
        "d_model": "n_embd",
        "d_ff": "n_inner=4*d_model",
        "vocabulary": "vocab_size",
        "context": "n_positions",
    },
    tensors={
        "tokens": "wte",
        "positions": "wpe",
        "layers.N.attention_norm": "h.N.ln_1",
        "layers.N.query": "h.N.attn.c_attn",
        "layers.N.key": "h.N.attn.c_attn",
        "layers.N.value": "h.N.attn.c_attn",
        "layers.N.output": "h.N.attn.c_proj",
        "layers.N.feed_norm": "h.N.ln_2",
        "layers.N.up": "h.N.mlp.c_fc",
        "layers.N.down": "h.N.mlp.c_proj",
        "final_norm": "ln_f",
    },
    prefixes=("transformer.", ""),
    norm="layer",
    order="before",
    norm_eps="layer_norm_epsilon",
    activation="activation_function",
    causal=True,
    biases=dict.fromkeys(_LINEAR, True),
    transposed=True,
    settings={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    silent=(
        *("n_ctx", "attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn"),
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj"),
    ),
    unused=r"lm_head\.weight|score\.weight|.*\.attn\.(masked_)?bias",
)

_GPT_NEOX = Family(
    model_types=("gpt_neox",),
    sizes={
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    },
    tensors={
        "tokens": "embed_in",
        "layers.N.attention_norm": "layers.N.input_layernorm",
        "layers.N.query": "layers.N.attention.query_key_value",
        "layers.N.key": "layers.N.attention.query_key_value",
        "layers.N.value": "layers.N.attention.query_key_value",
        "layers.N.output": "layers.N.attention.dense",
        "layers.N.feed_norm": "layers.N.post_attention_layernorm",
        "layers.N.up": "layers.N.mlp.dense_h_to_4h",
        "layers.N.down": "layers.N.mlp.dense_4h_to_h",
        "final_norm": "final_layer_norm",
    },
    prefixes=("gpt_neox.", ""),
    norm="layer",
    order="parallel",
    norm_eps="layer_norm_eps",
    activation="hidden_act",
    causal=True,
    biases={
        **dict.fromkeys(_ATTENTION, "attention_bias=true"),
        **dict.fromkeys(_FEED_FORWARD, True),
    },
    by_head=True,
    rotary=True,
    settings={"use_parallel_residual": (True,)},
    silent=("hidden_dropout", "classifier_dropout"),
    unused=r"embed_out\.weight|.*\.attention\.(masked_)?bias|.*rotary_emb\.inv_freq",
)

_BERT = Family(
    model_types=("bert",),
    sizes={
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "d_model": "hidden_size",
        "d_ff": "intermediate_size",
        "vocabulary": "vocab_size",
        "types": "type_vocab_size=2",
        "context": "max_position_embeddings",
    },
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "types": "embeddings.token_type_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "layers.N.query": "encoder.layer.N.attention.self.query",
        "layers.N.key": "encoder.layer.N.attention.self.key",
        "layers.N.value": "encoder.layer.N.attention.self.value",
        "layers.N.output": "encoder.layer.N.attention.output.dense",
        "layers.N.attention_norm": "encoder.layer.N.attention.output.LayerNorm",
        "layers.N.up": "encoder.layer.N.intermediate.dense",
        "layers.N.down": "encoder.layer.N.output.dense",
        "layers.N.feed_norm": "encoder.layer.N.output.LayerNorm",
    },
    prefixes=("bert.", ""),
    norm="layer",
    order="after",
    norm_eps="layer_norm_eps",
    activation="hidden_act",
    causal=False,
    biases=dict.fromkeys(_LINEAR, True),
    settings={"position_embedding_type": ("absolute",)},
    silent=("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
    unused=r"(cls|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ROBERTA = replace(
    _BERT,
    model_types=("roberta",),
    prefixes=("roberta.", ""),
    first_position=2,  # behind the row of the padding token, whose id must be 1
    settings={**_BERT.settings, "pad_token_id": (1,)},
    unused=r"(lm_head|pooler|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_DISTILBERT = replace(
    _BERT,
    model_types=("distilbert",),
    sizes={
        "layers": "n_layers",
        "heads": "n_heads",
        "d_model": "dim",
        "d_ff": "hidden_dim",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    },
    tensors={
        "tokens": "embeddings.word_embeddings",
        "positions": "embeddings.position_embeddings",
        "embedding_norm": "embeddings.LayerNorm",
        "layers.N.query": "transformer.layer.N.attention.q_lin",
        "layers.N.key": "transformer.layer.N.attention.k_lin",
        "layers.N.value": "transformer.layer.N.attention.v_lin",
        "layers.N.output": "transformer.layer.N.attention.out_lin",
        "layers.N.attention_norm": "transformer.layer.N.sa_layer_norm",
        "layers.N.up": "transformer.layer.N.ffn.lin1",
        "layers.N.down": "transformer.layer.N.ffn.lin2",
        "layers.N.feed_norm": "transformer.layer.N.output_layer_norm",
    },
    prefixes=("distilbert.", ""),
    norm_eps="=1e-12",
    activation="activation",
    settings={"sinusoidal_pos_embds": (False, True)},  # stored either way
    silent=("dropout", "qa_dropout", "seq_classif_dropout"),
    unused=r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*|embeddings\.position_ids",
)

_ELECTRA = replace(
    _BERT,
    model_types=("electra",),
    sizes={**_BERT.sizes, "embedding": "embedding_size"},
    tensors={**_BERT.tensors, "embedding_projection": "embeddings_project"},
    prefixes=("electra.", ""),
    silent=(
        *_BERT.silent,
        *("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"),
    ),
    unused=r"(generator_\w+|discriminator_\w+|classifier|qa_outputs)\..*|.*\.position_ids",
)

FAMILIES = (
    *(_LLAMA, _MISTRAL, _QWEN2, _QWEN3, _PHI3, _GPT2, _GPT_NEOX),
    *(_BERT, _ROBERTA, _DISTILBERT, _ELECTRA),
)


# Reading -------------------------------------------------------------------------------------

Shapes = Mapping[str, tuple[int, ...]]
"""Stored tensors by their names."""


@dataclass(frozen=True)
class Part:
    """Where the tensor of a role is stored.

    name: of the stored tensor. rows: of it, once it stands (out, in). transposed: it is stored
    (in, out). heads: where queries, keys and values alternate head by head, how many there are.
    """

    name: str
    rows: slice | None = None
    transposed: bool = False
    by_head: tuple[int, int] | None = None


def understood(fields: Mapping[str, Any], stored: Shapes) -> tuple[StackShape, dict[str, Part]]:
    """What a checkpoint computes, and where the tensor of each role stands.

    fields: of its ``config.json``. stored: the shapes of its tensors.
    Raises NotUnderstoodError, in words, where anything is not covered by a description.
    """
    family = next((one for one in FAMILIES if fields.get("model_type") in one.model_types), None)
    if family is None:
        raise NotUnderstoodError(f"no description of the model type {fields.get('model_type')!r}")
    used: set[str] = set()
    sizes = _sizes(family, fields, used)
    rotary = _rotary(family, fields, sizes, used)
    _check_settings(family, fields, used)
    named = _text(fields, family.activation, used)
    if named not in _ACTIVATIONS:
        raise NotUnderstoodError(f"{family.activation} is {named!r}")
    shape = StackShape(
        layers=sizes["layers"],
        heads=sizes["heads"],
        kv_heads=sizes.get("kv_heads", sizes["heads"]),
        head_dim=sizes["head_dim"],
        vocabulary=sizes["vocabulary"],
        context=sizes["context"] - family.first_position,
        norm=family.norm,
        norm_eps=_number(fields, family.norm_eps, used),
        order=family.order,
        activation=_ACTIVATIONS[named],
        causal=family.causal,
        rotary=rotary,
        window=_window(family, fields, used),
        first_position=family.first_position,
    )
    strange = sorted(fields.keys() - used - _SILENT - _MUST_BE.keys() - {*family.silent})
    if strange:
        raise NotUnderstoodError(f"no description of {strange[0]} = {fields[strange[0]]!r}")
    return shape, _parts(family, fields, sizes, stored)


def _sizes(family: Family, fields: Mapping[str, Any], used: set[str]) -> dict[str, int]:
    """The sizes by our names."""
    sizes: dict[str, int] = {}
    for ours, said in family.sizes.items():
        name, _, otherwise = said.partition("=")
        used.add(name)
        value = fields.get(name)
        if value is None and otherwise:
            value = _reckoned(otherwise, sizes)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise NotUnderstoodError(f"{name} is {value!r}")
        sizes[ours] = value
    if sizes["d_model"] % sizes["heads"] and "head_dim" not in sizes:
        raise NotUnderstoodError(f"{sizes['heads']} heads do not divide {sizes['d_model']}")
    sizes.setdefault("head_dim", sizes["d_model"] // sizes["heads"])
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("embedding", sizes["d_model"])
    if sizes["heads"] % sizes["kv_heads"]:
        raise NotUnderstoodError(f"{sizes['heads']} heads over {sizes['kv_heads']} key/value heads")
    return sizes


def _reckoned(otherwise: str, sizes: Mapping[str, int]) -> int:
    """A number, or a product or quotient of sizes."""
    first, sign, second = re.split(r"([*/]|$)", otherwise, maxsplit=1)
    value = sizes.get(first) or int(first)
    if not sign:
        return value
    other = sizes.get(second) or int(second)
    return value * other if sign == "*" else value // other


def _check_settings(family: Family, fields: Mapping[str, Any], used: set[str]) -> None:
    for name, values in {**_MUST_BE, **family.settings}.items():
        used.add(name)
        if fields.get(name, values[0]) not in values:
            raise NotUnderstoodError(f"{name} is {fields[name]!r}")
    used.update(said.partition("=")[0] for said in family.biases.values() if isinstance(said, str))


def _text(fields: Mapping[str, Any], name: str, used: set[str]) -> str:
    used.add(name)
    return str(fields.get(name))


def _number(fields: Mapping[str, Any], said: str, used: set[str]) -> float:
    name, _, otherwise = said.partition("=")
    used.add(name)
    value = fields.get(name, float(otherwise) if otherwise else None)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise NotUnderstoodError(f"{name} is {value!r}")
    return float(value)


_ROPE_FIELDS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {
        *("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    },
}
"""What transformers' kinds of rotary positions say beside theta and their share of a head."""

_ROPE_NAMES = ("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base")
_ROPE_SHARES = ("partial_rotary_factor", "rotary_pct")


def _rotary(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], used: set[str]
) -> Rotary | None:
    """The rotary positions, as transformers 4 or 5 writes them."""
    if not family.rotary:
        return None
    used.update(_ROPE_NAMES, _ROPE_SHARES)
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise NotUnderstoodError(f"rope_parameters is {rope!r}")
    both = {name: fields[name] for name in (*_ROPE_NAMES[2:], *_ROPE_SHARES) if name in fields}
    both |= rope
    kind = both.pop("rope_type", both.pop("type", "default"))
    both.pop("type", None)
    theta = both.pop("rope_theta", both.pop("rotary_emb_base", 10_000.0))
    both.pop("rotary_emb_base", None)
    share = [both.pop(name) for name in _ROPE_SHARES if name in both]
    if both.keys() != _ROPE_FIELDS.get(str(kind)):
        raise NotUnderstoodError(f"rotary positions of type {kind!r} with {sorted(both)}")
    numbers = [theta, *share, *both.values()]
    if not all(isinstance(one, int | float) and one > 0 for one in numbers):
        raise NotUnderstoodError(f"rotary positions of {numbers}")
    dims = int(sizes["head_dim"] * share[0]) if share else sizes["head_dim"]
    if dims < 2 or dims % 2 or dims > sizes["head_dim"]:
        raise NotUnderstoodError(f"rotary positions of {dims} dimensions")
    return Rotary(
        float(theta),
        dims,
        float(both.get("factor", 1.0)),
        both.get("low_freq_factor"),
        float(both.get("high_freq_factor", 4.0)),
        int(both.get("original_max_position_embeddings", 8192)),
    )


def _window(family: Family, fields: Mapping[str, Any], used: set[str]) -> int | None:
    """How many keys a query sees."""
    kinds = set(fields.get("layer_types") or ())
    used.add("layer_types")
    if "sliding_window" in family.silent:
        window = None
    else:
        used.add("sliding_window")
        window = fields.get("sliding_window")
    if kinds - {"full_attention" if window is None else "sliding_attention"}:
        raise NotUnderstoodError(f"layers of {' and '.join(sorted(kinds))}")
    if window is not None and (not isinstance(window, int) or window < 1 or not family.causal):
        raise NotUnderstoodError(f"sliding_window is {window!r}")
    return window


def _parts(
    family: Family, fields: Mapping[str, Any], sizes: Mapping[str, int], stored: Shapes
) -> dict[str, Part]:
    """Where each role's tensors stand, held against what is stored."""
    first = f"{family.tensors['tokens']}.weight"
    prefix = next((one for one in family.prefixes if one + first in stored), None)
    if prefix is None:
        raise NotUnderstoodError(f"the tensor {family.prefixes[0]}{first} is missing")
    parts: dict[str, Part] = {}
    expected: dict[str, tuple[int, ...]] = {}
    for name, roles in _by_name(family, sizes).items():
        for kind in ("weight", "bias"):
            shapes = [_expected(role, kind, family, fields, sizes) for role in roles]
            known = [shape for shape in shapes if shape is not None]
            if not known:
                continue
            path = f"{prefix}{name}.{kind}"
            rows = sum(shape[0] for shape in known)
            turned = family.transposed and len(known[0]) > 1 and _kind(roles[0]) in _LINEAR
            whole = (rows, *known[0][1:])
            expected[path] = whole[::-1] if turned else whole
            start = 0
            for place, role in enumerate(roles):
                cut = slice(start, start + known[place][0]) if len(roles) > 1 else None
                start += known[place][0]
                by_head = (place, sizes["heads"]) if family.by_head and cut else None
                parts[f"{role}.{kind}"] = Part(path, cut, turned, by_head)
    for path, shape in expected.items():
        if stored.get(path) != shape:
            raise NotUnderstoodError(f"{path} is {stored.get(path)}, where {shape} is expected")
    for path in sorted(stored.keys() - expected.keys()):
        if not re.fullmatch(family.unused, path.removeprefix(prefix)):
            raise NotUnderstoodError(f"no description of the tensor {path}")
    return parts


def _by_name(family: Family, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """The roles that each stored name holds."""
    found: dict[str, list[str]] = {}
    for role, name in family.tensors.items():
        if role == "embedding_projection" and sizes["embedding"] == sizes["d_model"]:
            continue
        for layer in range(sizes["layers"] if "N" in role.split(".") else 1):
            number = str(layer)
            stored = ".".join(number if part == "N" else part for part in name.split("."))
            held = ".".join(number if part == "N" else part for part in role.split("."))
            found.setdefault(stored, []).append(held)
    return found


def _kind(role: str) -> str:
    return role.rpartition(".")[2]


def _expected(
    role: str,
    kind: str,
    family: Family,
    fields: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> tuple[int, ...] | None:
    """The shape of a role's weight or bias; None for a bias that it has not."""
    name, width, inner = _kind(role), sizes["d_model"], sizes["d_ff"]
    query, key = sizes["heads"] * sizes["head_dim"], sizes["kv_heads"] * sizes["head_dim"]
    shape: tuple[int, ...] = {
        "tokens": (sizes["vocabulary"], sizes["embedding"]),
        "positions": (sizes["context"], sizes["embedding"]),
        "types": (sizes.get("types", 0), sizes["embedding"]),
        "embedding_norm": (sizes["embedding"],),
        "embedding_projection": (width, sizes["embedding"]),
        "query": (query, width),
        "key": (key, width),
        "value": (key, width),
        "output": (width, query),
        "query_norm": (sizes["head_dim"],),
        "key_norm": (sizes["head_dim"],),
        "gate": (inner, width),
        "up": (inner, width),
        "down": (width, inner),
    }.get(name, (width,))
    if kind == "weight":
        return shape
    said: bool | str = family.biases.get(name, False)
    if name.endswith("_norm"):
        said = family.norm == "layer"
    elif name == "embedding_projection":
        said = True
    if isinstance(said, str):
        field_name, _, otherwise = said.partition("=")
        said = bool(fields.get(field_name, otherwise == "true"))
    return shape[:1] if said else None
