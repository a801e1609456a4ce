"""Labels that are kept for a checkpoint's weights, and read again."""

import math
import os

import pytest

from attnviz.engine import known_labels
from attnviz.errors import UsageError
from attnviz.measures.labels import KnownLabel, KnownLabels
from attnviz.models.own import OwnAttention
from attnviz.models.resolve import load
from attnviz.models.stored_tensors import StoredTensors

from ..bert_by_hand import PREVIOUS, TEXTS
from ..quick import one_in
from ..small_models import SPECIAL, TINY, VOCABULARY, random_model
from ..terminals import POSIX

LABELS = KnownLabels(
    "patterns", {(0, 0): KnownLabel("previous", 0.75), (1, 2): KnownLabel(None, math.nan)}
)
COMMANDS = ("heads", "ablate", "patterns")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "attnviz" / "labels"


def keep(model, labels=LABELS):
    place = known_labels.label_file(model, "self")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(known_labels.labels_json(place.stem.split("-")[0], "self", labels))
    return place


def test_what_is_kept_is_read_again(checkpoint, cache):
    model = load(str(checkpoint("gpt2")))
    assert known_labels.known_labels(model, "self") is None
    assert keep(model).parent == cache
    found = known_labels.known_labels(model, "self")
    assert (found.source, found.heads[0, 0]) == ("patterns", KnownLabel("previous", 0.75))
    assert found.heads[1, 2].name is None


def test_other_weights_of_the_same_shape_have_their_own(checkpoint, cache, tmp_path):
    import torch

    keep(load(str(checkpoint("gpt2"))))
    torch.manual_seed(8)
    other = tmp_path / "other"
    random_model(TINY["gpt2"], vocab_size=VOCABULARY, **SPECIAL).save_pretrained(other)
    for file in checkpoint("gpt2").iterdir():
        if "token" in file.name:
            (other / file.name).write_bytes(file.read_bytes())
    assert known_labels.known_labels(load(str(other)), "self") is None


@pytest.mark.parametrize(("other", "reads"), [("llama", False), ("gpt2", True)])
def test_weights_are_read_for_labels_only_where_some_may_fit(
    checkpoint, cache, monkeypatch, other, reads
):
    model, kept = load(str(checkpoint("gpt2"))), load(str(checkpoint(other)))
    place = keep(kept)
    place.write_bytes(known_labels.labels_json(place.stem.split("-")[0], "self", LABELS, kept.info))
    digests = []
    right = StoredTensors.digest
    monkeypatch.setattr(
        StoredTensors, "digest", lambda self: digests.append(right(self)) or digests[-1]
    )
    assert (known_labels.known_labels(model, "self") is not None) == reads
    assert bool(digests) == reads


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"schema": "attnviz.labels/0", "heads": []}',
     b'{"schema": "attnviz.labels/1", "model": "other", "kind": "self", "heads": []}'],
)  # fmt: skip
def test_a_broken_file_counts_as_none(checkpoint, cache, content):
    model = load(str(checkpoint("gpt2")))
    place = keep(model)
    place.write_bytes(content)
    assert known_labels.known_labels(model, "self") is None


def test_a_name_that_is_no_label_never_reaches_a_screen(checkpoint, cache):
    model = load(str(checkpoint("gpt2")))
    keep(model, KnownLabels("patterns", {(0, 0): KnownLabel("\x1b[31mred", 1.0)}))
    found = known_labels.known_labels(model, "self")
    assert found.heads == {}


def test_random_weights_have_none(cache):
    assert known_labels.label_file(OwnAttention(), "self") is None
    assert known_labels.known_labels(OwnAttention(), "self") is None


def test_the_bundled_model_has_its_card():
    found = known_labels.known_labels(load("tiny"), "self")
    assert found.source == "card"
    assert [found.heads[1, head].name for head in (0, 2)] == ["induction", "induction"]


SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "When Mary and John went to the shop, John gave a drink to Mary.",
)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_known_heads_keep_their_names_over_a_short_sentence(run, sentence):
    labels = {
        (head["layer"], head["head"]): head["trait"]
        for head in run("heads", sentence, "--json").document["heads"]
    }
    assert labels[0, 0]["name"] == "previous"
    for place in ((1, 0), (1, 2), (1, 3)):
        assert (labels[place]["name"], labels[place]["source"]) == ("induction", "card")
        assert labels[place]["measured"] > 0.5


def test_heads_are_chosen_by_their_label():
    model = load("tiny")
    assert known_labels.by_label(model, "self", ["induction", "L0H1,prev"], 0) == (
        "L1H0,L1H2,L1H3",
        "L0H1,L0H0,L2H3",
    )
    assert known_labels.by_label(model, "self", ["previous-token"], 1) == ("L1H1,L3H4",)
    assert known_labels.by_label(model, "self", ["2.*", "*", "one"], 0) == ("2.*", "*", "one")
    with pytest.raises(UsageError, match="labelled coreference: its labels are current token, "):
        known_labels.by_label(model, "self", ["coreference"], 0)
    with pytest.raises(UsageError, match="no label of a head of 'mha' is known"):
        known_labels.by_label(OwnAttention(), "self", ["induction"], 0)
    with pytest.raises(UsageError, match="no head or label 'inducton'; did you mean 'induction'"):
        known_labels.by_label(model, "self", ["inducton"], 0)


def test_one_head_is_that_with_the_highest_score_of_a_label():
    model = load("tiny")
    assert known_labels.head_or_label(model, "self", "previous token", 0) == (0, 0)
    assert known_labels.head_or_label(model, "self", "previous token", 1) == (0, 0)
    assert known_labels.head_or_label(model, "self", "L2H3", 0) == (2, 3)
    with pytest.raises(
        UsageError, match="expected one head, such as L0H0, got 'L1H2,L1H3': 2 heads"
    ):
        known_labels.head_or_label(model, "self", "L1H2,L1H3", 0)


@pytest.mark.parametrize("command", one_in(2, ["heads", "why", "ablate", "lens", "generate"]))
def test_a_command_takes_a_label_for_heads(run, command):
    text = "Then Mary saw Tom. Then Mary saw"
    chosen = ("L1H0,L1H2,L1H3", "induction")
    heads, label = (run(command, text, "--head", typed, "--json").document for typed in chosen)
    assert {**label, "seconds": 0} == {**heads, "seconds": 0}


def test_the_card_says_what_patterns_finds(run):
    found = known_labels.known_labels(load("tiny"), "self")
    heads = run("patterns", "--json").document["heads"]
    assert len(found.heads) == len(heads)
    for head in heads:
        label = found.heads[head["layer"], head["head"]]
        assert label.name == head["label"]
        if label.name is not None:
            assert label.score == pytest.approx(head["score"], abs=1e-3)


def test_an_encoder_is_named_by_a_text_of_thirty_tokens(run, trained_bert):
    """Two heads attend to the token before; an encoder gets no induction."""
    heads = run("heads", TEXTS[0], "--model", str(trained_bert), "--json").document["heads"]
    labels = {(head["layer"], head["head"]): head["trait"] for head in heads}
    for place in PREVIOUS:
        assert (labels[place]["name"], labels[place]["source"]) == ("previous", "text")
        assert labels[place]["events"] >= 25
    names = [label["name"] for label in labels.values() if label["source"] == "text"]
    assert "induction" not in names
    assert set(names) <= {"previous", "next", "self", "duplicate"}


def test_patterns_keeps_what_heads_and_ablate_then_say(run, checkpoint, cache, tmp_path):
    name = str(checkpoint("gpt2"))
    for restricted in (["--head", "L0H0"], ["--without-first"], ["the cat sat on the mat"]):
        run("patterns", "--model", name, *restricted)
        assert not cache.exists()
    found = run("patterns", "--model", name, "--json").document["heads"]
    assert len(list(cache.iterdir())) == 1
    said = run("heads", "the cat sat", "--model", name, "--json").document["heads"]
    for before, now in zip(found, said, strict=True):
        if before["label"] is None:
            assert now["trait"]["source"] == "none"
        else:
            label = now["trait"]
            assert (label["name"], label["source"]) == (before["label"], "patterns")
            assert label["measured"] == pytest.approx(before["score"], abs=1e-4)


@POSIX
@pytest.mark.parametrize("kind", ["fifo", "directory", "labels"])
def test_an_entry_that_is_no_file_is_neither_read_nor_replaced(
    run, checkpoint, cache, tmp_path, kind
):
    """Nobody named the entries of the cache: a link there may lead anywhere."""
    name = str(checkpoint("gpt2"))
    place, target = keep(load(name)), tmp_path / "target"
    content = place.read_bytes() if kind == "labels" else b"precious"
    target.write_bytes(content)
    place.unlink()
    match kind:
        case "fifo":
            os.mkfifo(place)
        case "directory":
            place.mkdir()
        case "labels":
            place.symlink_to(target)
    before = place.lstat()
    assert known_labels.known_labels(load(name), "self") is None
    result = run("patterns", "--model", name, "--json")
    assert result.code == 0
    after = place.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert target.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_no_error(run, checkpoint, cache):
    cache.parent.write_text("in the way")
    result = run("patterns", "--model", str(checkpoint("gpt2")), "--json")
    assert result.code == 0
    assert len(result.err.splitlines()) <= 1  # told where somebody looks


@pytest.mark.parametrize("command", COMMANDS)
def test_kept_labels_are_said_with_their_date_and_can_be_ignored(run, checkpoint, cache, command):
    name = str(checkpoint("gpt2"))
    arguments = [command, "the cat sat on the mat", "--model", name]
    arguments += ["--tokens", "2", "--head", "L0H0"] if command == "generate" else []
    bare = run(*arguments, "--quiet")
    known = KnownLabels("patterns", {(0, 0): KnownLabel("previous", 0.75)}, "2026-11-21")
    model = load(name)
    place = keep(model)
    place.write_bytes(known_labels.labels_json(place.stem.split("-")[0], "self", known, model.info))
    shown, data = run(*arguments, "--quiet").out, run(*arguments, "--json").out
    first = run(*arguments, "--quiet", "--no-full", "--width", "120", env={"LINES": "40"}).out
    assert "21 Nov 2026" in " ".join(shown.split())
    assert "patterns" in shown
    assert "21 Nov 2026" in " ".join(first.split())
    assert "2026-11-21" in data
    ignored = run(*arguments, "--quiet", "--no-known-labels")
    assert untimed(ignored.out) == untimed(bare.out)
    assert "2026-11" not in run(*arguments, "--json", "--no-known-labels").out


def untimed(screen):
    return [line for line in screen.splitlines() if " s" not in line]
