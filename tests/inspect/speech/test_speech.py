"""What is asked of a sound, and what is said of it."""

import json

import numpy as np
import pytest

from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.inspect.speech.request import SpeechRequest
from attnviz.inspect.speech.speech import speech, word_rows
from attnviz.models.speech import handed_speech
from attnviz.records import Tokens
from tests.models.speech_models import build, checkpoint, noise, tokenizer, write

WORDS = "one two three four five six"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    model = handed_speech(build(), tokenizer())
    return model, model.hear(write(tmp_path_factory.mktemp("s") / "a.wav", noise()))


@pytest.fixture(scope="module")
def report(opened):
    return speech(*opened, SpeechRequest(transcript=WORDS))


def test_rows_are_those_that_write_the_words_and_padding_is_cropped(opened, report):
    model, heard = opened
    whole = capture(model, heard.tokens, kind="cross", target=model.encode_target(WORDS))
    assert report.words == tuple(WORDS.split())
    for head in report.heads:
        rows = whole.layers[head.layer].weights[head.head][3:9]  # four start tokens
        np.testing.assert_allclose(head.rows, rows[:, :40], atol=1e-6)
        assert head.padding == pytest.approx(rows[:, 40:].sum(-1).mean(), abs=1e-6)


def test_parts_of_the_sound_are_the_rows_of_the_encoder(opened):
    model, heard = opened
    report = speech(*opened, SpeechRequest(kind="encoder", head=("L1H2",)))
    whole = capture(model, heard.tokens, kind="encoder").layers[1].weights[2]
    (head,) = report.heads
    np.testing.assert_allclose(head.rows, whole[:40, :40], atol=1e-6)
    assert report.words[:2] == ("0.00", "0.02")
    assert "after the end of the sound" in report.finding


def test_words_of_several_tokens_have_one_row():
    texts = ("<s>", " chil", "dren", " walk", ".")
    tokens = Tokens(tuple(range(5)), texts, (True,) + (False,) * 4)
    assert word_rows(tokens, 1) == [range(1, 3), range(3, 5)]


def test_random_weights_claim_nothing(opened, report):
    assert "follow" not in report.finding.replace("No head of 12 heads follows", "")
    few = speech(*opened, SpeechRequest(transcript="one two"))
    assert "2 words are too few" in few.finding


def test_a_head_that_hears_is_told(report):
    heads = list(report.heads)
    heads[5] = type(heads[5])(1, 1, np.eye(6, 40) + 0.01, 0.5, 1.0, 0.1)
    heads[6] = type(heads[6])(
        1, 2, np.eye(6, 40) + 0.01, 0.5, 1.0, 1.0
    )  # it moves on with any word
    told = type(report)(**{**vars(report), "heads": tuple(heads), "chance": 0.9})
    assert told.finding.startswith(
        "The peaks of L1H1 follow the 6 words (1.00; shuffled words 0.10)"
    )
    assert "as those of 1 of 12 heads" in told.finding
    assert "columns in ms" in str(told)


def test_commands_and_files(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "whisper")
    write(tmp_path / "a.wav", noise())
    given = ("heads", "--audio", "a.wav", "--model", "./whisper")
    saved = [word for end in ("npz", "csv", "html", "svg", "md") for word in ("--save", f"o.{end}")]
    done = run(*given, "--text", WORDS, "--json", *saved)
    data = json.loads(done.out)
    assert (data["schema"], len(data["heads"])) == ("attnviz.speech/1", 12)
    assert np.load("o.npz")["maps"].shape == (12, 6, 40)
    assert "transcribed" in run(*given, "--json").out
    assert "Where the sound looks at itself" in run(*given, "--kind", "encoder").out
    decoder = json.loads(run(*given, "--kind", "decoder", "--text", WORDS, "--json").out)
    assert decoder["kind"] == "decoder"
    for code, words, line in (
        (2, (*given, "--values"), "--values is for texts"),
        (2, (*given, "--kind", "self"), "--kind cross, encoder or decoder: got 'self'"),
        (2, (*given, "--kind", "encoder", "--text", "a"), "the encoder hears no words"),
        (2, (*given, "--head", "L3H0"), "no layer 3"),
        (2, ("heads", "--text", "a", "--model", "./whisper"), "add --audio FILE"),
        (2, ("heads", "--audio", "a.wav"), "'tiny' reads text: give a speech model"),
        (3, ("heads", "--audio", "b.wav", "--model", "./whisper"), "'b.wav' is missing"),
        (5, ("heads", "A text.", "--model", "./whisper"), "give audio with --audio FILE"),
    ):
        done = run(*words)
        assert (done.code, line in done.err) == (code, True), done.err


def test_what_does_not_fit_is_refused(opened):
    with pytest.raises(UsageError, match="takes at most"):
        speech(*opened, SpeechRequest(transcript="one " * 40))
