"""What attnviz saves and reads again comes back as it was: ``read(write(report)) == report``."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz import records
from attnviz.draw.values import model_facts, model_of
from attnviz.engine.generation import Sampling, Step
from attnviz.engine.likely import Likely
from attnviz.inspect.generate.report import WrittenRun, read_run, write_run_lines
from attnviz.inspect.heads.report import HeadsReport
from attnviz.inspect.heads.saved import read_heads
from attnviz.inspect.patterns.report import PatternReport, PatternScores, read_scores
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.measures.one_text import notable_heads
from attnviz.measures.registry import LABELS, OF_ONE_TEXT, UNLABELLED, label_named

WORDS = st.text(max_size=12)
SHARES = st.floats(0, 1)
NUMBERS = st.floats(-(2**40), 2**40)
SEEDS = st.integers(0, 2**32 - 1)
DATES = st.dates().map(str)


@st.composite
def models(draw, *, array=False):
    """The facts on a small model, or on an array of weights without a model."""
    heads = draw(st.sampled_from([1, 2, 4]))
    shared = heads if array else draw(st.sampled_from([one for one in (1, 2, 4) if one <= heads]))
    weights = ["given"] if array else ["trained", "checkpoint", "random", "loaded"]
    return records.ModelInfo(
        name=draw(WORDS),
        revision=draw(st.none() | WORDS),
        architecture="array" if array else draw(WORDS),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        layers=1 if array else draw(st.integers(1, 3)),
        heads=heads,
        kv_heads=shared,
        head_dim=1 if array else draw(st.integers(1, 64)),
        weights=draw(st.sampled_from(weights)),
        seed=draw(st.none() | SEEDS),
        device="" if array else draw(st.sampled_from(["cpu", "cuda:1"])),
        notes=tuple(draw(st.lists(WORDS, max_size=2))),
        backend="numpy" if array else draw(st.sampled_from(["numpy", "torch"])),
    )


def tokens(draw, *, special):
    """A few tokens; a special one looks like one, or stands there by itself if ``special``."""
    plain = st.sampled_from(["a", " b", "é", "\x00", "\x1b[2J", "<0xE2>", "", "\u202e", "< s>"])
    named = st.sampled_from(["<s>", "[SEP]", "<|end|>"]).map(lambda text: (text, True))
    alone = st.tuples(plain, st.booleans() if special else st.just(False))
    texts, marks = zip(*draw(st.lists(alone | named, min_size=1, max_size=4)), strict=True)
    return records.Tokens(tuple(draw(st.integers(0, 2**40)) for _ in texts), texts, marks)


@st.composite
def labels(draw):
    name = draw(st.sampled_from([*LABELS, *UNLABELLED]))
    measure, source = label_named(name), draw(st.sampled_from(["card", "patterns", "text", "none"]))
    shown = label_named("first") if source == "none" and name in records.SINKS else measure
    return records.HeadLabel(
        name=name,
        letter=measure.letter,
        score=draw(SHARES),
        base_rate=draw(SHARES | st.just(math.nan)),
        short=shown.short,
        said=shown.said,
        source=source,
        events=draw(st.integers(0, 99)),
        on_text=draw(SHARES | st.just(math.nan)),
        date=draw(DATES) if source == "patterns" else "",
    )


@st.composite
def comparisons(draw):
    """One run of a model, or two that differ in their mask and score."""
    several = draw(st.booleans())
    info = draw(models(array=draw(st.booleans())))
    kind = draw(st.sampled_from(["self", "encoder", "decoder", "cross"]))
    causal = kind != "cross" and draw(st.booleans())
    keys = tokens(draw, special=not causal and not several)
    queries = tokens(draw, special=False) if kind == "cross" else keys
    every = [(layer, head) for layer in range(info.layers) for head in range(info.heads)]
    kept = sorted(draw(st.sets(st.sampled_from(every), min_size=1)))
    sort = draw(st.none() | st.sampled_from(OF_ONE_TEXT))
    order = draw(st.permutations(kept)) if sort else kept

    def report(score, *, causal, first=None):
        blank = {place for place in kept if draw(st.integers(0, 4)) == 0}
        layers = []
        for layer in sorted({layer for layer, _ in kept}):
            heads = tuple(head for at, head in kept if at == layer)
            shape, random = (len(heads), len(queries)), np.random.default_rng(draw(SEEDS))
            weights = random.dirichlet(np.full(len(keys), 0.3), shape).astype(np.float32)
            weights = np.tril(weights) if causal else weights
            for place, head in enumerate(heads):
                if (layer, head) in blank:
                    weights[place] = np.where(np.tril(np.ones_like(weights[place])), np.nan, 0)
            layers.append(records.LayerWeights(layer, heads, weights))
        scores = tuple(
            records.HeadScores(
                *place,
                {name: draw(st.none() | NUMBERS) for name in OF_ONE_TEXT},
                records.NO_LABEL if place in blank else draw(labels()),
            )
            for place in order
        )
        sinks = {place: draw(SHARES) for place in kept} if draw(st.booleans()) else {}
        model = dataclasses.replace(info, score=score)
        record = records.AttentionRecord(model, kind, causal, queries, keys, tuple(layers))
        shared = {
            "text": draw(WORDS),
            "target": draw(WORDS) if kind in ("decoder", "cross") and draw(st.booleans()) else None,
            "sink": draw(st.booleans()),
            "ablated": tuple(sorted(draw(st.sets(st.sampled_from(every), max_size=2)))),
            "norm_weighted": draw(st.booleans()),
            "resting": draw(SHARES) if sinks else 1.0,
            "sinks": sinks,
        }
        if first is not None:
            names = ("text", "target", "sink", "ablated", "norm_weighted", "resting")
            shared |= {name: getattr(first, name) for name in names}
            shared["sinks"] = sinks if first.sinks else {}
        return records.HeadsRecord(
            record,
            scores,
            tuple(order[:3]) if sort else notable_heads(scores, 3),
            len(kept) < len(every),
            sorted_by=sort,
            **shared,
        )

    one = report(draw(st.sampled_from([None, "scaled-dot"])), causal=causal)
    if not several:
        return HeadsReport((one,), (None,))
    other = report("additive", causal=kind != "cross" and not causal, first=one)
    moved = {place: draw(SHARES) for place in kept} if draw(st.booleans()) else None
    return HeadsReport((one, other), (None, moved))


def heads_file(found, ending):
    if ending == "json":
        lines = io.StringIO()
        found.write_json(lines)
        return lines.getvalue().encode("ascii")
    stream = io.BytesIO()
    found.arrays()[".npz"](stream)
    return stream.getvalue()


@pytest.mark.parametrize("ending", ["json", "npz"])
@settings(max_examples=25)
@given(found=comparisons())
def test_runs_of_heads(ending, found):
    back = read_heads(heads_file(found, ending), f"file.{ending}")
    assert (len(back.reports), back.moved) == (len(found.reports), found.moved)
    for one, other in zip(found.reports, back.reports, strict=True):
        for field in dataclasses.fields(records.HeadsRecord):
            if field.name != "record":
                assert getattr(one, field.name) == getattr(other, field.name), field.name
        for name in ("model", "kind", "causal", "queries", "keys"):
            assert getattr(one.record, name) == getattr(other.record, name), name
        for layer, head, weights in one.record:
            np.testing.assert_array_equal(other.weights(layer, head), weights, strict=True)


@given(models() | models(array=True))
def test_facts_on_a_model(info):
    assert model_of(json.loads(json.dumps(model_facts(info)))) == info


@st.composite
def known(draw, info, source):
    """Labels of some heads, scores of four digits."""
    heads = {}
    for layer in range(info.layers):
        for head in range(info.heads):
            name = draw(st.none() | st.sampled_from(sorted(LABELS)))
            score = math.nan if name is None else draw(st.integers(0, 10_000)) / 10_000
            heads[layer, head] = KnownLabel(name, score)
    return KnownLabels(source, heads, draw(st.just("") | DATES))


@st.composite
def runs(draw):
    """A text that a model wrote, weights of four digits, as the file has them."""
    info = draw(models())
    kind = draw(st.sampled_from(["self", "decoder", "cross"]))
    begun = tokens(draw, special=True)
    source = None if kind == "self" else tokens(draw, special=True)
    layers = sorted(draw(st.sets(st.integers(0, info.layers - 1), min_size=1)))
    generator = np.random.default_rng(draw(SEEDS))

    def weights(queries, keys):
        digits = generator.integers(0, 10_000 // keys, (info.heads, queries, keys))
        return (digits / 10_000).astype(np.float32)

    def keys(place):
        return len(source) if kind == "cross" and source is not None else place + 1

    def step(place):
        likely = st.builds(Likely, WORDS, st.integers(0, 2**31), SHARES)
        return Step(
            query=place,
            id=draw(st.integers(0, 2**31)),
            text=draw(WORDS),
            probability=draw(SHARES),
            likely=tuple(draw(st.lists(likely, max_size=2))),
            entropy=draw(NUMBERS),
            rows={layer: weights(1, keys(place))[:, 0] for layer in layers},
            ended=draw(st.booleans()),
        )

    last = len(begun) - 1
    whole = [weights(len(begun), keys(last)) for _ in layers]
    prompt = [one if kind == "cross" else np.tril(one) for one in whole]
    return WrittenRun(
        info,
        kind,
        text=draw(WORDS),
        source=source,
        begun=begun,
        prompt=tuple(
            records.LayerWeights(layer, tuple(range(info.heads)), one)
            for layer, one in zip(layers, prompt, strict=True)
        ),
        sampling=Sampling(
            draw(st.integers(1, 99)),
            draw(st.floats(0, 9)),
            draw(st.none() | st.integers(1, 99)),
            draw(st.none() | st.floats(0.01, 1)),
            draw(SEEDS),
        ),
        removed=tuple(sorted(draw(st.sets(st.tuples(st.sampled_from(layers), st.just(0)))))),
        steps=tuple(step(place) for place in range(last, last + draw(st.integers(1, 3)))),
        ending=draw(st.sampled_from(["tokens", "end", "context", "interrupted", "failed"])),
        known=draw(st.none() | known(info, "patterns") | known(info, "card")),
    )


@given(runs())
def test_a_text_that_a_model_wrote(run):
    stream = io.StringIO()
    write_run_lines(run, stream)
    back = read_run(stream.getvalue().encode("ascii"), "run.jsonl")
    for field in dataclasses.fields(WrittenRun):
        if field.name not in ("prompt", "steps"):
            assert getattr(back, field.name) == getattr(run, field.name), field.name
    for one, other in zip(run.prompt, back.prompt, strict=True):
        assert (other.layer, other.heads) == (one.layer, one.heads)
        np.testing.assert_array_equal(other.weights, one.weights, strict=True)
    for one, other in zip(run.steps, back.steps, strict=True):
        assert {**vars(other), "rows": None} == {**vars(one), "rows": None}
        assert other.rows.keys() == one.rows.keys()
        for layer, row in one.rows.items():
            np.testing.assert_array_equal(other.rows[layer], row, strict=True)


@given(st.data())
def test_heads_of_patterns(data):
    info, names = data.draw(models()), ("previous", "first", "duplicate")
    heads = []
    for layer in range(info.layers):
        for head in range(info.heads):
            scores = {name: data.draw(st.none() | SHARES) for name in names}
            label = data.draw(st.none() | st.sampled_from(names))
            heads.append(
                PatternScores(
                    layer,
                    head,
                    None if label is None or scores[label] is None else label,
                    scores,
                    {name: data.draw(st.none() | SHARES) for name in names},
                    intervals={name: (data.draw(NUMBERS), data.draw(NUMBERS)) for name in names},
                )
            )
    report = PatternReport(info, "self", True, "raw", tuple(heads), names, ())
    found = report.to_dict()
    assert tuple(map(read_scores, found["heads"])) == report.heads
