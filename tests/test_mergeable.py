"""Records of shards add up to the bit in any order, and a killed shard goes on."""

import math
import statistics
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest

from attnviz import mergeable
from attnviz.corpus import Shard, open_corpus, read_shard
from attnviz.draw.values import model_facts
from attnviz.errors import LoadError, UsageError
from attnviz.measures.exact_sums import exact_sum, mean
from attnviz.mergeable import CorpusRecord, Form, ShardPart, Tallies, merged, read_record
from attnviz.models.resolve import load
from attnviz.reading import WHOLE

TEXTS = [f"text number {place}" for place in range(300)]
CORPUS = open_corpus(TEXTS)
MODEL = model_facts(load("tiny").info)
SHOWN = {"model": MODEL, "source": "texts", "index_base": 0, "top": 4}
BEGUN = CorpusRecord("patterns", {"model": "tiny", "control": None}, SHOWN, (), Tallies())
FORM = Form(
    {"top": WHOLE},
    lambda facts: {"wave": 2, "entry": 3, "row": 1, "pair": 2},
    {"wave exact": "sum squares", "": "n", "any": "most.last", "row entry pair": "best.highest"},
)
recorded = partial(mergeable.recorded, form=FORM)


def measured(block):
    """A wave, a decay and the place of the three highest waves."""
    places = block.first + np.arange(len(block.lines))
    values = np.stack([np.sin(places), np.exp(-places / 30)], -1)
    order = np.argsort(-values[:, 0], kind="stable")[:3]
    best = np.full((1, 3, 2), np.nan)
    best[0, : len(order)] = np.stack([values[order, 0], places[order]], -1)
    sums = {"sum": exact_sum(values), "squares": exact_sum(values**2), "n": np.array(len(places))}
    return Tallies(sums, {"last": places[-1:]}, {"highest": best})


def shards(count):
    return [recorded(CORPUS, Shard(number, count), BEGUN, measured) for number in range(count)]


def same(one, other):
    found = [
        {**each.tallies.sums, **each.tallies.most, **each.tallies.best} for each in (one, other)
    ]
    assert found[0].keys() == found[1].keys()
    return all(values.tobytes() == found[1][name].tobytes() for name, values in found[0].items())


def test_shards_in_any_order_are_one_process_to_the_bit():
    one = merged(shards(1))
    waves = [math.sin(place) for place in range(300)]
    assert float(mean(one.tallies.sums["sum"], 300)[0]) == pytest.approx(statistics.fmean(waves))
    highest = sorted(range(300), key=lambda place: -waves[place])[:3]
    assert one.tallies.best["highest"][0, :, 1].tolist() == highest
    for order in permutations(shards(4)):
        assert same(merged(order), one)
    for count in (2, 3, 7):  # seven shards of five blocks: two have no text
        assert same(merged(shards(count)), one)
    assert merged(shards(3)).texts == 300


def test_a_file_gives_the_record_back(tmp_path):
    (record,) = shards(1)
    record.save(tmp_path / "part")
    found = read_record(tmp_path / "part")
    assert same(found, record)
    for name in ("command", "run", "shown", "parts"):
        assert getattr(found, name) == getattr(record, name)


def test_what_is_missing_is_said_in_words():
    four = shards(4)
    with pytest.raises(UsageError, match="3 of 4 shards: 2/4 is missing"):
        merged([four[0], four[1], four[3]])
    with pytest.raises(UsageError, match="1 of 4 shards: 0/4, 1/4 and 3/4 are missing"):
        merged([four[2]])
    half = replace(four[1], parts=(four[1].parts[0]._replace(digest="", whole=0),))
    with pytest.raises(UsageError, match=r"not finished: shard 1/4 after 64 texts"):
        merged([four[0], half, *four[2:]])
    with pytest.raises(UsageError, match="shard 1/4 is there twice"):
        merged([*four, four[1]])
    with pytest.raises(UsageError, match="1/3 does not fit shard 0/4: a corpus is cut into one"):
        merged([four[0], shards(3)[1]])
    with pytest.raises(UsageError, match="none"):
        merged([])


def test_another_run_does_not_add_up():
    one, other = shards(2)
    read = (other.parts[0]._replace(whole=301, digest="x"),)
    for changed, said in (
        ({"run": {**other.run, "model": "gpt2"}}, "its model is gpt2, here it is tiny"),
        ({"command": "atlas"}, "shard 1/2 is of atlas, shard 0/2 of patterns"),
        ({"parts": read}, r"read different texts \(300 and 301 of them\)"),
    ):
        with pytest.raises(UsageError, match=said):
            one + replace(other, **changed)


def test_a_run_goes_on_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(mergeable, "_SECONDS", 0.0)
    path, done = tmp_path / "part", []

    def failing(block):
        if len(done) in (1, 3):
            done.append(-1)
            raise KeyboardInterrupt
        done.append(block.index)
        return measured(block)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            recorded(CORPUS, Shard(), BEGUN, failing, file=path)
    record = recorded(CORPUS, Shard(), BEGUN, failing, file=path)
    assert [index for index in done if index >= 0] == [0, 1, 2, 3, 4]
    assert same(record, shards(1)[0])
    again = recorded(CORPUS, Shard(), BEGUN, failing, file=path)
    assert same(again, record)
    assert len(done) == 7  # nothing was measured again


def test_a_file_of_something_else_is_left_as_it_is(tmp_path):
    path = tmp_path / "part"

    def stopped(block):
        if block.index == 2:
            raise KeyboardInterrupt
        return measured(block)

    with pytest.raises(KeyboardInterrupt):
        recorded(CORPUS, Shard(), BEGUN, stopped, file=path)
    before = path.read_bytes()
    other = replace(BEGUN, run={**BEGUN.run, "control": 0})
    for corpus, shard, begun, said in (
        (CORPUS, Shard(), other, "is of another run: its control is null, here it is 0"),
        (CORPUS, Shard(0, 2), BEGUN, r"is of patterns, shard 0/1: it is left"),
        (open_corpus(["new", *TEXTS]), Shard(), BEGUN, "is of other texts than"),
        (open_corpus(TEXTS[:64]), Shard(), BEGUN, "part is of other texts than"),
    ):
        with pytest.raises(UsageError, match=said):
            recorded(corpus, shard, begun, measured, file=path)
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("shard", "texts"),
    [
        (Shard(1, 4), ["new", *TEXTS]),  # the first block differs, which is another shard's
        (Shard(1, 4), [*TEXTS[:-1], "new"]),  # the last text, which is not every shard's
        (Shard(6, 7), [*TEXTS, "new"]),  # a shard without a text
        (Shard(), [*TEXTS, *(f"new {place}" for place in range(200))]),  # a further block
        (Shard(6, 7), TEXTS[:10]),
    ],
    ids=["first", "last", "one more", "many more", "few"],
)
def test_a_file_of_other_texts_is_left_as_it_is(tmp_path, shard, texts):
    path = tmp_path / "part"
    recorded(CORPUS, shard, BEGUN, measured, file=path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="part is of other texts than"):
        recorded(open_corpus(texts), shard, BEGUN, measured, file=path)
    assert path.read_bytes() == before


def test_a_damaged_file_is_refused(tmp_path):
    """One that is cut anywhere, one with another bit anywhere, one with strange facts."""
    path = tmp_path / "part"
    shards(1)[0].save(path)
    content = path.read_bytes()
    damaged = [content[:cut] for cut in (0, 4, 100, 500, -1)]
    for place in (0.3, 0.6, 0.99):
        other = bytearray(content)
        other[int(place * len(content))] ^= 1
        damaged.append(bytes(other))
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(LoadError, match="damaged"):
            read_record(path)
    replace(shards(1)[0], parts=(ShardPart(Shard(2, 1)),)).save(path)
    with pytest.raises(LoadError, match="numbers of shards"):
        read_record(path)


def forged(path, **changed):
    """Save the record of all texts with other facts or numbers, and read and check it."""
    record = shards(1)[0]
    sums = {**record.tallies.sums, **changed.pop("sums", {})}
    whole = replace(record, tallies=replace(record.tallies, sums=sums))
    replace(whole, **{name: changed[name] for name in changed}).save(path)
    found = read_record(path)
    found.check(FORM, "part")
    return found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": [1]}, "its run is"),
        ({"command": 5}, "its command is 5"),
        ({"shown": {**SHOWN, "top": "x"}}, "its top is 'x'"),
        ({"shown": {**SHOWN, "index_base": 2}}, "its index base is 2"),
        ({"shown": {**SHOWN, "model": {**MODEL, "layers": 10**9}}}, "its model's layers is"),
        ({"shown": {**SHOWN, "model": {**MODEL, "notes": "x"}}}, "its model's notes are 'x'"),
        ({"shown": {**SHOWN, "empty": -1}}, "its empty rows are -1"),
        ({"shown": {}}, "its model is .tiny."),
        ({"parts": (ShardPart(Shard(0, 10**9)),)}, "its parts is"),
        ({"parts": (ShardPart(Shard(), 1, 10**8),)}, "numbers of shards, blocks and texts"),
        ({"sums": {"n": np.array([300])}}, r"sums.n of \(1,\) is none of its arrays"),
        ({"sums": {"sum": np.zeros((3, 2), int)}}, r"sums.sum of \(3, 2\) is none of its arrays"),
    ],
    ids=str,
)
def test_a_forged_record_is_refused_before_it_is_added_up(tmp_path, changed, said):
    with pytest.raises(LoadError, match=said):
        forged(tmp_path / "part", **changed)


def test_records_of_other_heads_do_not_add_up():
    one, other = shards(2)
    for changed in (
        {"sums": {**other.tallies.sums, "sum": np.zeros((3, 2), np.int64)}},
        {"most": {"last": np.array([1, 2])}},
    ):
        with pytest.raises(LoadError, match="are not those of the others"):
            one + replace(other, tallies=replace(other.tallies, **changed))


@pytest.mark.parametrize("typed", ["0/9999999999", "0/1000001", "0/" + "9" * 5000, "1/1", "-1/2"])
def test_a_corpus_has_a_million_shards_at_most(typed):
    with pytest.raises(UsageError, match="N at most 1,000,000"):
        read_shard(typed)
    assert read_shard("7/1000000")[0] == Shard(7, 10**6)
