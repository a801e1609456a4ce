"""Directories: what is opened, and what a sound model tells about itself."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save, save_file

from attnviz.draw.provenance import shape_words
from attnviz.errors import LoadError, UsageError
from attnviz.models import memory
from attnviz.models.checkpoint_files import local_directory
from attnviz.models.huggingface import load_transformers
from attnviz.models.prepare import prepared
from attnviz.models.work import LoadOptions
from attnviz.records import Tokens

from .damages import WEIGHTS, cut, edit, fields, put

OTHER = save({"other": torch.zeros(2)}, {"format": "pt"})


def set_fields(path, **fields):
    """Set fields of a JSON file; None takes a field away."""
    content = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({key: field for key, field in content.items() if field is not None}))


def test_a_decoder_directory(checkpoint):
    directory = checkpoint("gpt2")
    model = load_transformers(str(directory))
    info = model.info
    assert (info.name, info.revision, info.architecture) == (
        str(directory),
        None,
        "GPT2LMHeadModel",
    )
    assert (info.layers, info.heads, info.kv_heads, info.head_dim) == (2, 3, 3, 2)
    assert (info.dtype, info.weights, info.seed, info.notes) == ("float32", "checkpoint", None, ())
    assert (model.kinds, model.context) == (("self",), 17)
    assert not model.model.training
    assert not any(weight.requires_grad for weight in model.model.parameters())


@pytest.mark.parametrize(
    ("kind", "shape", "context"),
    [
        ("llama", (2, 6, 2, 4), 23),
        ("bert", (2, 3, 3, 2), 11),
        ("roberta", (2, 3, 3, 2), 11),
        ("t5", (2, 3, 3, 5), None),
        ("bart", (2, 3, 3, 2), 19),
    ],
)
def test_shape_and_context(checkpoint, kind, shape, context):
    model = load_transformers(str(checkpoint(kind)))
    info = model.info
    assert (info.layers, info.heads, info.kv_heads, info.head_dim) == shape
    assert model.context == context
    stacks = ("encoder", "decoder", "cross") if kind in ("t5", "bart") else ("self",)
    assert model.kinds == stacks


def test_the_longest_roberta_text_runs_and_a_longer_one_does_not(checkpoint):
    model = load_transformers(str(checkpoint("roberta")))
    with torch.no_grad():
        model.model(torch.full((1, model.context), 4))
        with pytest.raises((IndexError, RuntimeError)):
            model.model(torch.full((1, model.context + 1), 4))


def test_tokens_know_which_were_added_and_a_cut_text_keeps_them(checkpoint):
    model = load_transformers(str(checkpoint("bert")))
    tokens = model.encode("the cat sat")
    assert tokens.ids == (1, 4, 5, 6, 2)
    assert tokens.texts == ("<s>", "the", "cat", "sat", "</s>")
    assert tokens.special == (True, False, False, False, True)
    assert model.encode("the cat sat on the mat", limit=4).texts == ("<s>", "the", "cat", "</s>")
    assert len(model.encode("the cat sat on the mat")) == 8
    with pytest.raises(UsageError, match="adds 2 special tokens"):
        model.encode("the cat", limit=1)


def test_a_tokenizer_of_another_model_is_told(checkpoint):
    directory = checkpoint("gpt2")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["dog", "hen", "cow"])
    tokenizer.save_pretrained(directory)
    with pytest.raises(LoadError, match="the id 13, the model has 13 embeddings"):
        load_transformers(str(directory)).encode("the dog hen cow")


@pytest.mark.parametrize(
    ("kind", "expected"),
    # T5 starts with its padding, BART with its end token; the last label is shifted out.
    [("t5", (0, 1, 5, 6)), ("bart", (2, 1, 5, 6))],
)
def test_a_target_is_shifted_right(checkpoint, kind, expected):
    model = load_transformers(str(checkpoint(kind)))
    target = model.encode_target("cat sat")
    assert target.ids == expected
    assert target.special == (True, True, False, False)
    assert model.encode_target("cat sat", limit=2).ids == expected[:2]


def test_no_word_is_shifted_out_where_the_tokenizer_adds_no_end(checkpoint):
    directory = Path(checkpoint("t5"))
    path = directory / "tokenizer.json"
    description = json.loads(path.read_text())
    description["post_processor"] = None
    path.write_text(json.dumps(description))
    assert load_transformers(str(directory)).encode_target("cat sat").texts[1:] == ("cat", "sat")


def test_a_decoder_deeper_than_its_encoder_writes_a_target():
    """transformers sizes a cache by the encoder's layers."""
    sizes = {"d_model": 6, "d_kv": 5, "d_ff": 7, "num_heads": 3, "vocab_size": 13}
    config = transformers.T5Config(
        num_layers=1, num_decoder_layers=3, decoder_start_token_id=0, **sizes
    )
    t5 = transformers.T5ForConditionalGeneration(config)
    model = prepared("t5", t5, None, torch.device("cpu"), seed=0)
    target = model.greedy_target(Tokens((3, 4), ("a", "b"), (False, False)), limit=5)
    assert 1 <= len(target) <= 5
    shapes = {kind: shape_words(model.info.of(kind)) for kind in model.kinds}
    decoder = "3 layers × 3 heads"
    assert shapes == {"encoder": "1 layer × 3 heads", "decoder": decoder, "cross": decoder}


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_the_default_target_is_the_greedy_output(checkpoint, kind):
    model = load_transformers(str(checkpoint(kind)))
    source = model.encode("the cat sat")
    target = model.greedy_target(source, limit=7)
    assert target == model.greedy_target(source, limit=7)
    assert 1 <= len(target) <= 7
    assert target.special[0]
    ids = list(target.ids[:1])
    with torch.no_grad():
        for _ in range(len(target) - 1):  # the likeliest token, one at a time
            logits = model.model(
                input_ids=torch.tensor([source.ids]), decoder_input_ids=torch.tensor([ids])
            ).logits
            ids.append(int(logits[0, -1].argmax()))
    assert target.ids == tuple(ids)
    assert len(model.greedy_target(source, limit=1)) == 1


def test_a_bare_encoder_decoder_cannot_write_its_target(checkpoint):
    model = load_transformers(str(checkpoint("bart", "BartModel")))
    assert model.kinds == ("encoder", "decoder", "cross")
    assert model.encode_target("cat").ids == (2, 1, 5)
    with pytest.raises(UsageError, match="--target"):
        model.greedy_target(model.encode("cat"), limit=3)


def test_a_bare_encoder_says_so(checkpoint):
    model = load_transformers(str(checkpoint("bert", "BertModel")))
    assert model.info.architecture == "BertModel"
    assert len(model.info.notes) == 1
    assert "no language-model head" in model.info.notes[0]


def test_a_head_without_weights_is_left_away_and_nothing_printed(checkpoint, capfd):
    directory = checkpoint("bert", "BertModel")
    set_fields(directory / "config.json", architectures=["BertForMaskedLM"])
    model = load_transformers(str(directory))
    assert model.info.architecture == "BertModel"
    assert "lacks the weights of BertForMaskedLM's head" in model.info.notes[0]
    model.encode("the cat " * 40)
    assert capfd.readouterr() == ("", "")


def test_a_pooler_without_weights_is_left_away(checkpoint):
    directory = checkpoint("bert")
    set_fields(directory / "config.json", architectures=["BertModel"])
    model = load_transformers(str(directory))
    assert model.info.architecture == "BertModel"
    assert not [name for name in model.model.state_dict() if "pooler" in name]


@pytest.mark.parametrize("named", [None, ["pipeline"]])
def test_what_names_no_model_class_is_the_bare_model(checkpoint, named):
    directory = checkpoint("gpt2")
    set_fields(directory / "config.json", architectures=named)
    assert load_transformers(str(directory)).info.architecture == "GPT2Model"


def test_a_chosen_dtype_and_the_checkpoints_own(checkpoint):
    directory = checkpoint("gpt2")
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        assert load_transformers(str(directory), LoadOptions(dtype=dtype)).info.dtype == dtype
    transformers.GPT2LMHeadModel.from_pretrained(directory, dtype=torch.bfloat16).save_pretrained(
        directory
    )
    assert load_transformers(str(directory)).info.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"device": device}, "expected cpu") for device in ("gpu", "cuda:99", "", "meta")),
        ({"dtype": "int4"}, "expected auto, float16"),
        ({"revision": "main"}, "has no revision 'main'"),
    ],
)
def test_what_a_directory_has_not_is_a_usage_error(checkpoint, options, said):
    with pytest.raises(UsageError, match=said):
        load_transformers(str(checkpoint("gpt2")), LoadOptions(**options))


def test_layers_beyond_the_config_are_mentioned(checkpoint):
    directory = checkpoint("llama")
    config = json.loads((directory / "config.json").read_text())
    layers = config["num_hidden_layers"]
    config |= {"num_hidden_layers": 1, "layer_types": None}
    (directory / "config.json").write_text(json.dumps(config))
    note = f"the files hold layers 1 to {layers - 1} too"
    assert any(note in one for one in load_transformers(str(directory)).info.notes)


def test_a_directory_of_sentence_transformers_is_its_transformer(tmp_path):
    assert local_directory(str(tmp_path), None) == tmp_path
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    (inner / "config.json").touch()
    assert local_directory(str(tmp_path), None) == inner
    (tmp_path / "config.json").touch()
    assert local_directory(str(tmp_path), None) == tmp_path


def refusal(directory, **options):
    """The one line with which a directory is refused."""
    with pytest.raises(LoadError) as caught:
        load_transformers(str(directory), LoadOptions(**options))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    assert message.strip()
    return message


def pickle_only(directory):
    tensors = load_file(directory / "model.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def lose_a_shard(directory):
    names = list(load_file(directory / WEIGHTS))
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (directory / WEIGHTS).rename(directory / shards[0])
    index = {"metadata": {}, "weight_map": {name: shards[n % 2] for n, name in enumerate(names)}}
    (directory / f"{WEIGHTS}.index.json").write_text(json.dumps(index))


def spoil_the_index(directory):
    (directory / WEIGHTS).rename(directory / "model-00001-of-00001.safetensors")
    (directory / f"{WEIGHTS}.index.json").write_text('{"weight_map": [1]}')


def take_away_weights(directory):
    tensors = load_file(directory / WEIGHTS)
    for gone in ("transformer.h.0.attn.c_attn.weight", "transformer.h.1.ln_1.bias"):
        del tensors[gone]
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def take_away_the_tokenizer(directory, kept=""):
    for path in directory.glob("*token*"):
        if path.name != kept:
            path.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda directory: (directory / "config.json").unlink(), "no config.json"),
        *((put("config.json", content), "JSON") for content in ("{", "[]", "\udcff")),
        (fields(model_type="gpt77"), "'gpt77', which transformers"),
        *((fields(**wrong), "") for wrong in ({"n_head": "many"}, {"n_head": 4}, {"n_embd": -6})),
        (
            lambda directory: (directory / WEIGHTS).rename(directory / "tf_model.h5"),
            "found only tf_model.h5",
        ),
        (put(WEIGHTS, "version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS"),
        (fields(rope_parameters={"rope_type": "linear", "factor": 0.0}), "factor = 0.0: expected"),
        *(
            (cut(WEIGHTS, kept), f"{WEIGHTS} is not a complete safetensors file")
            for kept in (0, 5, 200, -1)
        ),
        (lose_a_shard, "model-00002-of-00002.safetensors is missing"),
        (spoil_the_index, "no 'weight_map'"),
        (take_away_weights, "lacks 2 weights"),
        (take_away_weights, "first transformer.h.0.attn.c_attn.weight"),
        (fields(n_positions=19), "wpe.weight is 17×6 in the file and should be 19×6"),
        (put(WEIGHTS, OTHER), "weights of a GPT2LMHeadModel, first transformer.wte.weight"),
        (put(WEIGHTS, OTHER), "another model"),
        (take_away_the_tokenizer, "tokenizer"),
        (partial(take_away_the_tokenizer, kept="tokenizer_config.json"), "tokenizer"),
        *(
            (put("tokenizer.json", content), "the tokenizer of")
            for content in ("{", '{"model": {}}', "[]")
        ),
    ],
)
def test_what_is_damaged_is_said(checkpoint, damage, said):
    directory = checkpoint("gpt2")
    damage(directory)
    assert said in refusal(directory)


def test_pickles_are_refused_unless_allowed_and_whole(checkpoint):
    directory = checkpoint("gpt2")
    pickle_only(directory)
    assert "--allow-pickle" in refusal(directory)
    model = load_transformers(str(directory), LoadOptions(allow_pickle=True))
    assert model.info.architecture == "GPT2LMHeadModel"
    (directory / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "cannot be read" in refusal(directory, allow_pickle=True)


def own_code(directory):
    """Give a checkpoint a model type that only the code beside it knows; it leaves a trace."""
    trace = directory / "ran"
    (directory / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        f"Path({str(trace)!r}).touch()\n"
        "class OwnConfig(GPT2Config):\n    model_type = 'own'\n"
        "class OwnModel(GPT2LMHeadModel):\n    config_class = OwnConfig\n"
    )
    edit(
        directory / "config.json",
        model_type="own",
        architectures=["OwnModel"],
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    )
    return trace


def test_code_of_the_checkpoint_runs_only_when_trusted(checkpoint, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    directory = checkpoint("gpt2")
    trace = own_code(directory)
    assert "--trust-remote-code" in refusal(directory)
    assert not trace.exists()
    model = load_transformers(str(directory), LoadOptions(trust_remote_code=True))
    assert trace.exists()
    assert model.info.architecture == "OwnModel"
    assert model.encode("the cat").ids == (1, 4, 5, 2)


def test_code_of_the_tokenizer_runs_only_when_trusted(checkpoint):
    directory = checkpoint("gpt2")
    edit(
        directory / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]},
    )
    assert "--trust-remote-code" in refusal(directory)


def test_what_does_not_fit_is_refused_before_it_is_read(checkpoint, monkeypatch):
    directory = checkpoint("gpt2")
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    assert "1.00 kB are free on cpu" in refusal(directory)


def test_a_path_that_is_no_directory():
    assert "neither a directory nor" in refusal(Path("no") / "such" / "directory")
