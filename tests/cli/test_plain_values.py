"""Plain values are converted as Typer converts them, which needs pydantic, but without it."""

import pytest
import typer

from attnviz.cli.app import COMMANDS, app_of
from attnviz.cli.groups import _NOT_PLAIN, _converted

from ..test_import_hygiene import SENTENCE, imported

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
