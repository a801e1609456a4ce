"""A small T5 and a small Marian of whole words, sentence pairs for them, and heads that link."""

import numpy as np
import torch
from tokenizers import processors
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration

from tests.small_models import t5_fields, word_tokenizer

MARKS = ("<pad>", "<s>", "</s>", "<unk>")
SOURCE = tuple(f"s{at}" for at in range(8))
TARGET = tuple(f"t{at}" for at in range(8))


def tokenizer():
    made = word_tokenizer((*MARKS, *SOURCE, *TARGET))
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 2)]
    )
    return made


def t5(**changed):
    """A random T5 of two layers of two heads."""
    torch.manual_seed(0)
    sizes = t5_fields(20, 10, 8, (1, 2)) | {"vocab_size": 20, "num_heads": 2, "eos_token_id": 2}
    sizes |= changed
    return T5ForConditionalGeneration(T5Config(**sizes)).eval()


def marian():
    """A random Marian of two layers of three heads."""
    torch.manual_seed(0)
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 3)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 16)
    marks = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = MarianConfig(vocab_size=20, d_model=24, max_position_embeddings=32, **sizes, **marks)
    return MarianMTModel(config).eval()


@torch.no_grad()
def linking(written=(), read=()):
    """A T5 whose words pass unmixed to cross attention, and heads that look up the right word.

    written, read: the heads (layer, head) whose row of the step that writes a target word, or that
    reads it, looks at its source word. Every target word is followed by the one with the next
    number, so that the step before knows it.
    """
    model = t5(d_model=40, d_kv=16)
    model.shared.weight[:] = torch.eye(20, 40)
    model.encoder.block[0].layer[0].layer_norm.weight[0] = 2  # as training would
    for name, parameter in model.named_parameters():
        if (
            "SelfAttention.o." in name
            or "DenseReluDense.wo" in name
            or "EncDecAttention.o." in name
        ):
            parameter.zero_()
    for heads, ahead in ((written, 1), (read, 0)):
        for layer, head in heads:
            cross = model.decoder.block[layer].layer[1].EncDecAttention
            for part in (cross.q.weight, cross.k.weight):
                part[head * 16 : (head + 1) * 16] = 0
            for word in range(8):
                cross.k.weight[head * 16 + word, 4 + word] = 3
                cross.q.weight[head * 16 + word, 12 + (word - ahead) % 8] = 3
            if ahead:  # the first word is always t0, behind the start token
                cross.q.weight[head * 16, 0] = 3
    return model


def pairs(count=12, seed=0):
    """Rows of sentences t0 t1 … in the order of numbers, their sources shuffled; the gold is known.

    The first link of each is a possible one.
    """
    rows = []
    for number in range(count):
        size = 4 + number % 4
        order = np.random.default_rng(seed + number).permutation(size).tolist()
        links = [f"{order.index(word)}{'-?'[word == 0]}{word}" for word in range(size)]
        source, target = (
            " ".join(f"{side}{word}" for word in words)
            for side, words in (("s", order), ("t", range(size)))
        )
        rows.append({"source": source, "target": target, "alignment": " ".join(links)})
    return rows


def write(path, rows):
    """Write pairs, a line each, their parts between bars."""
    path.write_text("".join(" ||| ".join(row.values()) + "\n" for row in rows))
    return path
