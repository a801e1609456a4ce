"""``why --inputs``: words replaced and hidden as plain runs of the model say, and integrated
gradients that sum to what they share out, or are said not to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from attnviz.engine.attribution.on_torch import integrated_gradients
from attnviz.engine.backend import backend_of
from attnviz.inspect.why.report import InputEffects
from attnviz.inspect.why.request import WhyRequest
from attnviz.inspect.why.why import input_effects, why
from attnviz.models.bundled import Bundled
from attnviz.models.resolve import load
from attnviz.models.work import LoadOptions, Work
from attnviz.prompts.study import Prompt
from attnviz.records import Input

PROMPT = "When Nancy met John, nobody knew why Nancy met"
OTHERS = (300, 411, 2512, 999, 77)
NOTHING = "without which ln p clearly falls."
OTHER = "With another word for “met” (3), ln p rises by 8.0."


def log_p(model, ids, answer):
    logits = model.stack.logits(ids)[-1].astype(float)
    return float(logits[answer] - np.logaddexp.reduce(logits))


def test_words_are_replaced_one_by_one():
    model = Bundled()
    given = Input(model.encode(PROMPT))
    found = backend_of(model).open_attributor(given).attribute(given)
    effects = input_effects(model, given, found, OTHERS)
    own = log_p(model, list(given.ids), found.answer)
    assert effects.own == pytest.approx(own, abs=1e-4)
    assert np.isnan(effects.replaced[0])  # the special token in front
    for at in range(1, len(given.ids)):
        lost = []
        for other in OTHERS:
            ids = list(given.ids)
            ids[at] = other
            lost.append(own - log_p(model, ids, found.answer))
        assert effects.replaced[at] == pytest.approx(np.mean(lost), abs=1e-4)
        error = np.std(lost, ddof=1) / len(lost) ** 0.5
        assert effects.errors[at] == pytest.approx(error, abs=1e-4)
    assert effects.ordered[0] == 4


@pytest.mark.parametrize("foil", [None, 300])
def test_logits_that_a_gpu_keeps_say_the_same(foil, monkeypatch):
    model = Bundled()
    given = Input(model.encode(PROMPT))
    attributor = backend_of(model).open_attributor(given)
    asked = attributor.attribute(given, foil=foil)
    expected = input_effects(model, given, asked, OTHERS)
    plain = type(attributor).logits_of_texts
    monkeypatch.setattr(
        type(attributor), "logits_of_texts", lambda *each: torch.from_numpy(plain(*each))
    )
    found = input_effects(model, given, asked, OTHERS)
    for name in ("own", "replaced", "errors", "hidden"):
        expected_values = pytest.approx(getattr(expected, name), abs=1e-9, nan_ok=True)
        assert getattr(found, name) == expected_values


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_hidden_token_is_seen_by_itself_alone(checkpoint, backend):
    place = str(checkpoint("gpt2"))
    model = load(place, LoadOptions(backend=backend, work=Work(9)))
    given = Input(model.encode("the cat sat on the mat"))
    found = backend_of(model).open_attributor(given).attribute(given, foil=4)
    effects = input_effects(model, given, found, (5, 6))
    plain = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager").eval()
    ids = torch.tensor([given.ids])
    count = ids.shape[1]

    def difference(seen):
        bias = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            logits = plain(ids, attention_mask=bias).logits[0, -1].double()
        return float(logits[found.answer] - logits[4])

    causal = torch.ones(count, count).tril().bool()
    own = difference(causal)
    assert effects.own == pytest.approx(own, abs=1e-4)
    for at in range(count):
        seen = causal.clone()
        seen[torch.arange(count) != at, at] = False
        assert effects.hidden[at] == pytest.approx(own - difference(seen), abs=1e-4)
    assert effects.hidden[-1] == pytest.approx(0, abs=1e-5)


def test_integrated_gradients_are_an_integral(checkpoint):
    place = str(checkpoint("gpt2"))
    model = load(place, LoadOptions())
    given = Input(model.encode("the cat sat on"))
    patchable = backend_of(model).open_patchable("self", given)
    last = len(given.ids) - 1
    found = integrated_gradients(
        patchable, given, last, lambda logits: logits[:, 0].log_softmax(-1)[:, 5]
    )
    plain = AutoModelForCausalLM.from_pretrained(place).double().eval()
    table = plain.get_input_embeddings().weight.detach()
    base, own = table.mean(0), table[list(given.ids)]
    total, steps = torch.zeros_like(own), 400
    for step in range(steps):  # midpoints
        point = (base + (step + 0.5) / steps * (own - base)).requires_grad_()
        value = plain(inputs_embeds=point[None]).logits[0, -1].log_softmax(-1)[5]
        total += torch.autograd.grad(value, point)[0] / steps
    shares = ((own - base) * total).sum(-1)
    assert found.converged
    assert found.shares == pytest.approx(shares.numpy(), abs=2e-3)
    assert found.shares.sum() == pytest.approx(found.change, rel=0.01)


def test_the_finding_names_words_and_sizes(redrawn):
    result = redrawn("why", PROMPT, "--inputs", "--controls", "0", "--no-full")
    said = " ".join(result.lines[1:3])
    assert said.startswith("“John” .97: with another word for “John” (4), “met” (3) or “met” (10)")
    assert "ln p falls by 11.5, 7.7 and 7.1; no other by more than 1.2." in said
    found = redrawn("why", PROMPT, "--inputs", "--controls", "0", "--json").document
    inputs = found["inputs"]
    assert (inputs["quantity"], inputs["draws"]) == ("log_probability", 20)
    assert [one["index"] for one in inputs["tokens"]] == list(range(11))
    assert inputs["tokens"][0]["replaced"] is None
    # Computed outside of attnviz with other draws: 12.01, hidden 8.97.
    assert inputs["tokens"][4]["replaced"] == pytest.approx(12.01, abs=2)
    assert inputs["tokens"][4]["hidden"] == pytest.approx(8.97, abs=0.005)
    assert len(found["parts"]) > 24  # what heads write is there as without it


def test_shares_that_do_not_sum_are_not_named():
    report = why(Bundled(), [Prompt(PROMPT)], WhyRequest(controls=0))
    none = np.full(11, np.nan)
    far = InputEffects("log_probability", 3.0, 0, np.ones(11), none, none, 1024, 0.2, False)
    said = replace(report, inputs=far).finding
    assert said.startswith("Integrated gradients did not converge: after 1024 steps")
    assert "20% off" in said


@pytest.mark.parametrize(
    ("effects", "errors", "steps", "said"),
    [
        ({4: 2.0, 3: 1.5}, {}, 0, "for “John” (4) or “met” (3), ln p falls by 2.0 and 1.5."),
        ({4: 1.5, 3: -8.0}, {}, 0, f"for “John” (4), ln p falls by 1.5. {OTHER}"),
        ({3: -8.0}, {}, 0, f"{NOTHING} {OTHER}"),
        ({4: 8.0, 3: -1.5}, {}, 0, "for “John” (4), ln p falls by 8.0."),
        ({4: 0.2}, {4: 0.1}, 0, NOTHING),
        ({4: 8.0, 10: 5e-6}, {}, 0, "(4), ln p falls by 8.0; no other by more than 0.01."),
        ({4: -5e-6}, {}, 0, NOTHING),
        ({3: -2.0, 9: 0.0, 10: 0.0}, {}, 32, f"{NOTHING} “met” (3) gives -2.0."),
        ({4: 0.32, 3: 0.1}, {4: 0.3}, 0, "no other by more than 0.32, which its error explains."),
    ],
    ids=[
        *("falls", "rises_more", "alone", "less", "noise"),
        *("rounding", "one_rounding", "share", "error"),
    ],
)
def test_a_word_is_named_if_its_effect_is_clear(effects, errors, steps, said):
    """A word that harms hides none that helps; few tokens were tried."""
    report = why(Bundled(), [Prompt(PROMPT)], WhyRequest(controls=0))
    replaced, spread = np.full(11, np.nan), np.full(11, np.nan)
    for at, effect in effects.items():
        replaced[at], spread[at] = effect, errors.get(at, 0.0)
    gap = 0.001 if steps else None
    found = InputEffects("log_probability", -0.1, 20, replaced, spread, spread, steps, gap)
    assert replace(report, inputs=found).finding.endswith(said)
