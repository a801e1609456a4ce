"""Small files and a hub as strangers might send them: one line each, nothing is built."""

import json
import math
import time
from pathlib import Path

import pytest
import yaml

from attnviz.count.params.meta_count import count_on_meta
from attnviz.errors import LoadError
from attnviz.models.checkpoint_files import read_config

from ..models import stand_in_hub

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
NO_SIZES = (0, -1, 10**30, 1.5, math.nan, math.inf, True, "x", [], {"a": 1})
BUILT = {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}
_QUICK = 20.0
"""Seconds, on a machine with other work; each was a minute or a full memory before."""
HUB_CODE = "kernels-community/evil"


def changed():
    """Yield the kind of a checkpoint, its file, the commands, the fields and words of the line."""
    table = Path(__file__).with_name("configs.yaml").read_text(encoding="utf-8")
    for part in yaml.safe_load(table):
        file, asked = part.get("file", "config.json"), part.get("asked", ["heads"])
        for fields, says in part["rows"]:
            yield pytest.param(part["of"], file, asked, fields, says, id=f"{part['of']} {fields}")


@pytest.mark.parametrize(("kind", "file", "asked", "fields", "says"), [*changed()])
def test_a_changed_file_is_one_line(kind, file, asked, fields, says, stranger, refused, tmp_path):
    if kind == "qwen3_next":
        directory = tmp_path
        (tmp_path / file).write_text(json.dumps(BUILT | fields))
    else:
        directory = stranger(kind, file, **fields)
    for command in asked:
        began = time.monotonic()
        words = ("heads", "the cat", "--model") if command == "heads" else (command, "--json")
        said = refused(3, *words, str(directory))
        assert says in said
        assert "ModelInfo(" not in said
        assert time.monotonic() - began < _QUICK


def test_parameters_that_the_files_name_otherwise(llama, refused):
    """No name is the same, so only the numbers of both can be compared."""
    from safetensors.torch import load_file, save_file

    path = llama(intermediate_size=10**6) / "model.safetensors"
    save_file({f"x.{name}": tensor for name, tensor in load_file(path).items()}, path)
    said = refused(3, "heads", "the cat", "--model", str(path.parent))
    assert "that asks for 72,001,908 parameters" in said
    assert "its files hold 2,268" in said


def test_a_size_that_does_not_fit_the_memory_and_a_shape_of_too_many_layers(
    llama, refused, tmp_path, monkeypatch
):
    shape = tmp_path / "shape.toml"
    shape.write_text(
        "[config]\nmodel_type = 'gpt2'\narchitectures = ['GPT2LMHeadModel']\nn_layer = 1000000000"
    )
    said = refused(3, "heads", "the cat", "--model", str(shape))
    assert "n_layer = 1,000,000,000: expected at most 2,000" in said
    monkeypatch.setattr("attnviz.models.memory.free_memory", lambda device: 1000)
    said = refused(3, "heads", "the cat", "--backend", "torch", "--model", str(llama()))
    assert "the weights of" in said
    assert "1.00 kB are free on cpu" in said


def test_code_that_a_config_names_is_not_asked_for(llama, run):
    for named in ({"AutoModel": None}, {"AutoTokenizer": ["x.Y", None]}):
        assert run("heads", "the cat", "--model", str(llama(auto_map=named))).code == 0
    for named in ({}, {"AutoModel": None}, {"AutoModel": "x.Y"}):
        assert run("params", str(llama(auto_map=named)), "--json").document["total"] > 0


@pytest.mark.parametrize("command", ["ablate", "patterns"])
def test_a_forward_pass_that_fails(command, llama, refused, monkeypatch):
    monkeypatch.delattr("transformers.models.llama.modeling_llama.rotate_half")
    text = "the cat sat on the mat because the cat sat"
    said = refused(3, command, text, "--model", str(llama()), "--backend", "torch")
    assert "LlamaForCausalLM cannot run over this text: " in said


@pytest.mark.parametrize("base", [math.nan, 0, -1.0, math.inf, 10**400], ids=str)
@pytest.mark.parametrize(
    "place", [lambda b: {"rope_theta": b}, lambda b: {"rope_parameters": {"a": {"rope_theta": b}}}]
)
def test_a_rotary_base_is_a_number_above_0(tmp_path, base, place):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **place(base)}))
    with pytest.raises(LoadError, match=r"has rope_theta = .*: expected a number above 0"):
        read_config("m", tmp_path)


def test_a_dtype_that_is_none_is_refused_where_no_file_states_it(refused, llama):
    directory = llama(dtype="banana")
    for weights in directory.glob("*.safetensors"):
        weights.unlink()
    assert "dtype = 'banana'" in refused(3, "params", str(directory))


@pytest.mark.parametrize("field", SIZES)
def test_a_size_that_is_none_is_refused(refused, llama, field):
    for value in NO_SIZES:
        assert field in refused(3, "params", str(llama(**{field: value})), "--json"), value


def test_floats_as_transformers_writes_them(run, tmp_path):
    import transformers

    config = transformers.Mamba2Config(
        hidden_size=16, num_heads=4, head_dim=8, state_size=4, n_groups=1, num_hidden_layers=2
    )
    config.architectures = ["Mamba2ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert run("params", str(tmp_path), "--json").document["total"] > 0


def test_a_gate_that_a_t5_names_alone_counts(run, checkpoint, tmp_path):
    fields = json.loads((checkpoint("t5") / "config.json").read_text())
    totals = []
    for gated in (False, True):
        (tmp_path / "config.json").write_text(json.dumps(fields | {"is_gated_act": gated}))
        totals.append(run("params", str(tmp_path), "--json").document["total"])
    assert totals[1] - totals[0] == 4 * 6 * 7  # a third matrix d_model × d_ff in each layer


CHOICES = [
    {"_attn_implementation": HUB_CODE},
    {"attn_implementation": HUB_CODE},
    {"attn_implementation": {"": HUB_CODE}},
    {"attn_implementation": "flash_attention_2"},
    {"_attn_implementation_internal": HUB_CODE},
    {"experts_implementation": "sonicmoe", "use_kernels": True},
    {"transformers_weights": "../other.safetensors"},
]


def test_a_config_that_names_code_just_opens(llama, document):
    file = llama() / "config.json"
    before = json.loads(file.read_text())
    plain = document("the cat", "--backend", "torch", "--model", "m")
    for fields in CHOICES:
        file.write_text(json.dumps(before | fields))
        assert count_on_meta(before | fields).total == 2268, fields
        assert document("the cat", "--model", "m")["heads"] == plain["heads"], fields


def test_a_part_of_a_config_names_no_code_either(llama):
    from transformers import AutoConfig

    from attnviz.models.attention_interface import without_choices

    asked = {"_attn_implementation": HUB_CODE, "experts_implementation": "sonicmoe"}
    text = {"num_hidden_layers": 2, "hidden_size": 8, **asked}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=dict(asked), **asked)
    config.more = [{"attn_implementation": HUB_CODE}]
    without_choices(config)
    for part in (config, config.text_config, config.vision_config):
        assert part._attn_implementation is None
        assert part._experts_implementation is None
    assert config.more == [{}]


@pytest.fixture
def hub(llama):
    with stand_in_hub.serving(stand_in_hub.StandInHub()) as serving:
        serving.models["some/llama"] = llama()
        yield serving


@pytest.fixture
def ask(hub, tmp_path):
    """What a script finds of ``some/llama``, in a cache below ``tmp_path / "home"``."""

    def call(script=stand_in_hub.FIND, **env):
        asked = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.endpoint} | env
        return stand_in_hub.ask(script, "some/llama", asked)

    return call


def files_below(directory):
    return {path for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("header", ["ETag", "X-Linked-ETag", "X-Repo-Commit"])
@pytest.mark.long
def test_a_header_names_no_path(hub, ask, tmp_path, header):
    """Names of every kind for ETag, which all headers are read like: those have the worst two."""
    others = ("..", "a/b", "x" * 200, "") if header == "ETag" else ()
    before = files_below(tmp_path)
    for text in (f"{tmp_path}/x", "../../../../../../x", *others):
        named = text if header == "X-Repo-Commit" else f'"{text}"'
        hub.headers["config.json"] = {header: named}
        answer = ask(stand_in_hub.SPEC)
        assert answer["exit_code"] == 3
        assert f"sends the {header} " in answer["error"]
        assert "no plain name" in answer["error"]
        assert "use another HF_ENDPOINT" in answer["error"]
        assert len(answer["error"]) < 400
        assert files_below(tmp_path) == before


@pytest.mark.long
def test_nor_does_the_commit_of_a_file_that_is_not_there(hub, ask, tmp_path):
    """The client notes down what a commit lacks, in a directory with the commit's name."""
    hub.listing = json.dumps(
        {"id": "some/llama", "siblings": [{"rfilename": "token.json"}]}
    ).encode()
    hub.headers["token.json"] = {"X-Repo-Commit": f"{tmp_path}/new"}
    answer = ask()
    assert answer["exit_code"] == 3
    assert "sends the X-Repo-Commit " in answer["error"]
    assert not (tmp_path / "new").exists()


@pytest.mark.long
def test_what_lies_outside_the_cache_is_not_used(hub, ask, tmp_path):
    """Where the server told us one name and the client another, by a fake that sees no header."""
    hub.headers["config.json"] = {"ETag": f'"{tmp_path}/x"'}
    blind = "from attnviz.models import hub; hub._refuse_paths = lambda answer: None"
    answer = ask(stand_in_hub.FIND.replace("said = []", f"said = []; {blind}"))
    assert answer["exit_code"] == 3
    assert f"was put outside the cache, at '{tmp_path}/x'" in answer["error"]


@pytest.mark.long
def test_a_file_that_drips_is_given_up(hub, ask, tmp_path):
    hub.dripping.add("config.json")
    answer = ask(stand_in_hub.SPEC, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert answer["exit_code"] == 3
    assert "the transfer of config.json of 'some/llama' failed (no answer in 6" in answer["error"]
    assert 5 < answer["seconds"] < 9
    assert not [path for path in files_below(tmp_path / "home") if "incomplete" in path.name]


@pytest.mark.parametrize(
    "listing",
    [
        b'{"id": "some/llama", "siblings": [{"rfilename": 5}, {"rfilename": "model.safetensors"}]}',
        b'{"id": "some/llama", "siblings": {"a": 1}}',
        b'{"siblings": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["one name", "none", "deep"],
)
@pytest.mark.long
def test_a_list_that_is_none_is_done_without(hub, ask, listing):
    hub.listing = listing
    directory = Path(ask()["directory"])
    assert (directory / "model.safetensors").is_file()
    assert (directory / "tokenizer.json").is_file()


def test_weights_that_are_not_those_of_their_hash(hub, ask, tmp_path):
    hub.headers["config.json"] = {"X-Linked-ETag": f'"{"0" * 64}"'}
    answer = ask(stand_in_hub.SPEC)
    assert answer["exit_code"] == 3
    assert (
        "config.json of 'some/llama' arrived damaged: expected the SHA-256 000" in answer["error"]
    )
    assert "run again to fetch it again" in answer["error"]
    assert not list((tmp_path / "home").rglob("config.json"))
    hub.headers["config.json"] = {"ETag": 'W/"5e8f-abc_DEF.12"'}  # as other servers name it
    assert "directory" in ask()


def test_a_revision_is_no_path(refused):
    named = ("../../../../x", "..", "a/../b", "/x", "a b", "a\\b", "a\x1b[31m", "a\n", "", "a:b")
    for command in (("params",), ("heads", "the cat", "--model")):
        for revision in named:
            said = refused(2, *command, "some/llama", "--revision", revision, "--offline")
            assert "is not a branch, tag or commit" in said
            assert "\x1b" not in said
