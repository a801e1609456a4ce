"""Help, version, what the shell is offered, and plain values, which are read without pydantic."""

import re
import shlex
import shutil
import subprocess
from importlib import import_module

import click
import pytest
import typer
from rich.cells import cell_len

import attnviz
from attnviz.cli.app import COMMANDS, app, app_of
from attnviz.cli.groups import _NOT_PLAIN, _converted
from attnviz.cli.options import complete_model
from attnviz.models.shapes import shape_names

from ..quick import one_in
from ..terminals import POSIX
from ..test_import_hygiene import SENTENCE, imported


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_all_commands(run, option):
    result = run(option)
    assert (result.code, result.err) == (0, "")
    assert "See where each attention head looks" in result.out
    assert ("--install-completion" in result.out) == (option == "--help")


def test_the_version_and_no_command(run):
    assert run("--version").out == f"attnviz {attnviz.__version__}\n"
    assert run().out == run("-h").out


def test_all_commands_are_listed(run):
    lines = run("-h", env={"COLUMNS": "80"}).lines
    for name, does in COMMANDS.items():
        assert sum(f" {name.ljust(10)}{does}" in line for line in lines) == 1, name


def test_whole_help_of_heads(run):
    result = run("heads", "--help", env={"COLUMNS": "100"})
    assert (result.code, result.err) == (0, ""), result
    assert "Examples" in result.out
    assert 'attnviz heads "The cat sat on the mat because it was tired."' in result.out
    options = [one for one in parsed("heads").params if not getattr(one, "hidden", False)]
    names = {name for one in options for name in one.opts if name.startswith("--")}
    assert len(names) > 40
    assert not [name for name in names if not re.search(rf"{name}\b", result.out)]
    assert max(map(len, result.lines)) <= 100


def parsed(name):
    """The command that the command line would run."""
    group = typer.main.get_group(app)
    return group.resolve_command(click.Context(group), [name])[1]


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_short_help_fits_a_small_terminal(run, name, columns):
    result = run(*[name] * bool(name), "-h", env={"COLUMNS": str(columns)})
    assert (result.code, result.err) == (0, "")
    assert sum(max(-(-cell_len(line) // columns), 1) for line in result.out.splitlines()) <= 23
    if columns >= 80:
        assert not [line for line in result.lines if line.endswith("...")], "a text is cut"
    if name:
        examples = [line for line in result.lines if line.startswith("  attnviz ")]
        assert len(examples) == 2
        end = " ".join(result.out.split("\n\n")[-1].split())
        assert f"attnviz {name} --help: " in end
        assert "attnviz docs" in end


@pytest.mark.parametrize("name", COMMANDS)
def test_short_help_names_options_that_are_there(run, name):
    command, shown = parsed(name), run(name, "-h", env={"COLUMNS": "100"}).out
    known = {each for one in command.params for each in one.opts}
    assert command.often
    assert set(command.often) <= known
    for option in command.often:
        assert re.search(rf"^  (-\w, )?{option}\b", shown, re.MULTILINE), option
    count = sum(one.param_type_name == "option" for one in command.params)
    assert f"all {count} options" in shown or count == 1


NOT_RUN = ("explore", "diff", "merge", "retrieve", "sweep", "train")
NOT_RUN += ("align", "check", "head", "prune", "report")
"""Those need a terminal, files of the reader's own, or seconds; their options are read."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_the_short_help_are_read(run, name):
    for arguments in short_examples(run, name):
        parsed(name).make_context(name, arguments[1:], resilient_parsing=True)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*COMMANDS} - {*NOT_RUN}))
def test_the_examples_of_the_short_help_run(redrawn, name):
    for arguments in short_examples(redrawn, name):
        assert redrawn(*arguments).code == 0, arguments


def short_examples(run, name):
    """The arguments of each example of a command's short help."""
    lines = [line for line in run(name, "-h").lines if line.startswith("  attnviz ")]
    assert lines
    return [shlex.split(line)[1:] for line in lines]


def test_the_last_help_asked_for_is_not_a_value(run):
    """Both lengths at once give the long one, and neither is hidden by another short option."""
    assert run("heads", "-h", "--help").out == run("heads", "--help").out
    assert run("heads", "-qh").out == run("heads", "-h").out


def test_short_help_imports_nothing_that_draws():
    drawn = {"rich.console", "numpy", "torch", "transformers", "pydantic"}
    imported(["heads", "-h"], unwanted=drawn)


OWN_FILES = {"./my-checkpoint", "./my-chat-model", "--image", "--images", "--audio"}
OWN_FILES |= {"corpus.jsonl", "my-pairs.tsv"}


@pytest.mark.parametrize("name", one_in(2, ["heads", "patterns", "params", "scaling", "rollout"]))
def test_every_example_of_the_help_runs(redrawn, tmp_path, name):
    """Those that need a file or a checkpoint of the reader's own aside."""
    module = {"rollout": "heads", "scaling": "learn", "patterns": "corpora"}.get(name, name)
    commands = import_module(f"attnviz.cli.{module}")
    lines = getattr(commands, "EXAMPLES", vars(commands).get(name.upper(), "")).splitlines()
    examples = [line for line in lines if line.startswith("attnviz ")]
    assert len(examples) >= 4
    (tmp_path / "story.txt").write_text("The cat sat on the mat.")
    (tmp_path / "stories.txt").write_text("The cat sat on the mat.\nMary met John.")
    for example in examples:
        arguments = shlex.split(example)[1:]
        if not OWN_FILES & {*arguments}:
            assert redrawn(*arguments).code == 0, example


def test_model_names_are_offered():
    assert complete_model("t") == ["tiny"]
    assert complete_model("m") == ["mha"]
    assert complete_model("configs/gpt2-medi") == ["configs/gpt2-medium"]
    assert complete_model("xyz") == []
    assert complete_model("") == ["tiny", "mha", *(f"configs/{name}" for name in shape_names())]


def test_the_completion_of_bash(program, environment):
    def offered(line):
        variables = {
            "_ATTNVIZ_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        done = subprocess.run(
            program, env=environment | variables, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert set(offered("attnviz he")) == {"head", "heads"}
    assert offered("attnviz heads -m mh") == ["mha"]
    assert {"entropy", "previous-token"} <= {*offered("attnviz heads --sort ")}


@POSIX
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_show_completion(program, environment, tmp_path):
    script = tmp_path / "show.sh"
    script.write_text(f"{shlex.join(program)} --show-completion; true\n")  # detected by the parent
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert "_ATTNVIZ_COMPLETE=complete_bash" in done.stdout


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_whole_help_of_all_commands_fits_a_small_terminal(run, columns):
    lines = run("--help", env={"COLUMNS": str(columns)}).lines
    assert len(lines) <= 23
    assert {"--version,", "--install-completion,", "-h"} <= {*" ".join(lines).split()}


TYPED = ["7", "-1", "+1", "0", "007", "99999999999999999999", "1_000", "1.5", "1e3", "٣", " 5 ", ""]
TYPED += ["x", "tiny", "true", "cpu", "auto", "Viridis", "viridis", "never", "é"]


def values(one):
    """What a person may type, and the default; of a parameter that may be repeated, tuples."""
    several = one.multiple or one.nargs == -1
    typed = [*((each,) for each in TYPED), ("7", "x"), ()] if several else TYPED
    return [*typed, one.default, None]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_plain_value_is_what_typer_makes_of_it(name):
    command = typer.main.get_command(app_of(name))
    context = command.make_context("attnviz", [], resilient_parsing=True)
    for one in command.params:
        convert, one.callback, one.required = type(one).process_value, None, False
        for value in values(one):
            found = _converted(one, value)
            if found is _NOT_PLAIN:
                continue
            expected = convert(one, context, value)
            if isinstance(found, tuple):
                found, expected = list(found), list(expected)
            assert (found, type(found)) == (expected, type(expected)), (one.name, value)


def test_thousands_are_written_with_a_k(run):
    found = [run("params", "gpt2", "--tokens", typed, "--json").out for typed in ("2k", "2000")]
    assert found[0] == found[1]


def test_plain_values_need_no_pydantic():
    packages, _ = imported(
        ["params", "--d-model", "4096", "--heads", "32", "--json"],
        ["params", "llama-2-70b", "--tokens", "4096", "--memory", "160GB"],
        ["heads", SENTENCE, "--head", "L1H1", "--palette", "grey", "--index-base", "1"],
    )
    assert "typer" in packages
    assert "pydantic" not in packages
