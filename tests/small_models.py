"""Small models, said once: the sizes of their configurations, and a tokenizer of whole words.

What imports torch or transformers does so when it is called: tests without a model stay light.
"""

from attnviz.attention.checkpoint import DecoderConfig

WORDS = ("<pad>", "<s>", "</s>", "<unk>", "the", "cat", "sat", "on", "mat", "because", "tired")
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VOCABULARY = 13
"""More than the words: an embedding table is often padded."""


class ShowsWeights:
    """The rest of a ``NumpyModel`` whose ``run_rows`` is all that a test asks of it."""

    scaled = True

    def mask(self, *_):
        return None

    def run_queries_keys(self, *_):
        raise NotImplementedError

    def run_outputs(self, *_):
        raise NotImplementedError

    def vocabulary(self):
        raise NotImplementedError

    def narrowed(self):
        raise NotImplementedError

    def without(self, *_):
        raise NotImplementedError


def whole_weights(model, tokens):
    """Of each layer of ``mha`` or ``tiny`` the weights (head, query, key), from a plain call."""
    if hasattr(model, "attention"):
        return {0: model.attention(model.embed(tokens.ids))[1]}
    return plain_weights(model.stack, tokens.ids)


def plain_weights(stack, ids):
    """Return the weights (head, query, key) of each layer of a stack in NumPy, from a plain run."""
    found = {}
    stack.run_outputs(ids, lambda layer, weights, outputs: found.update({layer: weights}))
    return found


def word_tokenizer(words=WORDS, *, ends=True):
    """Whole words; ``<s>`` in front and ``</s>`` behind, at the second and third place.

    ends: False leaves ``</s>`` out, as tokenizers of decoders do.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    places = {word: place for place, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(places, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if "<pad>" in words:
        special["pad_token"] = "<pad>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def bert_fields(width, feed_forward, context, heads=3, layers=2):
    return {
        "hidden_size": width,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": context,
    }


def llama_fields(width, feed_forward, context, heads, layers=2):
    """Fields of a Llama config; ``heads``: query heads, key/value heads, a head's width."""
    query_heads, kv_heads, head_dim = heads
    return {
        **bert_fields(width, feed_forward, context, query_heads, layers),
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def bart_fields(width, feed_forward, context, layers, heads):
    """Fields of a BART config; layers and heads of the encoder and of the decoder."""
    return {
        "d_model": width,
        "encoder_layers": layers[0],
        "decoder_layers": layers[1],
        "encoder_attention_heads": heads[0],
        "decoder_attention_heads": heads[1],
        "encoder_ffn_dim": feed_forward,
        "decoder_ffn_dim": feed_forward,
        "max_position_embeddings": context,
    }


def t5_fields(width, head_dim, feed_forward, layers=(2, 2)):
    """Fields of a T5 config with three heads; layers of the encoder and of the decoder."""
    return {
        "d_model": width,
        "d_kv": head_dim,
        "d_ff": feed_forward,
        "num_layers": layers[0],
        "num_decoder_layers": layers[1],
        "num_heads": 3,
        "decoder_start_token_id": 0,
    }


def gpt_fields(width, context, heads=3, layers=2):
    return {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": context}


def deepseek_fields(layers):
    """Fields of a DeepSeek config: latent keys and values, experts in groups."""
    return {
        **llama_fields(24, 37, 31, (3, 3, 2), layers),
        "moe_intermediate_size": 13,
        "q_lora_rank": 7,
        "kv_lora_rank": 11,
        "qk_nope_head_dim": 5,
        "qk_rope_head_dim": 2,
        "v_head_dim": 7,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    }


TINY = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {**gpt_fields(6, 17), "n_inner": 5}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", llama_fields(12, 5, 23, (6, 2, 4))),
    "bert": ("BertForMaskedLM", "BertConfig", bert_fields(6, 5, 19)),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {**t5_fields(6, 5, 7), "pad_token_id": 0, "eos_token_id": 2},
    ),
}
"""By kind: the model's class, its config's class and fields, without the vocabulary."""


def random_model(classes, **changes):
    """A model of an entry like those of ``TINY``, its weights as the generator gives them."""
    import transformers

    model_class, config_class, fields = classes
    config = getattr(transformers, config_class)(**fields | changes)
    return getattr(transformers, model_class)(config)


def decoder_config(vocabulary, d_model, d_ff, heads, layers=2, **others):
    """A decoder's configuration; ``heads``: query heads, key/value heads, a head's width."""
    query_heads, kv_heads, head_dim = heads
    return DecoderConfig(
        vocabulary, d_model, layers, query_heads, kv_heads, head_dim, d_ff, **others
    )
