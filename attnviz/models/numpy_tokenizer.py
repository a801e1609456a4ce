"""Opens a checkpoint's tokenizer without transformers, if both give the same tokens.

transformers 5 uses the ``tokenizer.json`` of a ``PreTrainedTokenizerFast`` unchanged. Tokenizers of
known classes it rebuilds from their vocabulary and merges, and ignores the rest of the file: what
each class builds is described here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers import processors as post_processors
from tokenizers.models import BPE, WordPiece

from attnviz.attention.families import NotUnderstoodError
from attnviz.models.model import ChatTemplate, MaskToken
from attnviz.models.pieces import check_files
from attnviz.models.third_party import tokenizing
from attnviz.reading import read_bytes, read_json, utf8

_SILENT = {
    *("tokenizer_class", "model_max_length", "padding_side", "clean_up_tokenization_spaces"),
    *("chat_template", "name_or_path", "special_tokens_map_file", "errors", "backend", "is_local"),
    *("local_files_only", "model_input_names", "tokenizer_file", "add_bos_token", "add_eos_token"),
    *("max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id"),
    *("use_default_system_prompt", "sp_model_kwargs", "add_prefix_space", "trim_offsets", "legacy"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "max_len", "do_basic_tokenize"),
    *("vocab_size", "spaces_between_special_tokens", "special_tokens_map_file"),
}
"""Fields of ``tokenizer_config.json`` that change no id, or that a class below uses."""

_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "split_special_tokens": (False,),
    "truncation_side": ("right",),
    "never_split": (None, []),
}
"""Further fields, and the values with which they change no id."""

_NAMED = ("unk", "bos", "eos", "sep", "cls", "pad", "mask")
_LARGE = 100_000  # vocabulary size above which transformers may repair the tokenizer of a Mistral
_QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)

Fields = Mapping[str, Any]

Named = Mapping[str, tuple[str, int]]  # the contents and ids of the special tokens by their names


@dataclass(frozen=True)
class _Class:
    """The rules by which a tokenizer class builds a tokenizer from a vocabulary and merges.

    named: the default contents of its special tokens. parts: takes the fields of
        ``tokenizer_config.json`` and the special tokens, returns what the class puts in place of
        the file's parts; under ``model`` settings that differ from ``_PLAIN``.
    model: the type of the tokenizer's model.
    """

    named: Mapping[str, str]
    parts: Callable[[Fields, Named], dict[str, Any]]
    model: type[Any] = BPE


def _bert(fields: Fields, named: Named) -> dict[str, Any]:
    (begin, _), (end, _) = named["cls"], named["sep"]
    return {
        "model": {"unk_token": named["unk"][0]},
        "normalizer": normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=fields.get("tokenize_chinese_chars", True),
            strip_accents=fields.get("strip_accents"),
            lowercase=fields.get("do_lower_case", True),
        ),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "post_processor": post_processors.TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
            special_tokens=[named["cls"], named["sep"]],
        ),
        "decoder": decoders.WordPiece(),
    }


def _gpt2(fields: Fields, named: Named) -> dict[str, Any]:
    spaced = fields.get("add_prefix_space", False)
    return {
        "normalizer": None,
        "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=spaced),
        "decoder": decoders.ByteLevel(),
    }


def _neox(fields: Fields, named: Named) -> dict[str, Any]:
    return {**_gpt2(fields, named), "normalizer": normalizers.NFC(), "post_processor": None}


def _qwen2(fields: Fields, named: Named) -> dict[str, Any]:
    spaced = bool(fields.get("add_prefix_space"))
    split = pre_tokenizers.Split(Regex(_QWEN_PIECES), behavior="isolated", invert=False)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
    return {
        "normalizer": normalizers.NFC(),
        "pre_tokenizer": pre_tokenizers.Sequence([split, pieces]),
        "decoder": decoders.ByteLevel(),
    }


def _roberta(fields: Fields, named: Named) -> dict[str, Any]:
    spaced, trimmed = fields.get("add_prefix_space", False), fields.get("trim_offsets", True)
    around = post_processors.RobertaProcessing(named["sep"], named["cls"], trimmed, spaced)
    return {**_gpt2(fields, named), "post_processor": around}


def _llama(fields: Fields, named: Named) -> dict[str, Any]:
    spaced = fields.get("add_prefix_space")
    first = "always" if fields.get("legacy", False) else "first"
    scheme = first if spaced is None or spaced else "never"
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return {
        "model": {"fuse_unk": True, "byte_fallback": True},
        "normalizer": None,
        "pre_tokenizer": pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False),
        "decoder": decoders.Sequence(steps),
    }


def _gemma(fields: Fields, named: Named) -> dict[str, Any]:
    return {
        "model": {"fuse_unk": True, "byte_fallback": True, "unk_token": named["unk"][0]},
        "normalizer": normalizers.Replace(" ", "▁"),
        "pre_tokenizer": pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        "decoder": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()]),
    }


_PLAIN: Mapping[type, Mapping[str, Any]] = {
    WordPiece: {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    BPE: {
        **dict.fromkeys(("dropout", "unk_token")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
    },
}
"""The settings of a model that is rebuilt."""

_END = "<|endoftext|>"
_ENDS = {"unk": _END, "bos": _END, "eos": _END}
_PAIR = {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}
_BERT = _Class(
    {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    _bert,
    WordPiece,
)
_CLASSES: Mapping[str, _Class] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "GPT2Tokenizer": _Class(_ENDS, _gpt2),
    "GPTNeoXTokenizer": _Class({**_ENDS, "pad": "<|padding|>"}, _neox),
    "Qwen2Tokenizer": _Class({"unk": _END, "eos": _END, "pad": _END}, _qwen2),
    "RobertaTokenizer": _Class(
        {**_PAIR, "sep": "</s>", "cls": "<s>", "pad": "<pad>", "mask": "<mask>"}, _roberta
    ),
    "LlamaTokenizer": _Class(_PAIR, _llama),
    "GemmaTokenizer": _Class(
        {"unk": "<unk>", "bos": "<bos>", "eos": "<eos>", "pad": "<pad>", "mask": "<mask>"}, _gemma
    ),
}

# The classes, without their ``Fast``, whose file is used unchanged.
_AS_IT_IS = ("PreTrainedTokenizer", "TokenizersBackend")

_USUAL: Mapping[str, str] = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "gemma": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "roberta": "RobertaTokenizer",
}
"""The default class of each model type; for other types the file is used unchanged."""

_ALWAYS_AS_IT_IS = ("granite", "mistral", "olmo2", "phi3")
_ALWAYS_USUAL = ("qwen2",)  # model types whose files are known to name a wrong class


@dataclass(frozen=True)
class OpenedTokenizer:
    """An opened tokenizer without truncation and padding.

    named: the ids of special tokens, ``bos`` even if it is not added. mask, chat: None without.
    paired: whether it tells two joined texts apart.
    """

    tokenizer: Tokenizer
    named: Mapping[str, int]
    mask: MaskToken | None
    chat: ChatTemplate | None
    paired: bool


def open_tokenizer(name: str, directory: Path, fields: Fields) -> OpenedTokenizer:
    """Return the tokenizer of a checkpoint's directory. fields: of its ``config.json``.

    Raises NotUnderstoodError if transformers might give other tokens, LoadError for a damaged file.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise NotUnderstoodError("there is no tokenizer.json")
    if (directory / "tekken.json").is_file() or (directory / "added_tokens.json").is_file():
        raise NotUnderstoodError("the tokenizer has further files")
    settings = _settings(directory)
    with tokenizing(name):
        check_files(name, directory)
        tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    kind = _class(settings, fields, path)
    named = _named(tokenizer, settings, {} if kind is None else kind.named)
    _check_added(tokenizer, settings, named, kind is not None)
    if kind is not None:
        _rebuild(tokenizer, kind, settings, named)
    elif fields["model_type"] == "mistral" and tokenizer.get_vocab_size() > _LARGE:
        raise NotUnderstoodError("a Mistral's tokenizer may be repaired")
    ids = {name: number for name, (_, number) in named.items()}
    mask = MaskToken(named["mask"][1], named["mask"][0]) if "mask" in named else None
    paired = "token_type_ids" in (settings.get("model_input_names") or ["token_type_ids"])
    path, source = directory / "chat_template.jinja", settings.get("chat_template")
    if path.is_file():
        source = utf8(read_bytes(path), repr(path.name))
    if isinstance(source, list):
        source = {str(template["name"]): template["template"] for template in source}.get("default")
    special = {f"{name}_token": content for name, (content, _) in named.items()}
    chat = ChatTemplate(source, special) if isinstance(source, str) else None
    return OpenedTokenizer(tokenizer, ids, mask, chat, paired)


def _settings(directory: Path) -> dict[str, Any]:
    path, older = directory / "tokenizer_config.json", directory / "special_tokens_map.json"
    settings = read_json(path) if path.is_file() else {}
    if "added_tokens_decoder" not in settings and older.is_file():
        settings = {**settings, **read_json(older)}
    if not isinstance(settings.get("model_max_length", 0), int | float):
        raise NotUnderstoodError("the tokenizer's model_max_length is no number")
    for field, value in settings.items():
        if field in _MUST_BE:
            if value not in _MUST_BE[field]:
                raise NotUnderstoodError(f"the tokenizer has {field} = {value!r}")
        elif field not in _SILENT and field not in _TOKENS:
            raise NotUnderstoodError(f"no description of the tokenizer's {field}")
    return settings


_TOKENS = {
    *(f"{name}_token" for name in _NAMED),
    *("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"),
}


def _class(settings: Fields, fields: Fields, path: Path) -> _Class | None:
    """Return the tokenizer class that transformers uses, or None if it uses the file unchanged."""
    model_type = str(fields["model_type"])
    declared = settings.get("tokenizer_class") or fields.get("tokenizer_class")
    if model_type in _ALWAYS_AS_IT_IS:
        return None
    if declared is None or model_type in _ALWAYS_USUAL:
        declared = _USUAL.get(model_type, _AS_IT_IS[0])
    declared = str(declared).removesuffix("Fast")
    if declared in _AS_IT_IS:
        return None
    if declared not in _CLASSES:
        raise NotUnderstoodError(f"no description of the {declared}")
    if declared == "LlamaTokenizer" and b'"ByteLevel"' in path.read_bytes():
        raise NotUnderstoodError("a LlamaTokenizer of bytes")
    return _CLASSES[declared]


def _named(tokenizer: Tokenizer, settings: Fields, usual: Mapping[str, str]) -> dict[str, Any]:
    named: dict[str, tuple[str, int]] = {}
    for name in _NAMED:
        value = settings.get(f"{name}_token", usual.get(name))
        if value is None:
            if name in usual:
                raise NotUnderstoodError(f"the tokenizer has no {name}_token")
            continue
        content = str(value.get("content")) if isinstance(value, Mapping) else str(value)
        number = tokenizer.token_to_id(content)
        if number is None:
            raise NotUnderstoodError(f"the tokenizer does not know its {name}_token")
        named[name] = content, number
    return named


def _check_added(
    tokenizer: Tokenizer, settings: Fields, named: Mapping[str, tuple[str, int]], rebuilt: bool
) -> None:
    """Raise NotUnderstoodError if the files disagree on tokens added to the vocabulary."""
    there: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
    by_content = {token.content: token for token in there.values()}
    for name, (content, _) in named.items():
        token = by_content.get(content)
        if token is None or not token.special:
            raise NotUnderstoodError(f"the tokenizer's {name}_token is no special one")
    listed = settings.get("added_tokens_decoder")
    if listed is not None:
        tokens = {int(number): _added(token) for number, token in dict(listed).items()}
        for number, token in tokens.items():
            if number not in there or _flags(token) != _flags(there[number]):
                raise NotUnderstoodError(f"the tokenizer's files differ on {token.content!r}")
        if rebuilt and tokens.keys() != there.keys():
            raise NotUnderstoodError("the tokenizer's files list other added tokens")
    further = [settings.get(f"{name}_token") for name in _NAMED if f"{name}_token" in settings]
    for field in ("additional_special_tokens", "extra_special_tokens"):
        extra = settings.get(field) or []
        if isinstance(extra, Mapping):
            raise NotUnderstoodError(f"the tokenizer has {field} with names")
        further += [*extra]
    for value in further:
        if isinstance(value, Mapping):
            token = _added({**value, "special": True})
            known = by_content.get(token.content)
            if known is None or _flags(token) != _flags(known):
                raise NotUnderstoodError(f"the tokenizer's files differ on {token.content!r}")
        elif value is not None and value not in by_content:
            raise NotUnderstoodError(f"the tokenizer does not know {value!r}")


def _added(value: Any) -> AddedToken:
    if not isinstance(value, Mapping):
        raise NotUnderstoodError(f"the tokenizer adds {value!r}")
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    content = str(value.get("content"))
    return AddedToken(content, **{flag: bool(value[flag]) for flag in flags if flag in value})


def _flags(token: AddedToken) -> tuple[object, ...]:
    strips = token.single_word, token.lstrip, token.rstrip
    return (token.content, *strips, token.normalized, token.special)


def _rebuild(tokenizer: Tokenizer, kind: _Class, settings: Fields, named: Named) -> None:
    """Rebuild the tokenizer in place as its class does from the file's vocabulary and merges."""
    model: Any = tokenizer.model
    try:
        parts = kind.parts(settings, named)
    except TypeError as error:
        raise NotUnderstoodError("a setting of the tokenizer is of another type") from error
    if type(model) is not kind.model:
        raise NotUnderstoodError(f"the tokenizer's model is a {type(model).__name__}")
    if isinstance(model, BPE) and (model.continuing_subword_prefix or model.end_of_word_suffix):
        raise NotUnderstoodError("the tokenizer's merges mark the parts of words")
    for name, value in {**_PLAIN[kind.model], **parts.pop("model", {})}.items():
        setattr(model, name, value)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    # Added tokens that the vocabulary lacks get the ids after it, in their order.
    following = tokenizer.get_vocab_size(with_added_tokens=False)
    for number, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        if (known := model.token_to_id(token.content)) is None:
            known, following = following, following + 1
        if known != number:
            raise NotUnderstoodError(f"the tokenizer gives {token.content!r} another id")
