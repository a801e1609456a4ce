"""Tokens without transformers are those that its ``AutoTokenizer`` gives."""

import json
from functools import partial

import pytest
from transformers import AutoTokenizer

from attnviz.models.numpy_tokenizer import open_tokenizer

from .tokenizer_files import (
    TEXTS,
    bert_tokenizer,
    gemma_tokenizer,
    gpt2_tokenizer,
    list_added,
    llama_tokenizer,
    neox_tokenizer,
    plain_tokenizer,
    qwen_tokenizer,
    roberta_tokenizer,
    smollm_tokenizer,
)

LOWER = {"normalizer": {"type": "Lowercase"}}


def said(write, **changes):
    """The files of ``write`` with other settings beside them; None takes a field away."""

    def written(directory):
        write(directory)
        path = directory / "tokenizer_config.json"
        fields = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in fields.items() if value != "-"}))

    return written


def stored(write, **changes):
    """The files of ``write`` with other parts in ``tokenizer.json``."""

    def written(directory):
        write(directory)
        path = directory / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return written


def added(write, content, **flags):
    """The files of ``write`` with a special token of these flags."""

    def written(directory):
        write(directory)
        path = directory / "tokenizer.json"
        fields = json.loads(path.read_text())
        numbers = {token["content"]: token["id"] for token in fields["added_tokens"]}
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        number = numbers.get(content, len(fields["model"]["vocab"]))
        token = {**plain, **flags, "id": number, "content": content, "special": True}
        others = [one for one in fields["added_tokens"] if one["content"] != content]
        path.write_text(json.dumps(fields | {"added_tokens": [*others, token]}))
        list_added(directory)

    return written


CASES = {
    "gpt2": gpt2_tokenizer,
    "gpt2, spaced": said(gpt2_tokenizer, add_prefix_space=True),
    "gpt2, unnamed": said(gpt2_tokenizer, tokenizer_class="-"),
    "gpt2, its file lowers": stored(gpt2_tokenizer, **LOWER),
    "gpt2, as it is": said(
        stored(gpt2_tokenizer, **LOWER), tokenizer_class="PreTrainedTokenizerFast"
    ),
    "gpt_neo": gpt2_tokenizer,
    "llama": llama_tokenizer,
    "llama, legacy": partial(llama_tokenizer, legacy=True),
    "llama, legacy unsaid": partial(llama_tokenizer, legacy=None),
    "llama, no space": partial(llama_tokenizer, add_prefix_space=False),
    "llama, an end": partial(llama_tokenizer, add_bos_token=False, add_eos_token=True),
    "llama, its fast class": partial(llama_tokenizer, tokenizer_class="LlamaTokenizerFast"),
    "llama, as it is": partial(llama_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    "llama, unnamed": said(llama_tokenizer, tokenizer_class="-"),
    "llama, plain": plain_tokenizer,
    "llama, smollm": smollm_tokenizer,
    "smollm3": smollm_tokenizer,
    "mistral": llama_tokenizer,
    "mistral, plain": plain_tokenizer,
    "phi3": llama_tokenizer,
    "olmo2": gpt2_tokenizer,
    "granite": smollm_tokenizer,
    "gemma": gemma_tokenizer,
    "gemma, as it is": said(gemma_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    "qwen2": qwen_tokenizer,
    "qwen2, as if as it is": said(qwen_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    "qwen2, as if Llama's": said(
        stored(qwen_tokenizer, **LOWER), tokenizer_class="LlamaTokenizerFast"
    ),
    "qwen3": qwen_tokenizer,
    "qwen3, as it is": said(qwen_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    "gpt_neox": neox_tokenizer,
    "gpt_neox, a beginning": said(neox_tokenizer, add_bos_token=True),
    "bert": bert_tokenizer,
    "bert, cased": partial(bert_tokenizer, lower=False),
    "bert, otherwise than its file": said(bert_tokenizer, do_lower_case=False, strip_accents=True),
    "bert, no frame": stored(bert_tokenizer, post_processor=None),
    "distilbert": said(bert_tokenizer, tokenizer_class="DistilBertTokenizer"),
    "electra": said(bert_tokenizer, tokenizer_class="ElectraTokenizer"),
    "electra, as BERT": bert_tokenizer,
    "roberta": roberta_tokenizer,
    "roberta, spaced": said(roberta_tokenizer, add_prefix_space=True, trim_offsets=False),
    "roberta, a mask with its space": added(roberta_tokenizer, "<mask>", lstrip=True),
    "llama, a further token": added(llama_tokenizer, "<pad>", normalized=False),
    "llama, a normalised one": added(llama_tokenizer, "[ INST]", normalized=True),
    "gpt2, a further token": added(gpt2_tokenizer, "<|pad|>", normalized=False),
}
"""By the model type, and what is special: the files of a tokenizer."""


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(case, tmp_path):
    """A quarter of the texts for each case, in turn."""
    model_type, write = case.partition(",")[0], CASES[case]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write(tmp_path)
    ours = open_tokenizer(str(tmp_path), tmp_path, {"model_type": model_type}).tokenizer
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert len(TEXTS) >= 200
    for text in TEXTS[[*CASES].index(case) % 4 :: 4]:
        found, expected = ours.encode(text), theirs(text, return_special_tokens_mask=True)
        assert found.ids == expected["input_ids"], text
        assert found.tokens == theirs.convert_ids_to_tokens(found.ids), text
        assert found.special_tokens_mask == expected["special_tokens_mask"], text
