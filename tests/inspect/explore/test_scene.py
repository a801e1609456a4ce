"""Scenes: every change stays within what there is, and the command line gives the view back."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnviz.inspect.explore.command import command_line, shell_word
from attnviz.inspect.explore.facts import MODES
from attnviz.inspect.explore.scene import PALETTE_NAMES, Scene, places_of
from attnviz.inspect.explore.session import LiveSession
from attnviz.models.bundled import Bundled
from attnviz.models.own import OwnAttention
from attnviz.records import Tokens

from ...terminals import POSIX

HEADS = (*((layer, head) for layer in range(3) for head in range(4)), (3, 0))
LABELS = tuple("first" if head % 2 else "previous" for _, head in HEADS)
HOSTILE = (
    'it\'s "so"; rm -rf $HOME `id` \\ !',
    "-x --help",
    "-",
    "two\nlines\r\x1b[31m\x9b\u202e\u2028",
    "나는 👩‍👩‍👧 \U0001f600",
    "$'\\n'",
)


@pytest.fixture
def scene() -> Scene:
    return Scene(HEADS, LABELS, queries=11, keys=11, across=False, head=(1, 2), query=5, key=5)


def test_the_first_scene_of_a_frame() -> None:
    session = LiveSession(Bundled())
    frame = session.frame("John saw Mary and John saw Mary")
    found = Scene.of(frame)
    last = len(frame.report.record.queries) - 1
    assert found.head == frame.report.notable[0]
    assert (found.query, found.key, found.across) == (last, last, False)
    shorter = session.frame("John saw", frozenset({(0, 1)}))
    after = found.over(shorter)
    assert (after.head, after.removed, after.query) == (found.head, {(0, 1)}, after.queries - 1)
    assert found.over(LiveSession(OwnAttention()).frame("a b c")).head == (0, 0)


def test_a_random_walk_never_leaves_what_there_is(scene: Scene) -> None:
    steps = (
        *(lambda s, d=d: s.at(s.query + d[0], s.key + d[1]) for d in ((0, 1), (-1, 0), (40, -40))),
        *(lambda s, d=d: s.next_head(d) for d in (-1, 1, 7)),
        *(lambda s, d=d: s.next_layer(d) for d in (-1, 1)),
        *(lambda s, d=d: s.in_layer(d) for d in (-1, 1)),
        *(lambda s, d=d: s.next_same_label(d) for d in (-1, 1)),
        lambda s: s.with_head((9, 9)),
        lambda s: s.with_token(99),
        lambda s: s.next_of(HEADS[3:6]),
        lambda s: s.sized(5, 9),
        lambda s: s.toggled().toggled((0, 0)),
        lambda s: s.next_palette(),
        lambda s: replace(s, queries=7, keys=3, across=True).at(s.query, s.key),
    )
    random = np.random.default_rng(3)
    for step in random.integers(0, len(steps), 3_000):
        scene = steps[step](scene)
        assert scene.head in HEADS
        assert 0 <= scene.query < scene.queries
        assert 0 <= scene.key < scene.keys
        assert scene.palette in PALETTE_NAMES


@pytest.mark.parametrize(
    ("step", "head"),
    [
        (lambda s: s.next_layer(1), (2, 2)),
        (lambda s: s.next_layer(2), (3, 0)),
        (lambda s: s.next_layer(-5), (0, 2)),
        (lambda s: s.in_layer(5), (1, 3)),
        (lambda s: s.next_head(2), (2, 0)),
        (lambda s: s.next_same_label(), (2, 0)),
        (lambda s: s.next_same_label(-1), (1, 0)),
        (lambda s: s.with_head((3, 0)).next_same_label(), (0, 0)),
        (lambda s: s.next_of([(2, 1), (1, 2), (0, 3)]), (0, 3)),
        (lambda s: s.next_of([(2, 1), (1, 2), (0, 3)], 9), (0, 3)),
        (lambda s: s.next_of([(2, 1), (0, 3)]), (2, 1)),
        (lambda s: s.next_of([]), (1, 2)),
    ],
)
def test_from_head_to_head(scene: Scene, step: Any, head: tuple[int, int]) -> None:
    assert step(scene).head == head


def test_a_token_is_found(scene: Scene) -> None:
    texts = (
        "<s>",
        "The",
        " an",
        "imal",
        " and",
        " the",
        " An",
        "imal",
        "<0xEC>",
        "<0x95>",
        "<0x84>",
    )
    tokens = Tokens(tuple(range(11)), texts, (True,) + (False,) * 10)
    assert places_of(tokens, "ANIMAL") == (2, 6)
    assert places_of(tokens, "an") == (2, 4, 6)
    assert places_of(tokens, "아") == (8,)
    assert places_of(tokens, " ") == places_of(tokens, "none") == ()
    walked = [scene]
    for step in (1, 1, 1, -1):
        walked.append(walked[-1].found(tokens, "an", step))
    assert [each.query for each in walked] == [5, 6, 2, 4, 2]
    assert scene.found(tokens, "none") == scene


@POSIX
@pytest.mark.parametrize("text", HOSTILE)
def test_a_shell_reads_back_what_was_written(scene: Scene, text: str) -> None:
    line = command_line(scene, text, ["--model", text, "--kind", "self"])
    assert line.isprintable()
    shell = ["bash", "-c", 'attnviz() { printf "%s\\0" "$@"; }\n' + line]
    words = subprocess.run(shell, check=True, capture_output=True).stdout.decode().split("\0")
    assert words[:5] == ["heads", "--model", text, "--kind", "self"]
    assert words[-2] == text
    assert shell_word("plain") == "plain"


@pytest.mark.parametrize("mode", MODES)
def test_the_command_gives_the_view(run: Any, mode: Any) -> None:
    session, removed = LiveSession(Bundled()), frozenset({(0, 2), (1, 1)})
    text = "It's a cat; the cat sat."
    frame = session.frame(text, removed)
    scene = replace(Scene.of(frame).with_head((3, 1)), mode=mode)
    command, *words = shlex.split(command_line(scene, text))
    found = json.loads(run(*words, "--json").out)
    assert (command, words[0]) == ("attnviz", "heads")
    assert [(each["layer"], each["head"]) for each in found["heads"]] == [(3, 1)]
    told = np.array(found["heads"][0]["weights"], float)
    np.testing.assert_allclose(told, frame.weights((3, 1), mode), atol=1e-6)
