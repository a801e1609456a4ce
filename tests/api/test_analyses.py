"""The commands from Python: the numbers of the command line, on loaded models too."""

import io
import pickle
import shlex

import numpy as np
import pytest
from rich.console import Console

import attnviz
from attnviz.cli.app import COMMANDS
from attnviz.errors import UsageError

from ..conftest import without_times

TEXT = "The cat sat on the mat because the cat was tired."
OTHER = "When Mary and John went out, John gave Mary a book."
LINES = [TEXT, OTHER] * 40
RULES = """
[[check]]
loss_on = "The cat sat on the mat."
at_most = 99

[[check]]
params = "total"
at_least = 1
"""


SAME = {
    "rollout TEXT": lambda: attnviz.rollout("tiny", text=TEXT),
    "rollout TEXT --model mha --causal --seed 3": lambda: attnviz.rollout(
        attnviz.load("mha", causal=True, seed=3), TEXT
    ),
    "heads TEXT --head L1H0 --top 3 --ablate L0H1": lambda: attnviz.heads(
        "tiny", TEXT, head=(1, 0), top=3, ablate=(0, 1)
    ),
    "heads TEXT --model mha --compare-mask --score dot,additive": lambda: attnviz.heads(
        "mha", TEXT, compare_mask=True, score="dot,additive"
    ),
    "ablate TEXT --head L1H0": lambda: attnviz.ablate("tiny", texts=TEXT, head=(1, 0)),
    "params llama-2-7b --tokens 4096 --memory 24GB": lambda: attnviz.params(
        "llama-2-7b", tokens=4096, memory="24GB"
    ),
    "params --d-model 64 --heads 8 --kv-heads 2": lambda: attnviz.params(
        d_model=64, heads=8, kv_heads=2
    ),
    "patterns TEXT --layer 1 --without-first": lambda: attnviz.patterns(
        text=TEXT, layer=1, without_first=True
    ),
    "diff tiny --texts two.txt --dtype-b float64 --noise-floor 0": lambda: attnviz.diff(
        "tiny", texts=[TEXT, OTHER], dtype_b="float64", noise_floor=0
    ),
    "diff tiny --texts two.txt": lambda: attnviz.diff("tiny", texts=[TEXT, OTHER]),
    "check rules.toml": lambda: attnviz.check(None, "rules.toml"),
    "merge part-1.record part-0.record": lambda: attnviz.merge(
        attnviz.patterns(texts=LINES, shard=f"{k}/2").record for k in (0, 1)
    ),
    "prune --texts texts.txt --heads L0H1 --heads L2H3": lambda: attnviz.prune(
        texts=[TEXT, OTHER, TEXT + " " + OTHER], heads=["L0H1", "L2H3"]
    ),
    "why TEXT --position 3 --controls 3 --seed 1": lambda: attnviz.why(
        "tiny", TEXT, position=3, controls=3, seed=1
    ),
    "lens TEXT --answer Ann --position -2 --layer 1": lambda: attnviz.lens(
        "tiny", TEXT, answer="Ann", position=-2, layer=1
    ),
    "link TEXT --head L1H2 --query -1 --controls 3 --seed 1": lambda: attnviz.link(
        "tiny", TEXT, head=(1, 2), query=-1, controls=3, seed=1
    ),
    "patch 'Tom saw Ann' 'Ann saw Tom' --layer 1": lambda: attnviz.patch(
        "tiny", "Tom saw Ann", "Ann saw Tom", layer=1
    ),
    "path L0H1 'Tom saw Ann' 'Ann saw Tom'": lambda: attnviz.path(
        "tiny", "L0H1", "Tom saw Ann", "Ann saw Tom"
    ),
    "retrieve --needle 'The key is|blue rain' --lengths 128 --haystacks 1": lambda: (
        attnviz.retrieve("tiny", needle="The key is|blue rain", lengths="128", haystacks=1)
    ),
    "head L1H2 TEXT --texts two.txt --top 3": lambda: attnviz.head(
        "tiny", (1, 2), TEXT, [TEXT, OTHER], top=3
    ),
    "report --texts two.txt --cards 0": lambda: attnviz.report("tiny", [TEXT, OTHER], cards=0),
    "atlas --texts two.txt --top 2": lambda: attnviz.atlas("tiny", [TEXT, OTHER], top=2),
    "generate 'The cat sat' --tokens 3 --ablate L1H0 --seed 2": lambda: attnviz.generate(
        "tiny", "The cat sat", tokens=3, ablate="L1H0", seed=2
    ),
    "scaling --d-k 4,8 --samples 3 --seed 2": lambda: attnviz.scaling(d_k="4,8", samples=3, seed=2),
    "scaling TEXT --from-model --head L1H0": lambda: attnviz.scaling("tiny", TEXT, head=(1, 0)),
    "verify --d-model 8 --heads 2 --steps --no-keras": lambda: attnviz.verify(
        d_model=8, heads=2, steps=True, keras=False
    ),
    "verify TEXT --model tiny": lambda: attnviz.verify("tiny", TEXT),
}
"""Command lines, and the calls from Python that give the same numbers."""


def test_every_command_is_compared():
    """What takes a minute, and what makes no report, is left out."""
    compared = {line.split()[0] for line in SAME}
    assert compared == set(COMMANDS) - {"align", "docs", "explore", "sweep", "train", "use"}


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, marks=pytest.mark.long if "float64" in line else ()) for line in SAME],
)
def test_the_numbers_are_those_of_the_command(run, tmp_path, line):
    arguments = [TEXT if word == "TEXT" else word for word in shlex.split(line)]
    (tmp_path / "texts.txt").write_text("\n".join([TEXT, OTHER, TEXT + " " + OTHER]))
    (tmp_path / "two.txt").write_text("\n".join([TEXT, OTHER]))
    (tmp_path / "rules.toml").write_text(RULES)
    for shard in ("0/2", "1/2") if arguments[0] == "merge" else ():
        attnviz.patterns(texts=LINES, shard=shard, resume=tmp_path / f"part-{shard[0]}.record")
    document, mine = run(*arguments, "--json").document, SAME[line]().to_dict()
    for found_there in (document, mine):
        for part in (found_there, *found_there.get("cards", ())):
            part.pop("source", None)
    assert without_times(mine) == without_times(document)


def test_a_loaded_model_is_taken_by_every_kind_of_function(model, tokenizer):
    texts = ["the cat sat on the mat", "the dog sat on the cat"]
    ablated = attnviz.ablate(model, texts, tokenizer=tokenizer)
    assert len(ablated.to_dicts()) == 6
    assert ablated.to_dict()["model"]["weights"] == "loaded"
    rolled = attnviz.rollout(model, "the cat sat", tokenizer=tokenizer)
    assert rolled.to_dict()["tokens"] == ["<s>", "the", "cat", "sat", "</s>"]
    scored = attnviz.patterns(model, "the cat sat on the mat the cat sat", tokenizer=tokenizer)
    assert {row["layer"] for row in scored.to_dicts()} == {0, 1}
    counted = attnviz.params(model).to_dict()
    assert counted["model"]["dtype"] == "float32"
    assert counted["total"] == sum(weight.numel() for weight in model.parameters())
    with pytest.raises(UsageError, match="needs its tokenizer to read a text: give tokenizer="):
        attnviz.rollout(model, text="the cat")


def test_what_a_result_shows_and_saves(run, tmp_path):
    found = attnviz.rollout("tiny", text=TEXT)
    assert isinstance(found, attnviz.Report)
    assert repr(found) == f"<attnviz.rollout: {found.finding}>"
    assert "the last word" in found.finding
    assert found.document().finding == found.finding
    assert found._repr_html_().startswith("<iframe")
    assert "height: 500px" in found.framed(height=500)._repr_html_()
    with pytest.raises(UsageError, match="100 pixels; not height=50"):
        found.framed(height=50)
    assert "rollout through 6 layers" in str(found)
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(found)
    assert max(map(len, console.export_text().splitlines())) <= 60
    first = found.to_dicts()[0]
    assert list(first) == ["query", "key", "query_token", "key_token", "rollout", "last_layer"]
    assert len(found.to_dicts()) == 14 * 15 // 2
    endings = ("json", "csv", "md", "txt", "html", "svg")
    run("rollout", TEXT, "--quiet", *(x for end in endings for x in ("--save", f"b.{end}")))
    for ending in endings:
        found.save(tmp_path / f"a.{ending}")
        written = (tmp_path / f"a.{ending}").read_text(encoding="utf-8")
        assert written == (tmp_path / f"b.{ending}").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"end it in one of \.json"):
        found.save(tmp_path / "a.xyz")


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: attnviz.ablate(moed="zero"), TypeError, "argument 'moed': did you mean mode?"),
        (lambda: attnviz.ablate(json=True), TypeError, "unexpected keyword argument 'json'"),
        (lambda: attnviz.ablate(mode="none"), UsageError, "mode='none' is not one of 'zero'"),
        (lambda: attnviz.ablate(top=0), UsageError, "top=0 is out of range: expected 1 or more"),
        (lambda: attnviz.ablate(top="3"), UsageError, "top takes int, got '3'"),
        (lambda: attnviz.ablate(texts=[]), UsageError, "expected at least one text"),
        (lambda: attnviz.ablate(texts=["a b", 3]), UsageError, "expected texts"),
        (lambda: attnviz.prune(fraction=3), UsageError, "--fraction 3 is not a share"),
        (lambda: attnviz.rollout("tiny", text="-"), UsageError, "got '-'"),
        (lambda: attnviz.rollout("tiny", TEXT, tokenizer=TEXT), UsageError, "got a text"),
        (
            lambda: attnviz.rollout("tiny", TEXT, tokenizer=object()),
            UsageError,
            "for a loaded model",
        ),
        (lambda: attnviz.rollout(object(), text=TEXT), UsageError, "expected the name of a model"),
        (lambda: attnviz.rollout("tiny", text=b"a b"), UsageError, "expected one text"),
        (lambda: attnviz.patterns(3), UsageError, "transformers model, got an int: hand"),
        (lambda: attnviz.params(), UsageError, "expected a shape or a model"),
    ],
)
def test_bad_input(call, error, line):
    with pytest.raises(error) as raised:
        call()
    assert line in str(raised.value)


def test_functions_take_numbers_of_numpy_and_go_to_other_processes():
    found = attnviz.prune("tiny", texts=[TEXT, OTHER], fraction=np.float32(0.1), seed=np.int64(1))
    assert found.to_dict()["seed"] == 1
    assert pickle.loads(pickle.dumps(attnviz.prune)) is attnviz.prune


def test_a_misspelt_keyword_beside_a_loaded_model_and_a_text_is_named(model, tokenizer):
    """It is no argument of the model, which reads no texts."""
    with pytest.raises(TypeError, match=r"'heads': did you mean head\?"):
        attnviz.ablate(model, "a cat", tokenizer=tokenizer, heads="L0H1")
