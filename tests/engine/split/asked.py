"""What is asked of every model: in the test of one process, and in each of two that share it."""

import torch
import transformers

import attnviz

from ...small_models import GPT_OSS, SPECIAL, llama_fields, word_tokenizer

TEXT = "the cat sat on the mat because the cat sat tired"

OTHER = "mat on cat the sat"
"""A second text. It does not begin as the first does: equal beginnings are a tie."""
PROMPTS = ("the cat sat on the", "the mat sat on the")
RULES = '[[check]]\nhead = "L0H0"\nscore = "induction"\nat_least = 0\n'

_SIZES = {
    **llama_fields(32, 24, 64, (4, 2, 8)),
    **SPECIAL,
    "vocab_size": 16,
    "initializer_range": 0.3,
}
_LATENT = {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 8,
    "q_lora_rank": 8,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
}

MODELS = {
    "grouped": ("llama", {}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "windows": ("mistral", {"sliding_window": 5}),
    "every head in every process": ("phi3", {}),
    "latent": ("deepseek_v2", _LATENT),
    "sinks": ("gpt_oss", GPT_OSS | {"intermediate_size": 32, "num_local_experts": 2}),
    "split sinks": ("granite_swa", {"sliding_window": 5}),
}
"""By what is special about it: a model's type, and the fields that differ from the others'."""

REFUSED = {
    "3 heads": (
        "llama",
        {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3},
        {"tp_size": 2},
    ),
    "1 key/value heads": ("llama", {"num_key_value_heads": 1}, {"tp_size": 2}),
    "pipeline parallelism": ("llama", {}, {"pp_size": 2}),
    "fully sharded": ("llama", {}, {"fsdp_size": 2}),
}
"""By a part of the message: a model's type and fields, and how it is split over two processes."""


def saved(directory, kind, **fields):
    """Save a tiny random checkpoint with its tokenizer; return its directory."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **_SIZES | fields)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    word_tokenizer(ends=False).save_pretrained(directory)
    return directory


FEW = {
    "capture": lambda model, _: attnviz.capture(model, TEXT),
    "patterns": lambda model, _: attnviz.patterns(model, TEXT),
    "ablate": lambda model, _: attnviz.ablate(model, [TEXT]),
}
"""What is asked of every model."""

MANY = {
    **FEW,
    "rollout": lambda model, _: attnviz.rollout(model, TEXT),
    "why": lambda model, _: attnviz.why(model, TEXT),
    "check": lambda model, rules: attnviz.check(model, rules),
    "diff": lambda model, _: attnviz.diff(model, model, [TEXT, TEXT + " on"]),
    "generate": lambda model, _: attnviz.generate(model, TEXT, tokens=3),
    "heads": lambda model, _: attnviz.heads(model, TEXT),
    "patch": lambda model, _: attnviz.patch(model, *PROMPTS, what="query"),
    "pooled": lambda model, _: attnviz.heads(model, TEXT, reduce="fused"),
    "gradient": lambda model, _: attnviz.ablate(model, [TEXT], method="gradient"),
    "head": lambda model, _: attnviz.head(model, "L0H1", TEXT, [TEXT, OTHER]),
    "inputs": lambda model, _: attnviz.why(model, PROMPTS[0], inputs=True),
    "lens": lambda model, _: attnviz.lens(model, TEXT),
    "link": lambda model, _: attnviz.link(model, TEXT),
    "mean": lambda model, _: attnviz.ablate(model, [TEXT], mode="mean"),
    "norms": lambda model, _: attnviz.patterns(model, TEXT, norm_weighted=True),
    "pattern": lambda model, _: attnviz.patch(model, *PROMPTS, what="pattern"),
    "patch by gradient": lambda model, _: attnviz.patch(model, *PROMPTS, method="gradient"),
    "path": lambda model, _: attnviz.path(model, "L0H0", *PROMPTS),
    "report": lambda model, _: attnviz.report(model, [TEXT, OTHER], cards=1),
    "retrieve": lambda model, _: attnviz.retrieve(
        model, needle="the cat|sat on", lengths="48", haystacks=1
    ),
    "scaling": lambda model, _: attnviz.scaling(model, TEXT),
}
"""What is asked of one of them."""


def questions(name):
    """Return what is asked of a model of ``MODELS``."""
    return MANY if name == "grouped" else FEW


def flat(found, path=""):
    """Yield (path, value) of every value in nested lists and objects of JSON."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from flat(value, f"{path}.{key}")
    elif isinstance(found, list):
        for at, value in enumerate(found):
            yield from flat(value, f"{path}[{at}]")
    else:
        yield path, found
