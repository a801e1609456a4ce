"""The loop of a study: what a resume file has is not measured again, what is damaged is refused."""

import json

import numpy as np
import pytest

from attnviz.engine.effects import Scores
from attnviz.errors import LoadError
from attnviz.inspect.interventions.study import Series, Study
from attnviz.progress import UNWATCHED, shares_of
from attnviz.resume import ResumeFile

SCHEMA = "attnviz.ablate-resume/1"


class Made(Series[Scores]):
    """Five changes of three texts; change c of text t has the value 10 t + c."""

    changed, noun, nouns = "variants", "removal", "removals"

    def __init__(self, file=None):
        self.asked = []
        super().__init__("removals", 5, 3, file)

    def measure(self, missing):
        for text, changes in missing.items():
            self.asked.append((text, tuple(changes)))
            for start in range(0, len(changes), 2):
                some = tuple(changes[start : start + 2])
                found = {"kl": np.array([10.0 * text + each for each in some])}
                yield text, Scores(text, some, found, {})

    def details(self, piece):
        return {"said": f"text {piece.text}"}

    def rebuild(self, text, changes, metrics, kept):
        if kept["said"] != f"text {text}":
            raise ValueError("it is of another text")
        return Scores(text, changes, metrics, {})


def values(series):
    return {
        (text, change): float(value)
        for text, pieces in series.pieces.items()
        for piece in pieces
        for change, value in zip(piece.variants, piece.metrics["kl"], strict=True)
    }


def test_only_what_is_missing_is_measured():
    series, shares = Made(), []
    add = shares_of(9, shares.append)
    series.cover([1, 3, 4], [0, 2], add)
    series.cover([0, 1, 2], [0], add)
    assert series.asked == [(0, (1, 3, 4)), (2, (1, 3, 4)), (0, (0, 2))]
    assert series.done(0) == {0, 1, 2, 3, 4}
    assert series.done(1) == set()
    assert values(series)[2, 3] == 23.0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_resumed_series_is_the_same(tmp_path):
    path, nothing = tmp_path / "scan.jsonl", shares_of(1, lambda share: None)
    with ResumeFile(path, SCHEMA, {}) as file:
        Made(file).cover([0, 1, 2], [0, 1], nothing)
    with ResumeFile(path, SCHEMA, {}) as file:
        again = Made(file)
        again.cover([0, 1, 2, 4], [0, 1], nothing)
    assert again.asked == [(0, (4,)), (1, (4,))]
    whole = Made()
    whole.cover([0, 1, 2, 4], [0, 1], nothing)
    assert values(again) == values(whole)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"text": 3, "variants": [4]}, "text 4 is damaged (there are 3 texts)"),
        ({"text": 0, "variants": [5]}, "text 1 is damaged (there are 5 removals)"),
        ({"text": 0, "variants": []}, "there are 5 removals"),
        ({"text": 0, "variants": [1.5]}, "text 1 is damaged"),
        ({"text": 0, "variants": [4], "said": "text 2"}, "it is of another text"),
        ({"text": 0, "variants": [0]}, "text 1 has a removal twice"),
    ],
)
def test_a_damaged_piece_is_refused(tmp_path, line, said):
    path = tmp_path / "scan.jsonl"
    with ResumeFile(path, SCHEMA, {}) as file:
        Made(file).cover([0], [0], shares_of(1, lambda share: None))
    text, changes = line["text"], line["variants"]
    kept = {"variants": changes, "metrics": {"kl": [1.0]}, "said": line.get("said", f"text {text}")}
    with path.open("a", encoding="ascii") as stream:
        stream.write(json.dumps({"part": "removals", "text": text, "result": kept}) + "\n")
    with ResumeFile(path, SCHEMA, {}) as file, pytest.raises(LoadError) as refused:
        Made(file)
    assert said in str(refused.value)


class Interrupted(Study):
    """A run that Ctrl-C ends, after something was measured or before."""

    def __init__(self, measured):
        super().__init__(None)
        self.measured = measured

    def run(self, watch):
        raise KeyboardInterrupt

    @property
    def empty(self):
        return not self.measured


def test_an_interrupted_study_keeps_what_it_has():
    study = Interrupted(measured=True)
    study.measure(UNWATCHED)
    assert not study.complete
    with pytest.raises(KeyboardInterrupt):
        Interrupted(measured=False).measure(UNWATCHED)
