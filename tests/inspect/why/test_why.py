"""``attnviz why``: the numbers, the base rate, and what is said of them."""

import csv
import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from attnviz.engine.attribution.on_numpy import NumpyAttributor
from attnviz.inspect.why.report import control_p
from attnviz.inspect.why.request import WhyRequest
from attnviz.inspect.why.why import why
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import random_twin
from attnviz.prompts.study import Prompt

from ...small_models import WORDS, bert_fields, random_model, word_tokenizer

PROMPT = "When Nancy met John, nobody knew why Nancy met"
INDUCTION = {(1, 0), (1, 2)}


def heads_of(found):
    return {(one["layer"], one["head"]): one for one in found["parts"] if one["kind"] == "head"}


def reports(model, *texts, **question):
    request = WhyRequest(**question)
    return why(model, [Prompt(text) for text in texts], request)


def names():
    """Prompts in which a name comes again after what stood before it the first time."""
    for first, second in permutations(("Nancy", "Jim", "Will", "Bill", "Jack"), 2):
        yield f"When {first} met {second}, nobody knew why {first} met"


def test_the_parts_are_the_logit(run):
    found = run("why", PROMPT, "--json").document
    model = Bundled()
    logits = model.stack.logits(model.encode(PROMPT).ids)[-1].astype(float)
    odds = np.exp(logits - logits.max())
    order = np.argsort(-logits)[:5]
    assert found["schema"] == "attnviz.why/1"
    assert [one["id"] for one in found["top"]] == order.tolist()
    likely = [one["probability"] for one in found["top"]]
    assert likely == pytest.approx((odds / odds.sum())[order], abs=1e-6)
    assert found["answer"] == {"id": int(order[0]), "token": " John"}
    assert (found["foil"], found["position"]) == (None, len(found["tokens"]) - 1)
    assert found["logit"] == pytest.approx(logits.max(), rel=1e-5)
    parts = [one["contribution"] for one in found["parts"]]
    assert sum(parts) == pytest.approx(found["sum"])
    assert abs(found["sum"] - found["logit"]) <= found["tolerance"] <= 1e-4 * abs(logits).max()
    for one in heads_of(found).values():
        assert sum(one["by_token"]) == pytest.approx(one["contribution"], abs=1e-6)
        assert len(one["by_token"]) == len(found["tokens"])


@pytest.mark.parametrize("position", ["John", "4", "-7"])
def test_a_position_is_the_end_of_its_beginning(run, position):
    whole = run("why", PROMPT, "--position", position, "--json").document
    begun = run("why", "When Nancy met John", "--json").document
    assert (whole["position"], whole["answer"]) == (4, begun["answer"])
    for mine, theirs in zip(whole["parts"], begun["parts"], strict=True):
        assert mine["contribution"] == pytest.approx(theirs["contribution"], abs=1e-5)


def test_induction_heads_stand_out_of_a_repeated_name(run):
    found = run("why", PROMPT, "--json").document
    heads = heads_of(found)
    order = sorted(heads, key=lambda head: -heads[head]["contribution"])
    assert set(order[:2]) == INDUCTION
    for head in INDUCTION:
        assert heads[head]["stands_out"]
        assert heads[head]["label"]["name"] == "induction"
        assert abs(heads[head]["base_rate"]) < 0.1 * heads[head]["contribution"]
    assert found["controls"] == 20
    shown = run("why", PROMPT).out
    assert (
        "Next: “John” (p = .97). L1H2 (induction) adds the most of any head: +4.44 to the "
        "logit of 13.61, read from “John” (4); +0.01 when “John” is replaced (control)."
    ) in " ".join(shown.split())


def test_over_many_prompts_too():
    few = reports(Bundled(), *list(names())[:4])
    assert not few.tested
    assert "too few prompts for intervals" in few.finding
    report = reports(Bundled(), *names())
    assert report.tested
    matter, _ = replace(report, top=3).ranking
    assert {effect.head[1:] for effect in matter} >= INDUCTION
    for effect in report.effects:
        low, high = effect.interval or (np.nan, np.nan)
        assert low <= effect.value <= high
        if effect.head[1:] in INDUCTION:
            assert effect.clear
            assert low > 3 * abs(effect.base or 0.0)
    assert report.finding.startswith("20 prompts: L1H")
    assert "stand out from theirs too" in report.finding


def test_on_random_weights_nothing_stands_out():
    twins = [random_twin(Bundled(), seed) for seed in range(3)]
    for twin in twins:
        report = reports(twin, *names(), answer="John")
        assert report.tallies
        assert not any(effect.clear for effect in report.effects)
        assert report.finding.startswith("Random weights: no head stands out")


def test_p_counts_the_controls_that_reach_as_far():
    """Controls at 0, 0, 0, 4 of one head: their mean is 1, each is 4/3 and the last 4 away."""
    base = np.array([[0.0], [0.0], [0.0], [4.0]])
    for value, p in ((1.0, 5 / 5), (2.5, 2 / 5), (4.9, 2 / 5), (5.1, 1 / 5), (-3.1, 1 / 5)):
        assert control_p(np.array([value]), base) == pytest.approx([p])


def test_an_answer_that_is_not_there_has_no_base_rate(run):
    found = run("why", PROMPT, "--answer", "table", "--json").document
    assert found["controls"] == 0
    assert all(head["base_rate"] is None for head in heads_of(found).values())
    shown = " ".join(run("why", "The cat sat on the mat. The cat sat on the").out.split())
    assert "; no control: “" in shown
    assert "” is not in the prompt." in shown


def test_what_does_not_tally_is_not_ranked(run, monkeypatch):
    own = NumpyAttributor.attribute

    def doubled(*given, **asked):
        found = own(*given, **asked)
        return replace(found, logit=found.logit + 1)

    monkeypatch.setattr(NumpyAttributor, "attribute", doubled)
    result = run("why", PROMPT)
    assert result.code == 5
    assert "they do not tally, so no head is ranked" in " ".join(result.out.split())
    assert "L1H2" not in result.out
    assert result.err.count("\n") == 1
    assert json.loads(run("why", PROMPT, "--json").out)["parts"] == []


def test_prompts_of_a_file(run, tmp_path):
    lines = [{"prompt": prompt, "answer": "John"} for prompt in (PROMPT, PROMPT)]
    lines += [{"prompt": "Then Mary saw Tom. Then Mary saw", "answer": "Tom", "foil": "Mary"}]
    rows = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "prompts.jsonl").write_text(rows, encoding="utf-8")
    found = run("why", "--texts", "prompts.jsonl", "--json").document
    first, second = found["prompts"]
    assert (first["answer"]["token"], second["foil"]["token"]) == (" John", " Mary")
    assert found["notes"] == ["1 of 3 prompts is a copy of another and left out: no new evidence"]
    assert found["logit"] == pytest.approx((first["logit"] + second["logit"]) / 2)
    means = [
        (mine["contribution"] + theirs["contribution"]) / 2
        for mine, theirs in zip(first["heads"], second["heads"], strict=True)
    ]
    assert [head["contribution"] for head in heads_of(found).values()] == pytest.approx(means)
    (tmp_path / "prompts.csv").write_text(f'prompt,answer\n"{PROMPT}",John\n', encoding="utf-8")
    assert run("why", "--texts", "prompts.csv", "--json").document["answer"]["token"] == " John"


def test_the_neurons_of_a_block_are_its_part(run, redrawn):
    document = run("why", PROMPT, "--ffn", "L1", "--controls", "0", "--json").document
    block = document["neurons"]
    parts = {(part["kind"], part["layer"]): part["contribution"] for part in document["parts"]}
    assert block["contribution"] == pytest.approx(parts["mlp", 1])
    assert block["sum"] + block["bias"] == pytest.approx(parts["mlp", 1], abs=1e-4)
    assert (block["activation"], block["gated"], block["count"]) == ("SiLU", True, 688)
    sizes = [abs(neuron["contribution"]) for neuron in block["top"]]
    assert sizes == sorted(sizes, reverse=True)
    for neuron in block["top"]:
        assert neuron["value"] == pytest.approx(neuron["active"] * neuron["up"], abs=1e-5)
        assert abs(neuron["fires"][0]["value"]) >= abs(neuron["value"]) - 1e-6
    assert 0 < block["off"]["here"] < 1
    first = f"N{block['top'][0]['neuron']} "
    screen = redrawn("why", PROMPT, "--ffn", "2", "--index-base", "1", "--controls", "0")
    assert f"The L2 MLP {block['contribution']:+.2f}" in screen.out
    (row,) = [line for line in screen.lines if line.startswith(first)]
    assert f"{block['top'][0]['contribution']:+.3f}"[:5] in row


def test_files(run, tmp_path):
    endings = ["json", "csv", "md", "txt", "html", "svg", "npz"]
    files = [word for ending in endings for word in ("--save", f"why.{ending}")]
    assert run("why", PROMPT, "--head", "L1H2", "--explain", *files).code == 0
    found = json.loads((tmp_path / "why.json").read_text(encoding="utf-8"))
    rows = list(csv.DictReader((tmp_path / "why.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(found["parts"])
    assert sum(float(row["contribution"]) for row in rows) == pytest.approx(found["sum"])
    arrays = np.load(tmp_path / "why.npz")
    assert arrays["by_token_L1H2"] == pytest.approx(heads_of(found)[1, 2]["by_token"])
    written = arrays["map_L1H2"]
    assert written[-1] == pytest.approx(arrays["by_token_L1H2"], abs=1e-6)
    assert not written[np.triu_indices(len(written), 1)].any()
    for ending in ("md", "txt", "html", "svg"):
        text = (tmp_path / f"why.{ending}").read_text(encoding="utf-8")
        assert "L1H2" in text
        assert "direct effect" in text.lower()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    import torch

    def made(architecture):
        words = (*WORDS, "<mask>")
        torch.manual_seed(5)
        fields = bert_fields(12, 13, 19) | {"vocab_size": len(words), "initializer_range": 0.3}
        place = tmp_path_factory.mktemp(architecture)
        random_model((architecture, "BertConfig", fields)).save_pretrained(place)
        tokenizer = word_tokenizer(words)
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
        tokenizer.save_pretrained(place)
        return str(place)

    return made


def test_a_masked_model_is_asked_at_its_mask(run, encoder):
    name = encoder("BertForMaskedLM")
    found = run("why", "the <mask> sat on the cat", "--model", name, "--json").document
    assert found["position"] == 2
    assert found["model"]["backend"] == "torch"
    assert abs(found["sum"] - found["logit"]) <= found["tolerance"]
    unmasked = run("why", "the cat sat", "--model", name)
    assert (unmasked.code, unmasked.out) == (2, "")
    assert "mask token" in unmasked.err
    forced = run("why", "the <mask>", "--model", name, "--backend", "numpy")
    assert (forced.code, forced.err.count("\n")) == (5, 1)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("command", ["why", "lens"])
def test_an_encoder_without_predictions(run, encoder, monkeypatch, command, backend):
    name = encoder("BertModel")
    monkeypatch.setattr("attnviz.models.huggingface.open_weights", None)  # no weights are read
    result = run(command, "the cat", "--model", name, "--backend", backend)
    assert result.code == 2
    assert "predicts no tokens" in result.err
    assert result.err.count("\n") == 1
