"""The default model: what decides, what is kept, what is refused, what says where it comes from."""

import os
from pathlib import Path

import pytest

import attnviz
from attnviz.cli.default_model import default_model, keep, kept_file, kept_model
from attnviz.errors import LoadError, UsageError

from ..small_models import TINY, random_model, word_tokenizer

TEXT = "The cat sat on the mat because it was tired."
QUICK = ("rollout", TEXT)


@pytest.fixture
def checkpoint(tmp_path):
    """A GPT-2 of two layers in ``./ckpt``."""
    directory = tmp_path / "ckpt"
    random_model(TINY["gpt2"]).save_pretrained(directory)
    word_tokenizer().save_pretrained(directory)
    return directory


def model_of(result):
    return str(result.document["model"]["name"])


def test_what_comes_first_decides(run):
    def name(*more, **env):
        return model_of(run("heads", "a cat", "--json", *more, env=env))

    assert name() == "tiny"
    assert run("use", "mha").code == 0
    assert name() == "mha"
    assert name(ATTNVIZ_MODEL="tiny") == "tiny"
    assert name(ATTNVIZ_MODEL="") == "mha"
    assert name("--model", "mha", ATTNVIZ_MODEL="./gone") == "mha"
    assert name("--model", "tiny") == "tiny"
    kept, typed = (run("heads", "a cat", "--json", *more) for more in ((), ("-m", "mha")))
    assert kept.out == typed.out


def test_what_is_kept_is_shown_and_removed(run):
    file = str(kept_file())
    assert run("use").lines == [
        "without --model: tiny (the bundled one)",
        f"nothing is kept in {file}; attnviz use MODEL keeps one",
    ]
    assert run("use", "configs/gpt2").lines == [
        "without --model: configs/gpt2",
        f"kept in {file}; attnviz use --none removes it",
    ]
    assert Path(file).read_text(encoding="utf-8") == "configs/gpt2\n"
    shown = run("use", env={"ATTNVIZ_MODEL": "mha"}).lines
    assert shown[0] == "without --model: mha (ATTNVIZ_MODEL)"
    assert shown[1].startswith(f"kept in {file}: configs/gpt2;")
    assert run("use", "--none").lines == [f"{file} is removed", "without --model: tiny"]
    assert run("use", "--none").lines[0] == f"nothing was kept in {file}"
    assert not Path(file).exists()


def test_a_path_is_kept_as_an_absolute_one(run, checkpoint, tmp_path, monkeypatch):
    assert run("use", "./ckpt").code == 0
    assert default_model() == str(checkpoint)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert model_of(run("heads", "a cat", "--json")) == str(checkpoint)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./gone", "no directory"),
        ("gone.toml", "no file"),
        ("configs/gone", "no shape"),
        ("nobody/nothing", "nor complete in the local cache"),
        ("no such model", "neither a directory nor a model id"),
        ("empty", "no config.json"),
        ("weightless", "has no weights"),
        ("cut", "is damaged"),
    ],
)
def test_what_cannot_be_found_is_refused(run, name, said, checkpoint, tmp_path):
    (tmp_path / "empty").mkdir()
    for made in ("weightless", "cut"):
        (tmp_path / made).mkdir()
        (tmp_path / made / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (tmp_path / "cut" / "model.safetensors").write_bytes(b"\x10")
    run("use", "mha")
    result = run("use", name)
    assert (result.code, result.out) == (3, "")
    assert said in result.err
    assert len(result.err.splitlines()) == 1
    assert default_model() == "mha"  # what was kept stays


def test_a_hub_name_in_the_cache_is_kept(run, checkpoint, tmp_path, monkeypatch):
    from huggingface_hub import constants

    hub = tmp_path / "hub"
    place, commit = hub / "models--me--mine", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "snapshots").mkdir()
    os.rename(checkpoint, place / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub))
    assert run("use", "me/mine").code == 0
    assert default_model() == "me/mine"


def test_the_last_line_says_once_where_the_name_comes_from(run):
    plain = run(*QUICK, "--no-full").out
    assert "model of" not in plain
    run("use", "tiny")
    for more in ("--no-full", "--full"):
        assert run(*QUICK, more).out.count("model of attnviz use") == 1
    assert "model of" not in run(*QUICK, "--model", "tiny").out
    assert "model of" not in run(*QUICK, "--quiet").out
    found = run(*QUICK, "--no-full", env={"ATTNVIZ_MODEL": "tiny"})
    assert found.out.count("model of ATTNVIZ_MODEL") == 1
    assert len(found.lines) == len(plain.splitlines())


def test_errors_say_where_the_name_comes_from(run, checkpoint):
    run("use", "./ckpt")
    (checkpoint / "config.json").unlink()
    for command in (QUICK, ("ablate", TEXT), ("why", "The cat"), ("scaling", "--from-model")):
        result = run(*command)
        assert result.code == 3, command
        assert result.err.endswith("(the model is that of attnviz use)\n"), command
    result = run(*QUICK, env={"ATTNVIZ_MODEL": "./gone"})
    assert (result.code, result.err) == (
        3,
        "attnviz: no directory './gone' here (the model is that of ATTNVIZ_MODEL)\n",
    )
    result = run(*QUICK, "--revision", "x", env={"ATTNVIZ_MODEL": "tiny"})
    assert (result.code, "that of ATTNVIZ_MODEL" in result.err) == (2, True)
    assert "that of" not in run(*QUICK, "--model", "./gone").err


def test_params_without_a_shape_counts_the_default(run):
    refused = run("params")
    assert refused.code == 2
    run("use", "configs/gpt2")
    shown = run("params")
    assert shown.out.count("model of attnviz use") == 1
    assert "configs/gpt2" in shown.lines[0]
    assert run("params", "--compare", "dtype=float32,int8").lines[0].startswith("configs/gpt2")
    for arguments in (
        ("params", "--d-model", "64", "--heads", "4"),
        ("params", "--compare", "d-model=64,128", "--heads", "2"),
        ("params", "--heads", "2", "--compare", "--d-model=64,128"),
        ("params", "bert-base"),
    ):
        assert "gpt2" not in run(*arguments).out, arguments


def test_who_takes_no_default(run, tmp_path):
    run("use", "mha")
    (tmp_path / "checks.toml").write_text('[[check]]\nparams = "total"\nat_least = 1\n')
    assert "tiny" in run("check", "checks.toml").lines[0]
    assert "mha" not in run("scaling", "--samples", "10").out
    assert attnviz.heads("tiny", "The cat sat.").to_dict()["model"]["name"] == "tiny"


def test_a_damaged_file(run):
    kept_file().parent.mkdir(parents=True)
    for content in (b"", b"\xff\xfe", b"a\nb\n", b"x" * 20_000, b"\x00\n"):
        kept_file().write_bytes(content)
        for command in (QUICK, ("use",)):
            result = run(*command)
            assert (result.code, result.out) == (3, "")
            assert str(kept_file()) in result.err
            assert "attnviz use --none" in result.err
    assert run(*QUICK, "--model", "tiny").code == 0  # the file is not read
    assert run(*QUICK, env={"ATTNVIZ_MODEL": "tiny"}).code == 0
    assert run("use", "--none").code == 0
    assert run(*QUICK).code == 0


def test_a_kept_name_that_is_no_model_is_said(run):
    file = kept_file()
    file.parent.mkdir(parents=True)
    file.write_text("words that are no model\n", encoding="utf-8")
    shown = run("use")
    assert shown.code == 0
    assert shown.lines[2].startswith("there is no such model here: 'words that are no model'")
    file.unlink()
    file.mkdir()
    assert f"{str(file)!r} is a directory: remove it" in run("use").err


def test_a_link_to_a_regular_file_is_read_and_never_written_through(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    real, link = tmp_path / "real", tmp_path / "attnviz" / "model"
    real.write_text("tiny\n")
    link.parent.mkdir()
    link.symlink_to(real)
    assert kept_model() == "tiny"
    with pytest.raises(UsageError, match="it is a link; remove it"):
        keep("tiny")
    for target in (link, tmp_path):
        link.unlink()
        link.symlink_to(target)
        with pytest.raises(LoadError):
            kept_model()
