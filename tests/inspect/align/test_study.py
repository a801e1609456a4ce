"""Gold links are read in the forms people have, and heads that link are found by the error rate."""

import json

import numpy as np
import pytest
import torch

import attnviz
from attnviz.errors import LoadError, UsageError
from attnviz.inspect.align.study import GoldPair, Sentence, read_gold, word_pieces
from attnviz.records import Tokens
from tests.inspect.align.linked_pairs import linking, marian, pairs, t5, tokenizer, write


def asked(model, **given):
    return attnviz.align(model, pairs=given.pop("pairs", pairs()), tokenizer=tokenizer(), **given)


def test_the_error_rate_by_hand():
    """Three target words: one link is sure, one possible, one wrong; a sure link is missed."""
    pair = GoldPair(
        "1", ("a", "b", "c"), ("x", "y", "z"), {(0, 0), (2, 2)}, {(0, 0), (2, 2), (0, 1)}
    )
    gold = np.zeros((2, 3, 3), bool)
    gold[:, 0, 0] = gold[:, 2, 2] = gold[1, 1, 0] = True
    scores = np.zeros((2, 3, 3), np.float32)
    scores[0, [0, 1, 2], [0, 0, 1]] = 1
    scores[1, [0, 1, 2], [1, 1, 2]] = 3
    sentence = Sentence("1", scores, pair, gold)
    read = sentence.read([[0], [0, 1]])
    np.testing.assert_array_equal(read, [[0, 0, 1], [1, 1, 2]])
    # |A| 3, |S| 2; of the first set |A ∩ S| 1, |A ∩ P| 2; of the second 1 and 1.
    np.testing.assert_array_equal(sentence.wrong(read), [[2, 5], [3, 5]])
    np.testing.assert_array_equal(sentence.guess(), [[0, 1, 2]])
    assert [word.link for word in sentence.words(read[0])] == ["sure", "possible", "wrong"]
    assert [word.gold for word in sentence.words(read[0])] == ["a", "a", "c"]


@pytest.mark.parametrize(
    ("written", "read"), [([], [(1, 0)]), ([(0, 1)], []), ([(0, 0)], [(1, 1)])]
)
def test_planted_heads_are_found_in_the_rows_that_have_them(written, read):
    report = asked(linking(written, read))
    planted = (written or read)[0]
    assert report.sets[0].error == 0
    assert report.recipe == ("writes" if written else "reads")
    assert report.alignment_heads == [list(planted)]
    assert report.steps[0][:2] == planted
    best = min(report.heads, key=lambda head: head.held)
    assert (best[:2], best.held) == (planted, 0)
    assert report.sets[-1].error > 0.3
    assert report.sets[0].further == {"precision": 1, "recall": 1}
    assert "Alignment error rate 0.0% by 1 chosen head" in report.finding
    assert f"the steps that {report.recipe[:-1]} a word" in report.finding


@pytest.mark.parametrize("build", [t5, marian])
def test_every_head_alone_has_the_error_of_transformers_weights(build):
    """The weights are those that the model itself gives; the rest is counted word by word."""
    model, rows = build(), pairs()
    report = asked(model, most=2)
    model.set_attn_implementation("eager")
    shift = 1 if report.recipe == "writes" else 0
    wrong, whole = 0, 0
    for row in rows[1::2]:
        ids = [tokenizer()(row[side])["input_ids"] for side in ("source", "target")]
        with torch.no_grad():
            run = model(
                input_ids=torch.tensor(ids[:1]),
                decoder_input_ids=torch.tensor([[0, *ids[1][:-1]]]),
                output_attentions=True,
            )
        maps = torch.cat(run.cross_attentions)[..., :-1].flatten(0, 1)  # without the end
        links = [text.replace("?", "-").split("-") for text in row["alignment"].split()]
        known = {(int(source), int(target)) for source, target in links}
        sure = {(int(a), int(b)) for a, b in links if f"{a}-{b}" in row["alignment"]}
        counts = []
        for weights in maps:
            own = weights[1 - shift :][: len(ids[1]) - 1]
            made = {(int(line.argmax()), at) for at, line in enumerate(own)}
            counts.append(len(made) + len(sure) - len(made & sure) - len(made & known))
        wrong = wrong + np.array(counts)
        whole += len(ids[1]) - 1 + len(sure)
    np.testing.assert_allclose([head.held for head in report.heads], wrong / whole)
    assert report.finding.startswith("The weights are untrained: no set of heads links words")


def test_controls_are_read_in_the_way_that_is_best_for_them():
    report = asked(linking([(0, 0)], [(1, 1)]))
    names = [one.name for one in report.sets]
    chosen = f"chosen, {'reads' if report.recipe == 'writes' else 'writes'}"
    assert names == ["chosen", chosen, "all of the last half", "random heads", "diagonal"]
    assert report.sets[1].error == 0
    assert report.sets[2].heads == ((1, 0), (1, 1))
    assert report.sets[2].reading == "reads"
    first = report.words[:5]
    assert [word.link for word in first] == ["possible", *["sure"] * 4]
    assert "the steps that" in str(report)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "a b ||| x y ||| 0-0 1?1\n\na ||| x ||| 0-0\n"),
        ("a.tsv", "source\ttarget\talignment\na b\tx y\t0-0 1p1\na\tx\t0-0\n"),
        ("a", "a b ||| x y\t0-0 1?1\na ||| x\t0-0\n"),  # paste sentences links
        ("a.csv", "target,source,alignment\nx y,a b,0-0 1?1\nx,a,0-0\n"),
        ("a.txt", "a b ||| x y ||| 1-1 2?2\na ||| x ||| 1-1\n"),
        (
            "a.jsonl",
            '{"source": "a b", "target": "x y", "alignment": "0-0 1?1"}\n'
            '{"source": "a", "target": "x", "alignment": "0-0", "id": 2}\n',
        ),
    ],
)
def test_forms_of_files(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    read = read_gold(tmp_path / name)
    assert [pair[1:] for pair in read.pairs] == [
        (("a", "b"), ("x", "y"), {(0, 0)}, {(0, 0), (1, 1)}),
        (("a",), ("x",), {(0, 0)}, {(0, 0)}),
    ]
    assert read.notes == (("the links count words from 1: none names 0",) * ("2?2" in content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a ||| x\nb ||| y\n", "line 1 is not a sentence pair with links: expected source"),
        ("a ||| x ||| 0-0\nb ||| y ||| 0:0\n", "line 2 has '0:0' for a link"),
        ("a ||| x ||| 0-0\nb ||| y ||| 0-1\n", "line 2 links words 0 and 1, beyond"),
        ("a ||| ||| \nb ||| y ||| 0-1\n", "line 1 has no words on one side"),
    ],
)
def test_files_that_are_none(tmp_path, content, words):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(LoadError, match=words):
        read_gold(tmp_path / "a.txt")
    with pytest.raises(UsageError, match="two or more sentence pairs"):
        read_gold([])


def test_words_are_found_in_pieces():
    def tokens(*texts, special=()):
        return Tokens(tuple(range(len(texts))), texts, tuple(text in special for text in texts))

    plain = tokens(" to", ":", " chil", "dren", " ", "walk", "</s>", special=("</s>",))
    assert word_pieces(plain, "to: children walk", ("children", "walk"), 4) == [[2, 3], [4, 5]]
    assert word_pieces(tokens(" children walk"), "children walk", ("children", "walk")) is None
    assert word_pieces(tokens(" Kinder"), "children", ("children",)) is None


def test_what_the_tokens_do_not_spell_is_left_out_and_a_prefix_is_no_word():
    rows = pairs()
    strange = [{"source": "ß ſ", "target": "t0 new", "alignment": "0-0"}]
    report = asked(linking(read=[(1, 0)]), pairs=[*strange, *rows], prefix="s5 s6")
    assert (
        report.notes[-1]
        == "the tokens of 1 of 13 pairs do not spell their words: left out (line 1)"
    )
    assert report.choosing[0] == "2"
    assert report.sets[0].error == 0
    with pytest.raises(UsageError, match="the tokens of 2 of 2 pairs do not spell"):
        asked(t5(), pairs=[*strange, {**strange[0], "target": "t1 new"}])


def test_the_command(run, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linking(read=[(1, 0)]).save_pretrained("t5")
    tokenizer().save_pretrained("t5")
    write(tmp_path / "gold.txt", pairs())
    given = ("align", "--pairs", "gold.txt")
    done = run(*given, "--model", "./t5", "--save", "heads.json", "--save", "words.csv")
    assert done.code == 0, done.err
    saved = json.loads((tmp_path / "heads.json").read_text())
    assert saved["alignment_heads"] == [[1, 0]]
    assert (saved["measure"], saved["frame"]) == ("alignment error rate", None)
    chosen = saved["sets"][0]
    assert (chosen["recall"], "further" in chosen) == (1, False)
    assert (tmp_path / "words.csv").read_text().startswith("pair,position,word,gold,by_heads")
    assert "'tiny' translates no text" in refused(5, *given)


def test_pairs_that_stand_twice_are_left_out_and_links_are_needed():
    twice = read_gold([*pairs(), *pairs()])
    assert [pair[1:] for pair in twice.pairs] == [pair[1:] for pair in read_gold(pairs()).pairs]
    assert twice.notes == ("12 of 24 pairs are repeated: left out",)
    with pytest.raises(UsageError, match="no pair has a gold link"):
        read_gold([{**pair, "alignment": ""} for pair in pairs()])
    with pytest.raises(UsageError, match="expected a list of pairs"):
        read_gold(3)
