"""Files of tokenizers as the hub has them, small: by the classes that checkpoints name."""

import json
from pathlib import Path

import transformers
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, WordPiece

STARTS = json.loads(Path(__file__).with_name("tokenizer_texts.json").read_text("utf-8"))
TEXTS = STARTS + [
    f"{one}{joint}{other}"
    for number, joint in enumerate(["", " ", ", ", "\n", "-", "ß"])
    for one, other in zip(STARTS, STARTS[number + 1 :] + STARTS[: number + 1], strict=True)
]
CORPUS = [*STARTS, "the cat sat on the mat because it was tired", "a cat and a dog", "ing sing"]


def bert_tokenizer(directory, *, lower=True, corpus=CORPUS, size=400):
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        corpus, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special)
    )
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=20, pad_token="[PAD]")
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "never_split": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))


def byte_level(directory, name, special, config, *, nfc=False):
    tokenizer = Tokenizer(BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC() if nfc else None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=alphabet),
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"tokenizer_class": name, "add_prefix_space": False, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    return tokenizer


def gpt2_tokenizer(directory):
    byte_level(directory, "GPT2Tokenizer", ["<|endoftext|>"], {"model_max_length": 64})


def neox_tokenizer(directory):
    special = ["<|endoftext|>", "<|padding|>"]
    byte_level(directory, "GPTNeoXTokenizer", special, {"unk_token": special[0]}, nfc=True)


def roberta_tokenizer(directory):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = byte_level(directory, "RobertaTokenizer", special, {"trim_offsets": True})
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), True, False)
    tokenizer.save(str(directory / "tokenizer.json"))


def qwen_tokenizer(directory):
    made = transformers.Qwen2Tokenizer(vocab={"<|endoftext|>": 0, "a": 1}, merges=[])
    tokenizer = byte_level(directory, "Qwen2Tokenizer", ["<|endoftext|>"], {}, nfc=True)
    tokenizer.pre_tokenizer = made.backend_tokenizer.pre_tokenizer
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def plain_tokenizer(directory):
    """As ``PreTrainedTokenizerFast`` takes it: here one with metaspaces and a beginning."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"])
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))


def smollm_tokenizer(directory):
    """As SmolLM's: its file cuts digits apart, its class does not."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    further = {"bos_token": special[0], "unk_token": special[0], "vocab_size": 49152}
    tokenizer = byte_level(
        directory, "GPT2Tokenizer", special, {**further, "additional_special_tokens": special}
    )
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.save(str(directory / "tokenizer.json"))
    list_added(directory)


def list_added(directory):
    """Say the added tokens once more, as ``tokenizer_config.json`` does since 2023."""
    tokens = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    path = directory / "tokenizer_config.json"
    said = {str(token.pop("id")): token for token in tokens}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": said}))


def _pieces(special):
    """The BPE of a sentencepiece model: special tokens, bytes, characters and merges."""
    learnt = Tokenizer(BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    learnt.train_from_iterator(CORPUS[9:], trainers.BpeTrainer(vocab_size=260))
    found = json.loads(learnt.to_str())["model"]
    letters = sorted(found["vocab"], key=found["vocab"].__getitem__)
    spaces = ["▁▁", "▁▁▁▁"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *spaces]
    vocabulary = {word: number for number, word in enumerate(words)}
    doubled = [["▁", "▁"], ["▁▁", "▁▁"]]
    return {**found, "vocab": vocabulary, "merges": [*doubled, *found["merges"]]}


def llama_tokenizer(directory, **said):
    """As that of Llama 2 and TinyLlama."""
    special = ["<unk>", "<s>", "</s>"]
    model = {**_pieces(special), "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model}))
    tokenizer.add_special_tokens(special)
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(marks)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    usual = {"add_bos_token": True, "add_eos_token": False, "legacy": False, "sp_model_kwargs": {}}
    told = {"tokenizer_class": "LlamaTokenizer", **named, **usual, **said}
    (directory / "tokenizer_config.json").write_text(json.dumps(told))
    list_added(directory)


def gemma_tokenizer(directory):
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    model = {**_pieces(special), "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "model": model}))
    tokenizer.add_special_tokens(special)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad")}
    said = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, **named}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    list_added(directory)
