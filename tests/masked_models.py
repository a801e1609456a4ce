"""Random transformers models of every kind of mask, and which keys their queries see, by hand."""

import numpy as np

from attnviz.models.prepare import prepared

from .small_models import word_tokenizer

WINDOW, PREFIX = 4, 5
"""The tokens of a window or chunk; those of a prefix that all see each other."""


def _causal(count):
    return np.tri(count, dtype=bool)


def _distance(count):
    """(query, key) how far the key lies behind the query."""
    return np.subtract.outer(np.arange(count), np.arange(count))


def _window(count):
    return _causal(count) & (_distance(count) < WINDOW)


def _chunk(count):
    chunk = np.arange(count) // WINDOW
    return _causal(count) & (chunk[:, None] == chunk)


def _prefix(count):
    return _causal(count) | (np.arange(count) < PREFIX)


def _both_ways(count):
    return np.ones((count, count), bool)


def _near(count):
    return np.asarray(abs(_distance(count)) <= WINDOW // 2)


MASKS = {
    "causal": (_causal, _causal),
    "both ways": (_both_ways, _both_ways),
    "sliding": (_window, _window),
    "sliding, every other layer": (_window, _causal),
    "sliding, own attention": (_window, _causal),
    "sliding both ways": (_both_ways, _near),
    "chunked": (_chunk, _causal),
    "prefix": (_prefix, _prefix),
}
"""By name: (query, key) of the layers with an even number, and of the others."""


def masked_model(name, words, *, sizes=(2, 3, 48), spread, seed):
    """Return a random model. sizes: layers, heads, width; spread: its initializer range."""
    import torch
    import transformers as hub

    layers, heads, width = sizes
    torch.manual_seed(seed)
    shared = {"vocab_size": words, "initializer_range": spread, "pad_token_id": 0}
    usual = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 3 * width,
        **shared,
    }
    own = {"num_key_value_heads": heads}
    two = ["full_attention" if layer % 2 else "{}_attention" for layer in range(layers)]
    if name == "both ways":
        return hub.BertForMaskedLM(hub.BertConfig(**usual, attn_implementation="eager")).eval()
    if name == "sliding both ways":
        return hub.ModernBertForMaskedLM(
            hub.ModernBertConfig(
                **usual, local_attention=WINDOW, global_attn_every_n_layers=2, cls_token_id=1,
                sep_token_id=2, attn_implementation="eager",
            )
        ).eval()  # fmt: skip
    if name == "sliding":
        config = hub.MistralConfig(**usual, **own, sliding_window=WINDOW)
        return hub.MistralForCausalLM(config).eval()
    if name == "sliding, every other layer":
        kinds = [kind.format("sliding") for kind in two]
        config = hub.Qwen2Config(
            **usual, **own, use_sliding_window=True, sliding_window=WINDOW, layer_types=kinds
        )
        return hub.Qwen2ForCausalLM(config).eval()
    if name == "sliding, own attention":
        config = hub.GPTNeoConfig(
            **shared, hidden_size=width, num_layers=layers, num_heads=heads, window_size=WINDOW,
            attention_types=[[["local", "global"], layers // 2]],
        )  # fmt: skip
        return hub.GPTNeoForCausalLM(config).eval()
    if name == "chunked":
        config = hub.Llama4TextConfig(
            **usual, **own, head_dim=width // heads, attention_chunk_size=WINDOW, moe_layers=[],
            intermediate_size_mlp=3 * width, layer_types=[kind.format("chunked") for kind in two],
        )  # fmt: skip
        return hub.Llama4ForCausalLM(config).eval()
    model = hub.LlamaForCausalLM(hub.LlamaConfig(**usual, **own)).eval()
    if name == "prefix":
        _let_the_prefix_see_itself(model)
    return model


def opened(name, words, model):
    """Return a model of this name ready to be observed; encoders read ``</s>`` behind a text."""
    import torch

    tokenizer = word_tokenizer(words, ends="both ways" in name)
    return prepared(name, model, tokenizer, torch.device("cpu"))


def _let_the_prefix_see_itself(model):
    """Give every pass of the trunk a mask in which the first tokens see each other."""
    import torch

    def enter(module, args, kwargs):
        cache, new = kwargs.get("past_key_values"), kwargs["input_ids"].shape[1]
        before = 0 if cache is None else cache.get_seq_length()
        seen = torch.from_numpy(_prefix(before + new)[before:])
        return args, {**kwargs, "attention_mask": seen[None, None]}

    model.model.register_forward_pre_hook(enter, with_kwargs=True)


def without_queries(model):
    """Empty what makes queries and keys: every head looks alike at all that its query sees."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "self.query", "self.key")):
                parameter.zero_()
            elif "Wqkv" in name:
                parameter[: 2 * parameter.shape[0] // 3] = 0
    return model
