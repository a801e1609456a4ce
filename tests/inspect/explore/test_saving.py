"""Files of ``heads --save`` come back as they were; hostile ones are one sentence and exit 3."""

import io
import json
import struct
import sys
import zipfile

import numpy as np
import pytest

import attnviz
from attnviz.cli import boundary
from attnviz.engine.generation import Sampling
from attnviz.errors import LoadError, UnsupportedError, UsageError
from attnviz.inspect.explore.session import LiveSession, open_saved
from attnviz.models.bundled import Bundled
from attnviz.options import RegionOptions

ENDINGS = ("json", "npz")
TEXT = "The cat sat on the mat."
VIEWS = {
    "plain": [TEXT],
    "changed": [TEXT, "--ablate", "L0H1", "--norm-weighted", "--no-sink", "--sort", "entropy"],
    "masks": [TEXT, "--model", "mha", "--compare-mask"],
    "kinds": ["a b c", "--model", "mha", "--kind", "self,cross", "--target", "x y"],
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file of each view and ending."""
    place = tmp_path_factory.mktemp("saved")
    for name, options in VIEWS.items():
        files = [word for end in ENDINGS for word in ("--save", str(place / f"{name}.{end}"))]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "argv", ["attnviz", "heads", *options, *files, "--quiet"])
            assert boundary.run() == 0
    return place


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_saved_comes_back_as_one_side_or_two(saved, ending):
    """That the reports are the saved ones, is tested where they are read."""
    seen = open_saved(saved / f"changed.{ending}").seen
    assert (seen.removed, seen.report.sorted_by) == ({(0, 1)}, None)
    for name, field in (("masks", "causal"), ("kinds", "kind")):
        told = json.loads((saved / f"{name}.json").read_text())["variants"]
        first = open_saved(saved / f"{name}.{ending}")
        for side, facts in zip((first, first.other), told, strict=True):
            assert getattr(side.seen.report.record, field) == facts[field]
            assert side.frame(side.seen.text).report is side.seen.report


def test_an_array_without_a_model_comes_back(tmp_path):
    weights = np.random.default_rng(2).dirichlet(np.ones(5), (3, 5))
    for ending in ENDINGS:
        path = tmp_path / f"array.{ending}"
        attnviz.heatmap(weights, list("abcde")).save(path)
        report = open_saved(path).seen.report
        assert (report.name(0, 2), report.record.model.is_array) == ("H2", True)
        assert report.record.model.group(1) is None
        np.testing.assert_allclose(report.weights(0, 2), weights[2], atol=1e-7)


def test_there_is_no_model_behind_a_file(saved):
    session = open_saved(saved / "plain.npz")
    assert (session.live, session.info.name, session.seen.text) == (False, "tiny", TEXT)
    for text, removed in (("another", frozenset()), (TEXT, frozenset({(0, 0)}))):
        with pytest.raises(UsageError, match="no model behind it"):
            session.frame(text, removed)
    with pytest.raises(UnsupportedError, match="no model behind it"):
        session.effects(TEXT, lambda share: None)
    with pytest.raises(UnsupportedError, match="no model behind it"):
        session.generation(TEXT, Sampling())
    with pytest.raises(UsageError, match="not known here"):
        session.seen.weights((0, 0), "value-weighted")


@pytest.mark.parametrize("ending", ENDINGS)
def test_regions_of_what_was_saved_can_be_named(saved, ending):
    path, plain = saved / f"plain.{ending}", open_saved(saved / f"plain.{ending}")
    words = plain.seen.report.record.keys.texts
    asked = RegionOptions(span=("start=0:2", f"last={words[2].strip()} … {words[4].strip()}"))
    record = open_saved(path, asked).seen.report.record
    expected = ["start", "start", "last", "last", "last"]
    assert list(record.keys.regions) == expected + ["other"] * (len(words) - 5)
    assert record.queries is record.keys
    for span, told in ((("a=0:99",), "ends behind"), (("a=nowhere",), "occurs nowhere")):
        with pytest.raises(UsageError, match=told):
            open_saved(path, RegionOptions(span=span))
    with pytest.raises(UsageError, match="--and needs a model"):
        open_saved(path, RegionOptions(second="b"))


def test_a_run_is_replayed(run, tmp_path):
    path, prompt = tmp_path / "run.jsonl", "Once upon a time attnviz.heads/1"
    options = ["--tokens", "4", "--ablate", "L1H1", "--quiet", "--save", str(path)]
    assert run("generate", prompt, *options).code == 0
    session, live = open_saved(path), LiveSession(Bundled())
    removed = frozenset({(1, 1)})
    assert (session.live, session.seen.text, session.seen.removed) == (False, prompt, removed)
    frame, expected = session.frame(prompt, removed), live.frame(prompt, removed)
    for layer, head, weights in expected.report.record:
        np.testing.assert_allclose(frame.weights((layer, head)), weights, rtol=1e-3, atol=1e-6)
    kept, known = (
        [(entry.label.name, entry.label.source) for entry in each.report.heads]
        for each in (frame, expected)
    )
    assert kept == known
    assert {source for _, source in kept} == {"card", "none"}
    told = list(session.generation(prompt, Sampling(), removed))
    steps = list(live.generation(prompt, Sampling(tokens=4), removed))
    assert [step.id for step in told] == [step.id for step in steps]
    for saved, step in zip(told, steps, strict=True):
        np.testing.assert_allclose(saved.rows[2], step.rows[2], rtol=1e-3, atol=1e-6)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LoadError, match="line 6"):
        open_saved(path)


def changed(place, **arrays):
    with np.load(place / "plain.npz") as found:
        stream = io.BytesIO()
        np.savez(stream, **{**found, **arrays})
        return stream.getvalue()


def facts(place, edit):
    told = json.loads((place / "plain.json").read_text())
    edit(told)
    return json.dumps(told).encode()


def zipped(content):
    """An archive whose provenance is this ``.npy``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("provenance.npy", content)
    return stream.getvalue()


def header(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def pickled():
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    return stream.getvalue()


def weights(place):
    return np.load(place / "plain.npz")["weights"].copy()


def with_weight(place, value):
    found = weights(place)
    found[3, 2, 1] = value
    return changed(place, weights=found)


HOSTILE = {
    "empty": lambda place: b"",
    "a cut npz": lambda place: (place / "plain.npz").read_bytes()[:-200],
    "a broken npz": lambda place: zipped(b"no array at all"),
    "a pickle": lambda place: zipped(pickled()),
    "a lying shape": lambda place: zipped(header("(1000000, 1000000, 1000)") + b"abcd"),
    "a bomb": lambda place: zipped(header("(1073741824,)") + bytes(2**26)),
    "fewer tokens": lambda place: changed(place, weights=weights(place)[:, :3, :3]),
    "texts for weights": lambda place: changed(place, weights=np.array("abc")),
    "NaN": lambda place: with_weight(place, np.nan),
    "less than nothing": lambda place: with_weight(place, -0.1),
    "more than all": lambda place: with_weight(place, 1.5),
    "a long header": lambda place: b"\xff\xff\xff\xff\xff\xff\xff\x00{}",
    "no provenance": lambda place: b"\x02" + bytes(7) + b"{}",
    "cut JSON": lambda place: (place / "plain.json").read_bytes()[:-99],
    "deep JSON": lambda place: b'{"a":' * 90_000,
    "another schema": lambda place: b'{"schema": "attnviz.params/1"}',
    "a head twice": lambda place: facts(place, lambda told: told["heads"][1].update(head=0)),
    "a head too many": lambda place: facts(place, lambda told: told["heads"][1].update(head=99)),
    "a strange label": lambda place: facts(
        place, lambda told: told["heads"][0]["trait"].update(name="\x1b[31m")
    ),
    "sizes in words": lambda place: facts(place, lambda told: told["model"].update(layers="six")),
    "a token that is none": lambda place: facts(place, lambda told: told["tokens"].append(7)),
    "ragged rows": lambda place: facts(place, lambda told: told["heads"][0]["weights"][1].pop()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_sentence(saved, tmp_path, name):
    path = tmp_path / "hostile\x1b[31m.npz"
    path.write_bytes(HOSTILE[name](saved))
    with pytest.raises(LoadError) as caught:
        open_saved(path)
    assert caught.value.exit_code == 3
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()
