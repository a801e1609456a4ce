"""The arithmetic of a pass, by hand and against torch's own counter of matrix products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from attnviz.count.params.config.read import spec_from_config
from attnviz.count.params.counting.cost import CostReport, count_cost
from attnviz.count.params.specs import (
    AttentionSpec,
    Dense,
    FeedForwardSpec,
    LayerGroup,
    LayerSpec,
    LookupTable,
    ModelSpec,
    StackSpec,
)

from ..small_configs import BERT, DECODER, GPT, LATENT, ROUTED, T5, VIT, WHISPER, WIDE

BATCH, TOKENS, SOURCE = 2, 13, 7


def decoder(
    attention: AttentionSpec, layers: int = 1, causal: bool = True, **more: Any
) -> ModelSpec:
    group = LayerGroup(LayerSpec((attention,), **more), layers)
    return ModelSpec("test", "", (StackSpec("decoder", (group,), causal=causal),))


def test_the_formulas_of_the_definitions() -> None:
    b, n, d, heads, groups, dim, layers = 3, 11, 14, 6, 2, 5, 4
    spec = decoder(AttentionSpec(d, heads, groups, dim, dim), layers)
    flops = count_cost(spec, tokens=n, batch=b).flops
    assert flops.attention_projections == layers * 2 * b * n * d * (
        2 * heads * dim + 2 * groups * dim
    )
    assert flops.attention_scores == layers * 4 * b * n**2 * heads * dim
    assert flops.attention_scores_visible == flops.attention_scores // 2
    assert flops.total == flops.attention_projections + flops.attention_scores
    assert flops.per_token == flops.attention_projections // (b * n)
    assert flops.scores_per_token == layers * 4 * n * heads * dim


def test_pairs_that_are_seen() -> None:
    attention = AttentionSpec(8, 2, 2, 4, 4, window=5)
    flops = count_cost(decoder(attention), tokens=11).flops
    pairs = (11**2 - 6**2) / 2  # the triangle, less the triangle that slid out of sight
    assert flops.attention_scores_visible == int(4 * 8 * pairs)
    assert flops.scores_per_token == 4 * 5 * 8
    short = count_cost(decoder(attention), tokens=5).flops
    assert short.attention_scores_visible == short.attention_scores // 2
    flops = count_cost(decoder(AttentionSpec(8, 2, 2, 4, 4), causal=False), tokens=11).flops
    assert flops.attention_scores_visible == flops.attention_scores


def test_linear_attention_grows_with_the_length_alone() -> None:
    spec = decoder(AttentionSpec(8, 2, 2, 4, 4, linear=True))
    short, long = (count_cost(spec, tokens=tokens).flops for tokens in (10, 20))
    assert short.attention_scores == 4 * 10 * 2 * 16
    assert long.attention_scores == 2 * short.attention_scores


def test_head_and_feed_forward() -> None:
    spec = decoder(AttentionSpec(6, 2, 2, 3, 3), feed_forward=FeedForwardSpec(6, 5, True))
    stack = spec.stacks[0]._replace(
        embeddings=(LookupTable("token embedding", 11, 6), Dense("patches", 4, 6, places=3)),
        parts=(Dense("pooler", 6, 6, bias=True, places=1),),
        head=Dense("head", 6, 11, tied=True),
    )
    flops = count_cost(spec._replace(stacks=(stack,)), tokens=7, batch=2).flops
    assert flops.ffn == 2 * 2 * 7 * 3 * 6 * 5
    assert flops.head == 2 * 2 * 7 * 6 * 11
    assert flops.other == 2 * (2 * 3 * 24 + 2 * 36)
    assert sum(term.number for term in flops.terms) == flops.total


def test_absurd_lengths_stay_exact() -> None:
    n = 10**25 + 1
    flops = count_cost(decoder(AttentionSpec(6, 2, 2, 3, 3)), tokens=n).flops
    assert flops.attention_scores == 4 * n * n * 6


SHARED = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 13,
    "shared_expert_intermediate_size": 19,
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "LlamaForCausalLM", WIDE),
    ("mistral", "MistralForCausalLM", dict(DECODER, sliding_window=5)),
    ("mixtral", "MixtralForCausalLM", dict(DECODER, num_local_experts=5)),
    ("qwen2_moe", "Qwen2MoeForCausalLM", dict(DECODER, **SHARED)),
    (
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        dict(DECODER, **ROUTED, **LATENT, num_key_value_heads=6),
    ),
    ("gpt2", "GPT2LMHeadModel", GPT),
    ("bert", "BertForMaskedLM", BERT),
    ("bert", "BertModel", BERT),
    ("albert", "AlbertForMaskedLM", dict(BERT, embedding_size=7)),
    ("t5", "T5ForConditionalGeneration", T5),
    ("whisper", "WhisperForConditionalGeneration", WHISPER),
    ("vit", "ViTModel", VIT),
]


def inputs(kind: str) -> dict[str, torch.Tensor]:
    written = torch.randint(0, 29, (BATCH, TOKENS))
    match kind:
        case "vit":
            return {"pixel_values": torch.randn(BATCH, 2, 21, 21)}
        case "whisper":
            return {"input_features": torch.randn(BATCH, 7, 82), "decoder_input_ids": written}
        case "t5":
            return {
                "input_ids": torch.randint(0, 29, (BATCH, SOURCE)),
                "decoder_input_ids": written,
            }
    return {"input_ids": written}


def counted(kind: str, name: str, fields: dict[str, Any]) -> CostReport:
    spec = spec_from_config({"model_type": kind, "architectures": [name], **fields})
    assert spec is not None
    return count_cost(spec, tokens=TOKENS, source_tokens=SOURCE, batch=BATCH)


@pytest.mark.parametrize(("kind", "name", "fields"), CASES)
def test_torch_counts_the_same(kind: str, name: str, fields: dict[str, Any]) -> None:
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **fields)
    config._experts_implementation = "eager"
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**inputs(kind))
    assert counted(kind, name, fields).flops.total == counter.get_total_flops()
