"""The commands from Python: the numbers of the command line, its options, loaded models too."""

import inspect
import io
import pickle
import shlex
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
from rich.console import Console

import attnviz
from attnviz import records
from attnviz.cli.app import COMMANDS, app_of
from attnviz.count.params.request import Dtype
from attnviz.engine import effects, observer, patching
from attnviz.errors import AttnvizError, UsageError
from attnviz.inspect.interventions.patch import request as patch
from attnviz.inspect.prune import request as prune
from attnviz.measures import registry

from ..conftest import without_times

TEXT = "The cat sat on the mat because the cat was tired."
OTHER = "When Mary and John went out, John gave Mary a book."
LINES = [TEXT, OTHER] * 40
RULES = """
[[check]]
loss_on = "The cat sat on the mat."
at_most = 99

[[check]]
params = "total"
at_least = 1
"""
SENTENCE = "The cat sat on the mat because it was tired."
TEXTS = [SENTENCE, f"{TEXT} So it slept."]


def _calls():
    """Yield the pairs of lines of ``calls.txt``: a command line, and the same call from Python."""
    lines = Path(__file__).with_name("calls.txt").read_text(encoding="utf-8").splitlines()
    lines = [line.strip() for line in lines if line and not line.startswith("#")]
    yield from zip(lines[::2], lines[1::2], strict=True)


SAME = dict(_calls())


def test_every_command_is_compared():
    """What takes a minute, and what makes no report, is left out."""
    compared = {line.split()[0] for line in SAME}
    assert compared == set(COMMANDS) - {"align", "docs", "explore", "sweep", "train", "use"}


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=pytest.mark.long if "float64" in line else ()) for line in SAME],
)
def test_the_numbers_are_those_of_the_command(run, tmp_path, line):
    arguments = [TEXT if word == "TEXT" else word for word in shlex.split(line)]
    (tmp_path / "texts.txt").write_text("\n".join([TEXT, OTHER, TEXT + " " + OTHER]))
    (tmp_path / "two.txt").write_text("\n".join([TEXT, OTHER]))
    (tmp_path / "rules.toml").write_text(RULES)
    for shard in ("0/2", "1/2") if arguments[0] == "merge" else ():
        attnviz.patterns(texts=LINES, shard=shard, resume=tmp_path / f"part-{shard[0]}.record")
    document, mine = run(*arguments, "--json").document, eval(SAME[line]).to_dict()
    for found_there in (document, mine):
        for part in (found_there, *found_there.get("cards", ())):
            part.pop("source", None)
    assert without_times(mine) == without_times(document)


def test_a_loaded_model_is_taken_by_every_kind_of_function(model, tokenizer):
    texts = ["the cat sat on the mat", "the dog sat on the cat"]
    ablated = attnviz.ablate(model, texts, tokenizer=tokenizer)
    assert len(ablated.to_dicts()) == 6
    assert ablated.to_dict()["model"]["weights"] == "loaded"
    rolled = attnviz.rollout(model, "the cat sat", tokenizer=tokenizer)
    assert rolled.to_dict()["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    scored = attnviz.patterns(model, "the cat sat on the mat the cat sat", tokenizer=tokenizer)
    assert {row["layer"] for row in scored.to_dicts()} == {0, 1}
    counted = attnviz.params(model).to_dict()
    assert counted["model"]["dtype"] == "float32"
    assert counted["total"] == sum(weight.numel() for weight in model.parameters())
    with pytest.raises(UsageError, match="needs its tokenizer to read a text: give tokenizer="):
        attnviz.rollout(model, text="the cat")


def test_what_a_result_shows_and_saves(run, tmp_path):
    found = attnviz.rollout("tiny", text=TEXT)
    assert isinstance(found, attnviz.Report)
    assert repr(found) == f"<attnviz.rollout: {found.finding}>"
    assert "the last word" in found.finding
    assert found.document().finding == found.finding
    assert found._repr_html_().startswith("<iframe")
    assert "height: 500px" in found.framed(height=500)._repr_html_()
    with pytest.raises(UsageError, match="100 pixels; not height=50"):
        found.framed(height=50)
    assert "rollout through 6 layers" in str(found)
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(found)
    assert max(map(len, console.export_text().splitlines())) <= 60
    first = found.to_dicts()[0]
    assert list(first) == ["query", "key", "query_token", "key_token", "rollout", "last_layer"]
    assert len(found.to_dicts()) == 14 * 15 // 2
    endings = ("json", "csv", "md", "txt", "html", "svg")
    run("rollout", TEXT, "--quiet", *(x for end in endings for x in ("--save", f"b.{end}")))
    for ending in endings:
        found.save(tmp_path / f"a.{ending}")
        written = (tmp_path / f"a.{ending}").read_text(encoding="utf-8")
        assert written == (tmp_path / f"b.{ending}").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"end it in one of \.json"):
        found.save(tmp_path / "a.xyz")


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: attnviz.ablate(moed="zero"), TypeError, "argument 'moed': did you mean mode?"),
        (lambda: attnviz.ablate(json=True), TypeError, "unexpected keyword argument 'json'"),
        (lambda: attnviz.ablate(mode="none"), UsageError, "mode='none' is not one of 'zero'"),
        (lambda: attnviz.ablate(top=0), UsageError, "top=0 is out of range: expected 1 or more"),
        (lambda: attnviz.ablate(top="3"), UsageError, "top takes int, got '3'"),
        (lambda: attnviz.ablate(texts=[]), UsageError, "expected at least one text"),
        (lambda: attnviz.ablate(texts=["a b", 3]), UsageError, "expected texts"),
        (lambda: attnviz.prune(fraction=3), UsageError, "--fraction 3 is not a share"),
        (lambda: attnviz.rollout("tiny", text="-"), UsageError, "got '-'"),
        (lambda: attnviz.rollout("tiny", TEXT, tokenizer=TEXT), UsageError, "got a text"),
        (
            lambda: attnviz.rollout("tiny", TEXT, tokenizer=object()),
            UsageError,
            "for a loaded model",
        ),
        (lambda: attnviz.rollout(object(), text=TEXT), UsageError, "expected the name of a model"),
        (lambda: attnviz.rollout("tiny", text=b"a b"), UsageError, "expected one text"),
        (lambda: attnviz.patterns(3), UsageError, "transformers model, got an int: hand"),
        (lambda: attnviz.params(), UsageError, "expected a shape or a model"),
    ],
)
def test_bad_input(call, error, line):
    with pytest.raises(error) as raised:
        call()
    assert line in str(raised.value)


def test_functions_take_numbers_of_numpy_and_go_to_other_processes():
    found = attnviz.prune("tiny", texts=[TEXT, OTHER], fraction=np.float32(0.1), seed=np.int64(1))
    assert found.to_dict()["seed"] == 1
    assert pickle.loads(pickle.dumps(attnviz.prune)) is attnviz.prune


def test_a_misspelt_keyword_beside_a_loaded_model_and_a_text_is_named(model, tokenizer):
    """It is no argument of the model, which reads no texts."""
    with pytest.raises(TypeError, match=r"'heads': did you mean head\?"):
        attnviz.ablate(model, "a cat", tokenizer=tokenizer, heads="L0H1")


TYPES = {
    name: value
    for module in (effects, observer, patching, patch, prune, registry, records)
    for name, value in vars(module).items()
} | {"CountedDtype": Dtype}
"""The names that annotations use, whose modules a function imports for type checkers only."""


def choices(kind):
    """The values that a type lists; empty if it lists none."""
    if get_origin(kind) is Literal:
        return frozenset(get_args(kind))
    return frozenset().union(*map(choices, get_args(kind)))


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"docs", "explore", "use"}))
def test_the_choices_of_an_option_are_those_of_its_keyword(name):
    options = app_of(name).registered_commands[0].callback.__annotations__
    keywords = inspect.signature(getattr(attnviz, name)).parameters
    for option, kind in options.items():
        listed = choices(get_args(kind)[0])
        if listed and option in keywords and (name, option) != ("verify", "dtype"):
            assert choices(eval(keywords[option].annotation, TYPES)) == listed, option


HEAD_RULE = """
[[check]]
head = "L0H0"
score = "previous"
at_least = 0.5
"""

QUESTIONS = {
    "ablate": lambda model: attnviz.ablate(model, TEXTS),
    "align": lambda model: attnviz.align(model, "clips", "words.csv"),
    "atlas": lambda model: attnviz.atlas(model, TEXTS),
    "capture": lambda model: attnviz.capture(model, SENTENCE),
    "check": lambda model: attnviz.check(model, "rules.toml"),
    "cut": lambda model: attnviz.cut(model, SENTENCE, "it→cat"),
    "diff": lambda model: attnviz.diff(model, model, TEXTS),
    "generate": lambda model: attnviz.generate(model, SENTENCE),
    "head": lambda model: attnviz.head(model, "L0H1", SENTENCE, TEXTS),
    "heads": lambda model: attnviz.heads(model, SENTENCE),
    "lens": lambda model: attnviz.lens(model, SENTENCE),
    "link": lambda model: attnviz.link(model, SENTENCE),
    "params": lambda model: attnviz.params(model),
    "patch": lambda model: attnviz.patch(model, "the cat sat", "the dog sat"),
    "path": lambda model: attnviz.path(model, "L0H0", "the cat sat", "the dog sat"),
    "patterns": lambda model: attnviz.patterns(model),
    "prune": lambda model: attnviz.prune(model, TEXTS, heads="L0H1"),
    "report": lambda model: attnviz.report(model, TEXTS, cards=1),
    "retrieve": lambda model: attnviz.retrieve(model),
    "rollout": lambda model: attnviz.rollout(model, SENTENCE),
    "scaling": lambda model: attnviz.scaling(model, SENTENCE),
    "verify": lambda model: attnviz.verify(model, SENTENCE),
    "why": lambda model: attnviz.why(model, SENTENCE),
}


def test_every_function_that_takes_a_model_is_asked():
    functions = {name: getattr(attnviz, name) for name in attnviz.__all__}
    assert set(QUESTIONS) == {
        name
        for name, function in functions.items()
        if inspect.isfunction(function) and "AnyModel" in str(inspect.signature(function))
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_or_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text(HEAD_RULE)
    try:
        answer = str(QUESTIONS[name](attnviz.load("mha")))
    except AttnvizError as error:
        answer, *further = str(error).splitlines()
        assert not further
    assert answer
