"""Frames, removals and effects are those of ``heads``, ``ablate`` and ``generate``."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attnviz
from attnviz.engine.capture import Choice
from attnviz.engine.generation import Sampling
from attnviz.errors import UnsupportedError, UsageError
from attnviz.inspect.explore import session
from attnviz.inspect.explore.session import LiveSession, open_session
from attnviz.models.bundled import Bundled
from attnviz.models.work import LoadOptions

TEXT = "When Mary and John went out, John gave Mary a book."
REMOVED = frozenset({(0, 1), (1, 0)})


def nothing(share):
    pass


@pytest.fixture(scope="module")
def tiny():
    return LiveSession(Bundled(), text=TEXT)


def test_maps_that_are_too_large_are_refused_before_a_run(tiny, monkeypatch):
    """The limit is between the bytes of 24 maps over a text and those of a text a word longer."""
    count = len(tiny.model.encode(TEXT))
    monkeypatch.setattr(session, "_LARGEST", 4 * 24 * count**2)
    assert tiny.frame(TEXT).report.record.layers
    for run in (tiny.frame, lambda text: tiny.effects(text, nothing)):
        with pytest.raises(UsageError, match=f"over {count + 1} tokens .* are held: .*--queries"):
            run(f"{TEXT} John")


CASES = {
    "gpt2 in NumPy": ("gpt2", {}, None),
    "gpt2 on torch": ("gpt2", {"backend": "torch"}, None),
    "bert in NumPy": ("bert", {}, None),
    "encoder": ("t5", {}, "encoder"),
    "decoder": ("t5", {}, "decoder"),
    "cross": ("t5", {}, "cross"),
}


@pytest.mark.parametrize("case", CASES)
def test_frames_and_effects_are_those_of_the_commands(checkpoint, case):
    """Which have oracles of their own: weights, losses, effects and what is written."""
    name, options, kind = CASES[case]
    text, place = "the tired cat sat on the mat", str(checkpoint(name))
    asked = {"kind": kind, "target": "the cat sat on" if kind in ("decoder", "cross") else None}
    session = open_session(place, LoadOptions(offline=True, **options), Choice(**asked), text)
    model, removed = attnviz.load(place, **options), [f"L{layer}H{head}" for layer, head in REMOVED]
    frame, whole = session.frame(text, REMOVED), session.frame(text)
    other = attnviz.heads(model, text, ablate=removed, **asked).first
    for layer, head, weights in frame.report.record:
        np.testing.assert_allclose(weights, other.weights(layer, head), atol=3e-6)
    measured, effects = (
        attnviz.ablate(model, text, **asked).to_dict(),
        session.effects(text, nothing),
    )
    expected = {(one["layer"], one["head"]): one[effects.metric] for one in measured["heads"]}
    if kind != "encoder":  # which runs alone here, and with its decoder there
        assert effects.values == pytest.approx(expected, abs=1e-5)
    if whole.loss is None:
        assert (whole.likely, effects.metric) == ((), "output_mse")
    else:
        assert whole.loss == pytest.approx(measured["baseline"]["loss"], abs=1e-5)
        chances = [token.probability for token in frame.likely]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1 + 1e-6
    if name == "gpt2":
        (step,) = session.generation(text, Sampling(tokens=1), REMOVED)
        (written,) = attnviz.generate(model, text, tokens=1, ablate=removed)
        assert step.id == written.id == frame.likely[0].id
        np.testing.assert_allclose(step.rows[1][2], frame.weights((1, 2))[-1], atol=1e-5)
    else:
        with pytest.raises(UnsupportedError):
            list(session.generation(text, Sampling(), REMOVED))


def test_one_token_and_as_many_as_there_are(tiny):
    one = tiny.frame("")
    assert (len(one.report.record.queries), one.loss, len(one.likely)) == (1, None, 10)
    np.testing.assert_array_equal(one.weights((0, 0)), [[1]])
    with pytest.raises(UsageError, match="1 token"):
        tiny.effects("", nothing)
    full = tiny.frame(" cat" * (tiny.model.context - 1))
    assert full.weights((5, 3)).shape == (tiny.model.context, tiny.model.context)
    with pytest.raises(UsageError, match="at most"):
        tiny.frame(" cat" * tiny.model.context)


@pytest.mark.parametrize("head", [(6, 0), (0, 4), (-1, 0)])
def test_heads_that_are_not_there(tiny, head):
    with pytest.raises(UsageError, match=r"no (head|layer)"):
        tiny.frame(TEXT, frozenset({head}))
    with pytest.raises(UsageError, match=r"no (head|layer)"):
        tiny.generation(TEXT, Sampling(), frozenset({head}))


def test_a_scan_ends_where_it_is_cancelled_and_runs_in_a_thread(tiny):
    class CancelledError(Exception):
        pass

    shares = []

    def advance(share):
        shares.append(share)
        if share > 0.3:
            raise CancelledError

    with ThreadPoolExecutor(2) as pool:
        scan, frame = pool.submit(tiny.effects, TEXT, advance), pool.submit(tiny.frame, TEXT)
        with pytest.raises(CancelledError):
            scan.result()
        assert frame.result().loss == tiny.frame(TEXT).loss
    assert max(shares) < 0.6


def test_a_torch_model_may_be_asked_by_several_threads(checkpoint):
    options = LoadOptions(offline=True, backend="torch")
    session, text = open_session(str(checkpoint("gpt2")), options), "the cat sat on the mat"
    removed = [frozenset({(layer, head)}) for layer in range(2) for head in range(3)]
    losses = [session.frame(text, heads).loss for heads in removed]
    values = session.effects(text, nothing).values
    ids = [step.id for step in session.generation(text, Sampling(tokens=6))]
    with ThreadPoolExecutor(4) as pool:
        scans = [pool.submit(session.effects, text, nothing) for _ in range(2)]
        writes = pool.submit(lambda: list(session.generation(text, Sampling(tokens=6))))
        frames = [pool.submit(session.frame, text, heads) for heads in removed * 3]
        assert [frame.result().loss for frame in frames] == losses * 3
        assert all(scan.result().values == values for scan in scans)
        assert [step.id for step in writes.result()] == ids
