"""Every question about a model is answered for ``mha``, or refused in one line."""

import inspect
from pathlib import Path

import pytest

import attnviz
from attnviz.errors import AttnvizError

TEXT = "The cat sat on the mat because it was tired."
TEXTS = [TEXT, f"{TEXT} So it slept."]
RULES = """
[[check]]
head = "L0H0"
score = "previous"
at_least = 0.5
"""

QUESTIONS = {
    "ablate": lambda model: attnviz.ablate(model, TEXTS),
    "align": lambda model: attnviz.align(model, "clips", "words.csv"),
    "atlas": lambda model: attnviz.atlas(model, TEXTS),
    "capture": lambda model: attnviz.capture(model, TEXT),
    "check": lambda model: attnviz.check(model, "rules.toml"),
    "cut": lambda model: attnviz.cut(model, TEXT, "it→cat"),
    "diff": lambda model: attnviz.diff(model, model, TEXTS),
    "generate": lambda model: attnviz.generate(model, TEXT),
    "head": lambda model: attnviz.head(model, "L0H1", TEXT, TEXTS),
    "heads": lambda model: attnviz.heads(model, TEXT),
    "lens": lambda model: attnviz.lens(model, TEXT),
    "link": lambda model: attnviz.link(model, TEXT),
    "params": lambda model: attnviz.params(model),
    "patch": lambda model: attnviz.patch(model, "the cat sat", "the dog sat"),
    "path": lambda model: attnviz.path(model, "L0H0", "the cat sat", "the dog sat"),
    "patterns": lambda model: attnviz.patterns(model),
    "prune": lambda model: attnviz.prune(model, TEXTS, heads="L0H1"),
    "report": lambda model: attnviz.report(model, TEXTS, cards=1),
    "retrieve": lambda model: attnviz.retrieve(model),
    "rollout": lambda model: attnviz.rollout(model, TEXT),
    "scaling": lambda model: attnviz.scaling(model, TEXT),
    "verify": lambda model: attnviz.verify(model, TEXT),
    "why": lambda model: attnviz.why(model, TEXT),
}


def takes_a_model(name):
    function = getattr(attnviz, name)
    return inspect.isfunction(function) and any(
        "AnyModel" in str(parameter.annotation)
        for parameter in inspect.signature(function).parameters.values()
    )


def test_every_function_that_takes_a_model_is_asked():
    assert set(QUESTIONS) == {name for name in attnviz.__all__ if takes_a_model(name)}


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_or_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text(RULES)
    try:
        answer = str(QUESTIONS[name](attnviz.load("mha")))
    except AttnvizError as error:
        answer, *further = str(error).splitlines()
        assert not further
    assert answer
