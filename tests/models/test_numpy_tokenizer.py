"""Tokens without transformers are those that its ``AutoTokenizer`` gives."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from attnviz.models.numpy_tokenizer import open_tokenizer

from .tokenizer_files import (
    TEXTS,
    Writer,
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


def said(write: Writer, **changes: Any) -> Writer:
    """The files of ``write`` with other settings beside them; None takes a field away."""

    def written(directory: Path) -> None:
        write(directory)
        path = directory / "tokenizer_config.json"
        fields = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({name: value for name, value in fields.items() if value != "-"}))

    return written


def stored(write: Writer, **changes: Any) -> Writer:
    """The files of ``write`` with other parts in ``tokenizer.json``."""

    def written(directory: Path) -> None:
        write(directory)
        path = directory / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return written


def added(write: Writer, content: str, **flags: bool) -> Writer:
    """The files of ``write`` with a special token of these flags."""

    def written(directory: Path) -> None:
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


LOWER: dict[str, Any] = {"normalizer": {"type": "Lowercase"}}
CASES: dict[str, tuple[str, Writer]] = {
    "gpt2": ("gpt2", gpt2_tokenizer),
    "gpt2, spaced": ("gpt2", said(gpt2_tokenizer, add_prefix_space=True)),
    "gpt2, unnamed": ("gpt2", said(gpt2_tokenizer, tokenizer_class="-")),
    "gpt2, its file lowers": ("gpt2", stored(gpt2_tokenizer, **LOWER)),
    "gpt2, as it is": (
        "gpt2",
        said(stored(gpt2_tokenizer, **LOWER), tokenizer_class="PreTrainedTokenizerFast"),
    ),
    "gpt-neo": ("gpt_neo", gpt2_tokenizer),
    "llama": ("llama", llama_tokenizer),
    "llama, legacy": ("llama", partial(llama_tokenizer, legacy=True)),
    "llama, legacy unsaid": ("llama", partial(llama_tokenizer, legacy=None)),
    "llama, no space": ("llama", partial(llama_tokenizer, add_prefix_space=False)),
    "llama, an end": ("llama", partial(llama_tokenizer, add_bos_token=False, add_eos_token=True)),
    "llama, its fast class": (
        "llama",
        partial(llama_tokenizer, tokenizer_class="LlamaTokenizerFast"),
    ),
    "llama, as it is": (
        "llama",
        partial(llama_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    ),
    "llama, unnamed": ("llama", said(llama_tokenizer, tokenizer_class="-")),
    "llama, plain": ("llama", plain_tokenizer),
    "smollm": ("llama", smollm_tokenizer),
    "smollm 3": ("smollm3", smollm_tokenizer),
    "mistral": ("mistral", llama_tokenizer),
    "mistral, plain": ("mistral", plain_tokenizer),
    "phi3": ("phi3", llama_tokenizer),
    "olmo2": ("olmo2", gpt2_tokenizer),
    "granite": ("granite", smollm_tokenizer),
    "gemma": ("gemma", gemma_tokenizer),
    "gemma, as it is": ("gemma", said(gemma_tokenizer, tokenizer_class="PreTrainedTokenizerFast")),
    "qwen2": ("qwen2", qwen_tokenizer),
    "qwen2, as if as it is": (
        "qwen2",
        said(qwen_tokenizer, tokenizer_class="PreTrainedTokenizerFast"),
    ),
    "qwen2, as if Llama's": (
        "qwen2",
        said(stored(qwen_tokenizer, **LOWER), tokenizer_class="LlamaTokenizerFast"),
    ),
    "qwen3": ("qwen3", qwen_tokenizer),
    "qwen3, as it is": ("qwen3", said(qwen_tokenizer, tokenizer_class="PreTrainedTokenizerFast")),
    "neox": ("gpt_neox", neox_tokenizer),
    "neox, a beginning": ("gpt_neox", said(neox_tokenizer, add_bos_token=True)),
    "bert": ("bert", bert_tokenizer),
    "bert, cased": ("bert", partial(bert_tokenizer, lower=False)),
    "bert, otherwise than its file": (
        "bert",
        said(bert_tokenizer, do_lower_case=False, strip_accents=True),
    ),
    "bert, no frame": ("bert", stored(bert_tokenizer, post_processor=None)),
    "distilbert": ("distilbert", said(bert_tokenizer, tokenizer_class="DistilBertTokenizer")),
    "electra": ("electra", said(bert_tokenizer, tokenizer_class="ElectraTokenizer")),
    "electra, as BERT": ("electra", bert_tokenizer),
    "roberta": ("roberta", roberta_tokenizer),
    "roberta, spaced": (
        "roberta",
        said(roberta_tokenizer, add_prefix_space=True, trim_offsets=False),
    ),
    "roberta, a mask with its space": ("roberta", added(roberta_tokenizer, "<mask>", lstrip=True)),
    "llama, a further token": ("llama", added(llama_tokenizer, "<pad>", normalized=False)),
    "llama, a normalised one": ("llama", added(llama_tokenizer, "[ INST]", normalized=True)),
    "gpt2, a further token": ("gpt2", added(gpt2_tokenizer, "<|pad|>", normalized=False)),
}


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    model_type, write = CASES[case]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write(tmp_path)
    ours = open_tokenizer(str(tmp_path), tmp_path, {"model_type": model_type}).tokenizer
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert len(TEXTS) >= 200
    for text in TEXTS[::2]:
        found, expected = ours.encode(text), theirs(text, return_special_tokens_mask=True)
        assert found.ids == expected["input_ids"], text
        assert found.tokens == theirs.convert_ids_to_tokens(found.ids), text
        assert found.special_tokens_mask == expected["special_tokens_mask"], text
