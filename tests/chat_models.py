"""Small random chat models: a byte-level tokenizer trained on the spot, and a template each."""

import json
from pathlib import Path

import yaml

from .small_models import llama_fields

TEMPLATES = yaml.safe_load(Path(__file__).with_name("chat_templates.yaml").read_text("utf-8"))
CHATML, LLAMA2 = TEMPLATES["chatml"], TEMPLATES["llama2"]

SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<start_of_turn>", "<end_of_turn>"),
)

CHAT = (
    {"role": "system", "content": "You are a helpful assistant. 친절하게 답하세요. 🙂"},
    {"role": "user", "content": " What does the cat do? 고양이는 무엇을 하나요? 🐈 "},
    {"role": "assistant", "content": "The cat sat on the mat because it was tired."},
)
"""A system prompt, a question with blanks at its ends, and an answer."""


def write_chat_model(directory, template, *, weight=0.3, in_settings=False):
    """Write a random Llama with a byte-level tokenizer; weight: the spread of its weights."""
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [message["content"] for message in CHAT] * 3 + ["system user assistant model INST SYS"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"bos_token": "<s>", "eos_token": "</s>"}
    if template is not None and in_settings:
        settings["chat_template"] = template
    elif template is not None:
        (directory / "chat_template.jinja").write_text(template)
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    torch.manual_seed(7)
    config = LlamaConfig(
        **llama_fields(32, 48, 512, (4, 2, 8), layers=3),
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=tokenizer.token_to_id("<s>"),
        eos_token_id=tokenizer.token_to_id("</s>"),
        initializer_range=weight,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory
