"""A checkpoint gives the same tokens and weights by NumPy alone as by transformers."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from attnviz.attention.families import NotUnderstoodError
from attnviz.engine.capture import Choice, capture_text
from attnviz.errors import AttnvizError, UnsupportedError
from attnviz.models import numpy_checkpoint
from attnviz.models.model import weights_fingerprint
from attnviz.models.numpy_checkpoint import NumpyCheckpoint, open_numpy
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work

from ..quick import one_in
from .damages import CONFIG, WEIGHTS, cut, fields, put
from .tokenizer_files import (
    TEXTS,
    bert_tokenizer,
    gpt2_tokenizer,
    llama_tokenizer,
    neox_tokenizer,
    plain_tokenizer,
    qwen_tokenizer,
    roberta_tokenizer,
)

SMALL = {"vocab_size": 450, "max_position_embeddings": 640, "hidden_size": 24}
SMALL |= {"num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 31}
MODELS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 450, "n_positions": 640, "n_embd": 21, "n_layer": 2, "n_head": 3},
        gpt2_tokenizer,
    ),
    "llama": (
        "LlamaForCausalLM",
        dict(SMALL, vocab_size=600, num_key_value_heads=1),
        llama_tokenizer,
    ),
    "mistral": ("MistralForCausalLM", dict(SMALL, num_key_value_heads=1), plain_tokenizer),
    "qwen2": ("Qwen2ForCausalLM", dict(SMALL, num_key_value_heads=3), qwen_tokenizer),
    "neox": ("GPTNeoXForCausalLM", SMALL, neox_tokenizer),
    "bert": ("BertForMaskedLM", SMALL, bert_tokenizer),
    "bert, cased": ("BertModel", SMALL, lambda path: bert_tokenizer(path, lower=False)),
    "roberta": ("RobertaModel", dict(SMALL, pad_token_id=1), roberta_tokenizer),
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ONE = "transformer.h.1.attn.c_attn.weight"


@pytest.fixture(scope="module", params=MODELS)
def directory(request, tmp_path_factory):
    return made(tmp_path_factory.mktemp("model"), request.param)


def made(path, name, **saving):
    named, settings, write = MODELS[name]
    model_class = getattr(transformers, named)
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(path, **saving)
    write(path)
    return path


def weights(model, text):
    return [layer.weights for layer in capture_text(model, text, Choice())[0].layers]


def test_tokens_weights_and_words_are_the_same(directory):
    ours = open_numpy(str(directory), None, None)
    theirs = load(str(directory), LoadOptions(backend="torch"))
    for text in TEXTS[:40]:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, 7) == theirs.encode(text, 7), text
    for text in ("The cat sat on the mat.", "한국어 [SEP] 😀 <pad> café", "word " * 60):
        for one, other in zip(weights(ours, text), weights(theirs, text), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert replace(ours.info, backend="torch") == theirs.info
    assert (ours.context, ours.kinds) == (theirs.context, theirs.kinds)
    assert weights_fingerprint(ours) == weights_fingerprint(theirs)
    one, other = ours.vocabulary(), theirs.vocabulary()
    assert one.plain.tolist() == other.plain.tolist()
    assert (one.before, one.after, one.ranked) == (other.before, other.after, other.ranked)
    assert one.texts([5, 9]) == other.texts([5, 9])


def test_shards_are_one(tmp_path):
    made(tmp_path / "one", "gpt2")
    made(tmp_path / "many", "gpt2", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = (open_numpy(str(tmp_path / name), None, None) for name in ("one", "many"))
    for first, second in zip(weights(one, "the cat"), weights(many, "the cat"), strict=True):
        np.testing.assert_array_equal(first, second)


CHANGES = {
    "a setting of another type": ("tokenizer_config.json", {"do_lower_case": "yes"}),
    "another class": ("tokenizer_config.json", {"tokenizer_class": "BartTokenizer"}),
    "an unknown setting": ("tokenizer_config.json", {"surprise": 1}),
    "a token that is not there": ("tokenizer_config.json", {"mask_token": "<nothing>"}),
    "cut from the left": ("tokenizer_config.json", {"truncation_side": "left"}),
    "further tokens": ("added_tokens.json", {"new": 440}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tokenizer_that_transformers_would_change_is_left_to_it(change, tmp_path):
    made(tmp_path, "bert")
    file, fields = CHANGES[change]
    path = tmp_path / file
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**said, **fields}))
    with pytest.raises(NotUnderstoodError):
        open_numpy(str(tmp_path), None, None)


def test_what_takes_longer_than_torch_is_left_to_it(tmp_path, monkeypatch):
    for name in ("workers", "allowed_processors"):
        monkeypatch.setattr(numpy_checkpoint, name, lambda: 2)
    made(tmp_path, "gpt2")
    with pytest.raises(NotUnderstoodError, match="run faster in torch"):
        open_numpy(str(tmp_path), None, Work(10**8))
    # One processor gains nothing from a library that must start first.
    work = Work(10**8, texts=10**5)
    assert open_numpy(str(tmp_path), None, work, threads=1).info.backend == "numpy"
    assert isinstance(load(str(tmp_path), LoadOptions(work=Work(10))), NumpyCheckpoint)
    for other in (
        LoadOptions(),
        LoadOptions(work=Work(10), backend="torch"),
        LoadOptions(work=Work(10), dtype="bfloat16"),
        LoadOptions(work=Work(10**8)),
    ):
        assert not isinstance(load(str(tmp_path), other), NumpyCheckpoint)


@pytest.mark.parametrize(
    ("work", "runs"),
    [
        (Work(6_600), True),  # .97 GiB: two layers of three heads, four bytes a weight
        (Work(6_700), False),
        (Work(67_000, texts=10), False),
        (Work(67_000, texts=11), True),
    ],
)
def test_long_texts_whose_maps_fill_the_memory_are_left_to_torch(work, runs, tmp_path):
    made(tmp_path, "gpt2")
    with nullcontext() if runs else pytest.raises(NotUnderstoodError, match="run faster in torch"):
        open_numpy(str(tmp_path), None, work, threads=1)


@pytest.mark.parametrize(
    "options",
    [
        LoadOptions(backend="numpy"),
        LoadOptions(backend="numpy", work=Work(9), dtype="float64"),
        LoadOptions(backend="numpy", work=Work(9), device="cuda"),
    ],
)
def test_numpy_alone_says_why_not(options, tmp_path):
    made(tmp_path, "gpt2")
    with pytest.raises(UnsupportedError, match=r"--backend numpy cannot run .*; leave it out"):
        load(str(tmp_path), options)


def attnviz(*words, **environment):
    code = (
        "import sys, attnviz.cli.main as m\n"
        "try: m.main()\n"
        "finally: print(sorted({'torch', 'transformers', 'huggingface_hub'} & {*sys.modules}),"
        " file=sys.stderr)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_neither_torch_nor_transformers_is_imported(tmp_path):
    made(tmp_path, "bert")
    done = attnviz("heads", "the cat", "--model", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "[]\n")


def cached(cache):
    """A sharded model as huggingface_hub keeps it: links to blobs, a branch and a tag."""
    place = cache / "models--someone--small"
    made(place / "files", "bert", max_shard_size="20KB")
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (place / "blobs").mkdir()
    for number, path in enumerate(sorted((place / "files").iterdir())):
        blob = path.rename(place / "blobs" / str(number))
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", blob.name))
    for reference in ("main", "v1.0"):
        (place / "refs").mkdir(exist_ok=True)
        (place / "refs" / reference).write_text(COMMIT)
    return snapshot


@pytest.mark.parametrize(
    ("cache", "variable", "words"),
    [
        ("hub", "HF_HOME", ["--offline"]),
        *(
            pytest.param(*way, marks=pytest.mark.long)
            for way in (
                ("huggingface/hub", "XDG_CACHE_HOME", ["--revision", "v1.0"]),
                (".", "HF_HUB_CACHE", ["--revision", COMMIT]),
            )
        ),
    ],
)
def test_the_cache_of_the_hub_is_read(cache, variable, words, tmp_path, monkeypatch):
    for other in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    cached(tmp_path / cache)
    command = ["heads", "a cat", "-m", "someone/small", "--json", *words]
    done = attnviz(*command, **{variable: str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "[]\n")
    model = json.loads(done.stdout)["model"]
    assert (model["revision"], model["backend"]) == (COMMIT, "numpy")


@pytest.mark.parametrize(
    "lack", ["a branch", "a commit", "a commit in letters", "a shard", "the snapshot", "nothing"]
)
def test_what_the_cache_lacks(lack, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = cached(tmp_path)
    match lack:
        case "a shard":
            next(snapshot.glob("*.safetensors")).resolve().unlink()
        case "a commit":  # huggingface_hub takes the file as it is
            (snapshot.parents[1] / "refs" / "main").write_text(f"{COMMIT}\n")
        case "a commit in letters":
            (snapshot.parents[1] / "refs" / "main").write_bytes(b"\xff" * 40)
        case "the snapshot":
            snapshot.rename(snapshot.with_name("elsewhere"))
    revision = "nightly" if lack == "a branch" else None
    if lack == "nothing":
        assert open_numpy("someone/small", revision, None).info.revision == COMMIT
        made(tmp_path / "someone" / "small", "gpt2")
        monkeypatch.chdir(tmp_path)  # a directory of that name comes first
        assert open_numpy("someone/small", None, None).info.architecture == "GPT2LMHeadModel"
    else:
        with pytest.raises((NotUnderstoodError, AttnvizError)):
            open_numpy("someone/small", revision, None)


def tensors(change):
    def changed(place):
        from safetensors.numpy import load_file, save_file

        held = load_file(place / WEIGHTS)
        change(held)
        save_file(held, place / WEIGHTS, {"format": "pt"})

    return changed


def endless(place):
    content = (place / WEIGHTS).read_bytes()
    (place / WEIGHTS).write_bytes((2**40).to_bytes(8, "little") + content[8:])


DAMAGES = {
    "cut off": cut(WEIGHTS, -10),
    "empty": cut(WEIGHTS, 0),
    "a header without end": endless,
    **{
        f"no {name}": partial(lambda place, name: (place / name).unlink(), name=name)
        for name in (WEIGHTS, CONFIG, "tokenizer.json")
    },
    "tokenizer cut off": cut("tokenizer.json", 100),
    "settings no JSON": put("tokenizer_config.json", "{"),
    "a class that is none": put("tokenizer_config.json", '{"tokenizer_class": "GPT2LMHeadModel"}'),
    "no JSON": put(CONFIG, "{"),
    "a list": put(CONFIG, "[]"),
    "more layers": fields(n_layer=3),
    "other heads": fields(n_head=4),
    "zero heads": fields(n_head=0),
    "other widths": fields(n_inner=90),
    "few embeddings": fields(vocab_size=100),
    "no class": fields(architectures=None),
    "labels of text": fields(id2label="x"),
    "a type of its own": fields(dtype="float8"),
    "a whole epsilon": fields(layer_norm_epsilon=0),
    "two beginnings": fields(bos_token_id=[1, 2]),
    "not finite": tensors(lambda held: held[ONE].__setitem__((0, 0), np.nan)),
    "one less": tensors(lambda held: held.pop(ONE)),
    "one more": tensors(lambda held: held.update({ONE.replace("h.1", "h.7"): held[ONE]})),
    "turned around": tensors(lambda held: held.update({ONE: held[ONE].T.copy()})),
    "integers": tensors(lambda held: held.update({ONE: held[ONE].astype(np.int64)})),
    "wide numbers": tensors(lambda held: held.update({ONE: held[ONE].astype(np.float64)})),
}


@pytest.mark.parametrize("way", one_in(2, DAMAGES))
def test_what_is_damaged_is_said_as_ever(way, tmp_path):
    """Every second way in the quick run; ``test_huggingface_damage.py`` has them all on torch."""
    made(tmp_path, "gpt2")
    DAMAGES[way](tmp_path)
    said = []
    for backend in ("auto", "torch"):
        try:
            model = load(str(tmp_path), LoadOptions(work=Work(9), backend=backend))
            weights(model, "the cat")  # NumPy meets what it reads
            said.append((replace(model.info, backend="torch"), ""))
        except AttnvizError as error:
            said.append((type(error), str(error)))
    assert said[0] == said[1]
