"""Views: every change stays within what there is, and the command line gives the view back."""

import json
import shlex
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from attnviz.inspect.explore.screen import MODES
from attnviz.inspect.explore.session import Frame, LiveSession
from attnviz.inspect.explore.view import View, command_line, places_of, shell_word
from attnviz.models.own import OwnAttention
from attnviz.records import LayerWeights, Tokens

from ...terminals import POSIX
from .playing import SESSION

HEADS = (*((layer, head) for layer in range(3) for head in range(4)), (3, 0))
HOSTILE = (
    'it\'s "so"; rm -rf $HOME `id` \\ !',
    "-x --help",
    "-",
    "two\nlines\r\x1b[31m\x9b\u202e\u2028",
    "나는 👩‍👩‍👧 \U0001f600",
    "$'\\n'",
)
SPLIT = ("<s>", "The", " an", "imal", " and", " the", " An", "imal", "<0xEC>", "<0x95>", "<0x84>")


@pytest.fixture(scope="module")
def view():
    """Eleven tokens at the sixth, and heads of two labels by turns, the last alone in its layer."""
    frame = SESSION.frame("John saw Mary and John saw Mary")
    report = frame.report
    tokens = Tokens(tuple(range(11)), SPLIT, (True,) + (False,) * 10)
    weights = np.tril(np.ones((4, 11, 11), np.float32)) / np.arange(1, 12)[:, None]
    layers = [LayerWeights(layer, (0, 1, 2, 3), weights) for layer in range(3)]
    layers.append(LayerWeights(3, (0,), weights[:1]))
    record = replace(report.record, queries=tokens, keys=tokens, layers=tuple(layers))
    heads = tuple(
        entry._replace(label=report.heads[entry.head % 2].label)
        for entry in report.heads
        if entry.place in HEADS
    )
    report = replace(report, record=record, heads=heads, notable=())
    return replace(View.of(Frame("x", report)), head=(1, 2)).at(5, 5)


def test_the_first_view_of_a_frame():
    frame = SESSION.frame("John saw Mary and John saw Mary")
    first = View.of(frame)
    last = len(frame.report.record.queries) - 1
    assert (first.head, first.query, first.key) == (frame.report.notable[0], last, last)
    shorter = SESSION.frame("John saw", frozenset({(0, 1)}))
    after = replace(first, frame=shorter).fitted()
    last = len(shorter.report.record.queries) - 1
    assert (after.head, after.removed, after.query) == (first.head, {(0, 1)}, last)
    other = LiveSession(OwnAttention()).frame("a b c")
    assert replace(first, frame=other).fitted().head == (0, 0)


def test_a_random_walk_never_leaves_what_there_is(view):
    steps = (
        *(lambda v, d=d: v.at(v.query + d[0], v.key + d[1]) for d in ((0, 1), (-1, 0), (40, -40))),
        *(lambda v, d=d: v.next_in(v.shown.heads, d) for d in (-1, 1, 7)),
        *(lambda v, d=d: v.next_layer(d) for d in (-1, 1)),
        *(lambda v, d=d: v.next_in_layer(d) for d in (-1, 1)),
        lambda v: v.with_head((9, 9)),
        lambda v: v.next_in(HEADS[3:6], 1),
    )
    random = np.random.default_rng(3)
    for step in random.integers(0, len(steps), 1_000):
        view = steps[step](view)
        assert view.head in HEADS
        assert 0 <= view.query < 11
        assert 0 <= view.key < 11


@pytest.mark.parametrize(
    ("step", "head"),
    [
        (lambda v: v.next_layer(1), (2, 2)),
        (lambda v: v.next_layer(2), (3, 0)),
        (lambda v: v.next_layer(-5), (0, 2)),
        (lambda v: v.next_in_layer(5), (1, 3)),
        (lambda v: v.next_in(v.shown.heads, 2), (2, 0)),
        (lambda v: v.next_in([(2, 1), (1, 2), (0, 3)], 1), (0, 3)),
        (lambda v: v.next_in([(2, 1), (1, 2), (0, 3)], 9), (0, 3)),
        (lambda v: v.next_in([(2, 1), (0, 3)], 1), (2, 1)),
        (lambda v: v.next_in([], 1), (1, 2)),
    ],
)
def test_from_head_to_head(view, step, head):
    assert step(view).head == head


def test_a_token_is_found(view):
    tokens = view.record.queries
    assert places_of(tokens, "ANIMAL") == (2, 6)
    assert places_of(tokens, "an") == (2, 4, 6)
    assert places_of(tokens, "아") == (8,)
    assert places_of(tokens, " ") == places_of(tokens, "none") == ()
    walked = [view]
    for _ in range(3):
        walked.append(walked[-1].search("an"))
    assert [step.query for step in walked] == [5, 6, 2, 4]
    assert view.search("none") == view


@POSIX
@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_reads_back_what_was_written(view, text):
    view = replace(view, frame=replace(view.frame, text=text))
    line = command_line(view, ["--model", text, "--kind", "self"])
    assert line.isprintable()
    shell = ["bash", "-c", 'attnviz() { printf "%s\\0" "$@"; }\n' + line]
    words = subprocess.run(shell, check=True, capture_output=True).stdout.decode().split("\0")
    assert words[:5] == ["heads", "--model", text, "--kind", "self"]
    assert words[-2] == text
    assert shell_word("plain") == "plain"


@pytest.mark.parametrize("mode", MODES)
def test_the_command_gives_the_view(run, mode):
    frame = SESSION.frame("It's a cat; the cat sat.", frozenset({(0, 2), (1, 1)}))
    view = replace(View.of(frame), head=(3, 1), mode=mode)
    command, *words = shlex.split(command_line(view))
    found = json.loads(run(*words, "--json").out)
    assert (command, words[0]) == ("attnviz", "heads")
    assert [(each["layer"], each["head"]) for each in found["heads"]] == [(3, 1)]
    told = np.array(found["heads"][0]["weights"], float)
    np.testing.assert_allclose(told, frame.weights((3, 1), mode), atol=1e-6)
