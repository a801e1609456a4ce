"""Heads are chosen on some clips and measured on others, by the times that transformers gives."""

import csv
import json

import numpy as np
import pytest
import torch
from transformers import GenerationMixin

import attnviz
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.align.align import align
from attnviz.inspect.align.request import AlignRequest
from attnviz.inspect.align.study import Clips, Spoken, find_clips, heard, read_words
from attnviz.models.speech import handed_speech
from tests.models.speech_models import WORDS, build, checkpoint, noise, tokenizer, write


def spoken(seconds=0.75):
    edges = np.linspace(0.05, seconds, 6).tolist()
    return [Spoken(WORDS[at], edges[at], edges[at + 1] - 0.01) for at in range(5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten clips of noise, and a table of what would be spoken in them."""
    place = tmp_path_factory.mktemp("clips")
    with (place / "words.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["clip", "word", "start", "end"])
        for clip in range(10):
            write(place / f"c{clip}.wav", noise(seed=clip))
            table.writerows([f"c{clip}", *word] for word in spoken())
    checkpoint(place / "whisper")
    return place


def found(folder, **request):
    words = read_words(folder / "words.csv")
    model = handed_speech(build(), tokenizer())
    given = Clips(find_clips([str(folder)], words), words)
    return align(model, given, AlignRequest(**request))


@pytest.mark.parametrize("heads", [[(0, 1)], [(1, 0), (2, 3)], [(0, 0), (1, 2), (2, 1)]])
def test_times_are_those_of_transformers(folder, heads):
    model = build(vocab_size=13, suppress_tokens=[0])
    model.set_attn_implementation("eager")
    speech = handed_speech(model, tokenizer())
    sound = speech.hear(str(folder / "c0.wav"))
    starts = torch.tensor([sound.starts])
    made = GenerationMixin.generate(
        model,
        sound.features,
        decoder_input_ids=starts,
        max_new_tokens=7,
        suppress_tokens=[0],
        output_attentions=True,
        return_dict_in_generate=True,
    )
    theirs = model._extract_token_timestamps(
        made, heads, num_frames=80, num_input_ids=len(sound.starts)
    )[0]
    ids = made.sequences[0].tolist()[4:-1]  # the last one is written and not read
    words = [Spoken(str(number), 0.1, 0.2) for number in ids]
    object.__setattr__(speech, "word_ids", lambda text: [int(text)])
    given = Clips({"c": str(folder / "c0.wav")}, {"c": words})
    study = heard(speech, given, "transformers", lambda share: None)
    (clip,) = study.readings["transformers"]
    ours = clip.read([[study.heads.index(head) for head in heads]])[0]
    assert len(ids) == 6
    np.testing.assert_allclose(ours[1:], theirs[4:-1], atol=0.0201)


def test_halves_controls_and_the_curve(folder):
    report = found(folder, most=3)
    assert report.choosing == ("c0", "c2", "c4", "c6", "c8")
    assert report.held == ("c1", "c3", "c5", "c7", "c9")
    names = [one.name for one in report.sets]
    assert names[1:] == ["published list", "all of the last half", "random heads", "even spacing"]
    chosen, published, last, random, even = report.sets
    assert published.heads == ((1, 0), (2, 3))
    assert last.heads == tuple((layer, head) for layer in (1, 2) for head in range(4))
    assert (random.heads, even.heads) == ((), ())
    assert chosen.interval[0] - 1e-9 <= chosen.error <= chosen.interval[1] + 1e-9
    size = 1 + int(np.argmin([step.choosing for step in report.steps]))
    assert {step[:2] for step in report.steps[:size]} == set(chosen.heads)
    alone = min(report.heads, key=lambda head: head.choosing)
    assert report.steps[0] == (*alone[:2], alone.choosing, alone.held)
    held = [abs(word.by_heads - word.start) for word in report.words]
    assert np.mean(held) == pytest.approx(chosen.error)
    assert report.alignment_heads == sorted(map(list, chosen.heads))


def test_random_weights_recommend_nothing(folder):
    """A model that was handed over random is known by gains that were never moved."""
    words = folder / "words.csv"
    report = attnviz.align(build(), folder, words, processor=tokenizer(), most=2)
    assert report.finding.startswith("The weights are untrained")
    assert found(folder, most=2).finding.startswith("Words begin ")


def test_the_command_saves_the_list(folder, run, monkeypatch):
    monkeypatch.chdir(folder)
    given = ("align", "--audio", ".", "--words", "words.csv", "--most", "2")
    done = run(*given, "--model", "./whisper", "--save", "heads.json", "--save", "words.csv.md")
    assert done.code == 0, done.err
    saved = json.loads((folder / "heads.json").read_text())
    assert saved["schema"] == "attnviz.align/1"
    assert all(len(head) == 2 for head in saved["alignment_heads"])
    assert f"alignment_heads = {saved['alignment_heads']}" in done.out
    for code, words, line in (
        (3, ("align", "--audio", "no", "--words", "words.csv"), "no file or directory 'no'"),
        (2, ("align", "--audio", "c1.wav", "--words", "words.csv"), "1 of 10 clips have audio"),
        (2, given, "'tiny' reads text"),
    ):
        done = run(*words)
        assert (done.code, line in done.err) == (code, True), done.err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "clip,word,start\na,b,1\n", "line 2 lacks a column: expected clip, word"),
        ("a.csv", "clip,word,start,end\na,b,x,1\n", "line 2 has no seconds"),
        ("a.tsv", "clip\tword\tstart\tend\na\tb\t2\t1\n", "expected a word, and an end after"),
        ("a.json", "[]", "has no words"),
        ("a.txt", "clip word", "is not a table"),
    ],
)
def test_tables_that_are_none(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(LoadError, match=words):
        read_words(tmp_path / name)


def test_json_and_words_behind_the_sound(folder, tmp_path):
    rows = [
        {"clip": name, "word": "one", "start": start, "end": start + 0.1}
        for name in ("c1.wav", "c2.wav")
        for start in (0.3, 0.1, 0.9)
    ]
    (tmp_path / "w.json").write_text(json.dumps(rows))
    words = read_words(tmp_path / "w.json")
    assert [word.start for word in words["c1.wav"]] == [0.1, 0.3, 0.9]
    model = handed_speech(build(), tokenizer())
    with pytest.raises(UsageError, match=r"'one' begins at 0.9 s, 'c1.wav' ends at 0.80 s"):
        align(model, Clips(find_clips([str(folder)], words), words), AlignRequest())
