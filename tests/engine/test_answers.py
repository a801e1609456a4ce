"""Question answering: the answer, what writes its start and its end, and what removing heads does.

The oracle is transformers' own model, with plain hooks.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForQuestionAnswering

from attnviz.engine.attribution.on_torch import TorchAttributor, integrated_gradients
from attnviz.engine.attribution.parts import AskedLogit
from attnviz.engine.effects import ScanOptions, Variant
from attnviz.engine.patchable import patchable_transformers, with_labels
from attnviz.engine.patching import Pair, Patch, PatchOptions, Site
from attnviz.engine.scan.on_torch import torch_patching, torch_scan
from attnviz.errors import UnsupportedError, UsageError
from attnviz.records import PAIR, REST, Input, Tokens

from ..small_models import bert_fields

WORDS = 41
IDS = (3, 5, 7, 11, 13, 17, 5, 9, 21, 4)
CONTEXT = range(4, 9)
BERT = bert_fields(21, 37, 31)
MODELS = {
    "bert": ("bert", BERT),
    "roberta": ("roberta", BERT),
    "distilbert": ("distilbert", {"dim": 21, "n_layers": 2, "n_heads": 3}),
}
OTHER = (3, 8, 2, 11, 13, 30, 5, 33, 21, 4)


def given(*ids):
    """Return a question of two tokens and a context of five, with special tokens around."""
    ids = ids or IDS
    special = tuple(at in (0, 3, 9) for at in range(len(ids)))
    names = [PAIR[1] if at in CONTEXT else PAIR[0] for at in range(len(ids))]
    names = [REST[1] if one else name for one, name in zip(special, names, strict=True)]
    return Input(replace(Tokens.bare(ids), special=special, regions=tuple(names)))


def model_of(name):
    kind, sizes = MODELS[name]
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, vocab_size=WORDS, pad_token_id=0, **sizes)
    model = AutoModelForQuestionAnswering.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval().requires_grad_(False)


def opened(model):
    return with_labels(model, patchable_transformers(model, "self", given()), given())


def own_logs(model, ids=IDS):
    """Return ln p (2, token of the context) of the start and of the end."""
    found = model(torch.tensor([ids]))
    both = torch.stack([found.start_logits[0], found.end_logits[0]]).double()
    return both[:, list(CONTEXT)].log_softmax(-1)


def best(logs):
    """Return the places in the context of the likeliest answer, of all that there are."""
    places = [(a, b) for a in range(len(CONTEXT)) for b in range(a, len(CONTEXT))]
    return max(places, key=lambda at: float(logs[0, at[0]] + logs[1, at[1]]))


def without(model, layer, head):
    """Return ``own_logs`` with the head's part of the output projection's input set to zero."""
    trunk = model.base_model
    if hasattr(trunk, "transformer"):
        output = trunk.transformer.layer[layer].attention.out_lin
    else:
        output = trunk.encoder.layer[layer].attention.output.dense

    def remove(module, args):
        parts = args[0].unflatten(-1, (3, -1)).clone()
        parts[..., head, :] = 0
        return (parts.flatten(-2),)

    hook = output.register_forward_pre_hook(remove)
    try:
        return own_logs(model)
    finally:
        hook.remove()


@pytest.mark.parametrize("name", MODELS)
def test_the_answer_and_what_writes_its_ends(name):
    model = model_of(name)
    attributor = TorchAttributor(opened(model), given())
    assert attributor.labels == ("start", "end")
    logs = own_logs(model)
    ends = best(logs)
    whole = model(torch.tensor([IDS]))
    for label, logits in enumerate((whole.start_logits[0], whole.end_logits[0])):
        found = attributor.attribute(given(), answer=label)
        assert found.span[:2] == tuple(CONTEXT[at] for at in ends)
        chances = [float(logs[one, at].exp()) for one, at in enumerate(ends)]
        assert found.span[2:] == pytest.approx(chances, abs=1e-6)
        assert found.top == ((label, pytest.approx(chances[label], abs=1e-6)),)
        assert found.position == found.span[label]
        assert found.logit == pytest.approx(float(logits[found.position]), abs=1e-5)
        assert found.tallies
        for key, row in found.rows.items():
            assert row.sum() == pytest.approx(found.heads[key], abs=1e-5)
    assert attributor.attribute(given()).answer == 0
    asked = attributor.attribute(given(), position=6)
    assert asked.logit == pytest.approx(float(whole.start_logits[0, 6]), abs=1e-5)
    assert asked.top[0][1] == pytest.approx(float(logs[0, 2].exp()), abs=1e-6)


def test_a_single_text_is_its_own_context():
    model = model_of("bert")
    text = Input.of_ids(IDS)
    found = TorchAttributor(opened(model), text).attribute(text)
    whole = model(torch.tensor([IDS])).start_logits[0].double().softmax(-1)
    assert found.top[0][1] == pytest.approx(float(whole[found.position]), abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_other_words_change_the_chance_among_the_context(name):
    model = model_of(name)
    attributor = TorchAttributor(opened(model), given())
    other = (3, 5, 8, *IDS[3:])
    found = attributor.logits_of_texts([given(), given(*other)], 5)
    for row, ids in zip(found, (IDS, other), strict=True):
        assert row == pytest.approx(own_logs(model, ids)[:, 1].numpy(), abs=1e-5)
    assert np.isinf(attributor.logits_of_texts([given()], 1)).all()


@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize("name", MODELS)
def test_the_lens_reads_the_end_after_each_block(name, end):
    model = model_of(name)
    attributor = TorchAttributor(opened(model), given())
    found = attributor.lens(given(), AskedLogit(None, end, None, ()))
    place = CONTEXT[best(own_logs(model))[end]]
    assert (found.position, found.answer, found.end) == (place, place, end)
    states = model(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    logits = torch.stack([model.qa_outputs(state)[0, list(CONTEXT), end] for state in states])
    logs = logits.double().log_softmax(-1)
    assert len(found.blocks) == len(logs) == 3
    for reading, log in zip(found.blocks, logs, strict=True):
        assert reading.probability == pytest.approx(float(log[place - 4].exp()), abs=1e-5)
        assert reading.rank == 1 + int((log > log[place - 4]).sum())
        kl = float((logs[-1].exp() * (logs[-1] - log)).sum())
        assert reading.kl == pytest.approx(kl, abs=1e-5)
        order = log.argsort(descending=True).tolist()
        assert [token for token, _ in reading.top] == [CONTEXT[at] for at in order]
    assert found.tallies
    asked = attributor.lens(given(), AskedLogit(6, end, None, ()))
    assert asked.blocks[-1].probability == pytest.approx(float(logs[-1][2].exp()), abs=1e-5)


def test_what_a_head_of_the_last_block_adds_to_each_start():
    model = model_of("bert")
    layer = model.bert.encoder.layer[1]
    seen = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, name=name: seen.update({name: args[0][0]})
        )
        for name, module in (
            ("mixed", layer.attention.output.dense),
            ("first", layer.attention.output.LayerNorm),
            ("last", layer.output.LayerNorm),
        )
    ]
    attributor = TorchAttributor(opened(model), given())
    model(torch.tensor([IDS]))
    for hook in hooks:
        hook.remove()
    found = attributor.lens(given(), AskedLogit(None, 0, None, ()))
    dim = seen["mixed"].shape[-1] // 3
    for head in range(3):
        part = slice(head * dim, (head + 1) * dim)
        written = seen["mixed"][:, part] @ layer.attention.output.dense.weight[:, part].T
        for norm, name in (
            (layer.attention.output.LayerNorm, "first"),
            (layer.output.LayerNorm, "last"),
        ):
            scale = (seen[name].var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
            written = norm.weight * (written - written.mean(-1, keepdim=True)) / scale
        added = (written @ model.qa_outputs.weight[0])[list(CONTEXT)]
        added = added - added.mean()
        (reading,) = [each for each in found.heads if each.head == ("self", 1, head)]
        assert reading.answer == pytest.approx(float(added[found.answer - 4]), abs=1e-5)
        changes = dict((*reading.raises, *reading.lowers))
        expected = {CONTEXT[at]: float(one) for at, one in enumerate(added)}
        assert changes == pytest.approx(expected, abs=1e-5)


def starts(model, ids, edit=None):
    """The start logits of the context; ``edit`` sees the heads' outputs of the second block."""
    dense = model.bert.encoder.layer[1].attention.output.dense
    hook = dense.register_forward_pre_hook(lambda module, args: edit and (edit(args[0]),))
    try:
        return model(torch.tensor([ids])).start_logits[0, list(CONTEXT)].double()
    finally:
        hook.remove()


def test_a_patch_moves_the_start_of_the_answer():
    model = model_of("bert")
    seen = []
    clean = starts(model, IDS, lambda outputs: seen.append(outputs.clone()) or outputs)
    corrupt = starts(model, OTHER)
    answer, foil = int(clean.argmax()), int(corrupt.argmin())
    patching = torch_patching(opened(model), [Pair(given(), given(*OTHER))], PatchOptions())
    predicted = patching.predictions(0)
    assert [one.top for one in predicted] == [CONTEXT[answer], CONTEXT[int(corrupt.argmax())]]
    assert [one.position for one in predicted] == [one.top for one in predicted]
    assert any("answer's start" in note for note in patching.notes)
    patches = [Patch((Site("output", 1, head),)) for head in range(3)]
    scores = list(patching.patch(0, patches, range(3), CONTEXT[answer], CONTEXT[foil]))
    found = {at: (piece, row) for piece in scores for row, at in enumerate(piece.patches)}
    plain = scores[0]
    assert plain.clean["logit_diff"] == pytest.approx(float(clean[answer] - clean[foil]), abs=1e-5)
    before = float(corrupt.log_softmax(-1)[answer])
    assert plain.corrupt["log_prob"] == pytest.approx(before, abs=1e-5)
    for head in range(3):

        def put(outputs, head=head):
            dim = outputs.shape[-1] // 3
            part = slice(head * dim, (head + 1) * dim)
            changed = outputs.clone()
            changed[..., part] = seen[0][..., part]
            return changed

        patched = starts(model, OTHER, put)
        logs, whole = patched.log_softmax(-1), clean.log_softmax(-1)
        piece, row = found[head]
        moved = {name: float(values[row]) for name, values in piece.metrics.items()}
        assert moved == pytest.approx(
            {
                "logit_diff": float(patched[answer] - patched[foil]),
                "log_prob": float(logs[answer]),
                "kl": float((whole.exp() * (whole - logs)).sum()),
            },
            abs=1e-5,
        )


def test_integrated_gradients_of_all_tokens():
    model = model_of("bert").double()
    places = list(CONTEXT)
    found = integrated_gradients(
        opened(model), given(), None, lambda logits: logits[:, places, 1].log_softmax(-1)[:, 3]
    )
    table = model.get_input_embeddings().weight
    mean = table.mean(0).expand(len(IDS), -1)[None]
    plain = model(inputs_embeds=mean).end_logits[0, places].log_softmax(-1)[3]
    assert found.converged
    assert found.change == pytest.approx(float(own_logs(model)[1, 3] - plain), abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_removing_a_head_changes_the_loss_of_the_answer(name):
    model = model_of(name)
    heads = [(0, 1), (1, 2)]
    variants = [Variant((head,)) for head in heads]
    logs = own_logs(model)
    ends = best(logs)
    for label, some in ((None, [0, 1]), (0, [0]), (1, [1])):
        scan = torch_scan(opened(model), [given()], ScanOptions(labels=True, label=label), [])
        found = next(iter(scan.scan(0, variants, [0, 1])))
        before = [-float(logs[at, ends[at]]) for at in some]
        assert found.baseline["loss"] == pytest.approx(np.mean(before), abs=1e-5)
        for variant, head in enumerate(heads):
            changed = without(model, *head)
            place = found.variants.index(variant)
            after = [-float(changed[at, ends[at]]) for at in some]
            kl = (logs.exp() * (logs - changed)).sum(-1)[some].mean()
            flips = (logs.argmax(-1) != changed.argmax(-1))[some].double().mean()
            metrics = {name: values[place] for name, values in found.metrics.items()}
            assert metrics["loss_delta"] == pytest.approx(
                np.mean(after) - np.mean(before), abs=1e-5
            )
            assert metrics["kl"] == pytest.approx(float(kl), abs=1e-5)
            assert metrics["flip_rate"] == float(flips)


def test_what_is_refused():
    model = opened(model_of("bert"))
    attributor = TorchAttributor(model, given())
    with pytest.raises(UsageError, match="not against each other"):
        attributor.attribute(given(), answer=0, foil=1)
    with pytest.raises(UsageError, match="position 1 is not a token of the context"):
        attributor.attribute(given(), position=1)
    pair = [Pair(given(), given(3, 5, 8, *IDS[3:]))]
    with pytest.raises(UnsupportedError, match="among tokens"):
        torch_patching(model, pair, PatchOptions(method="gradient"))
    with pytest.raises(UsageError, match="not against each other"):
        torch_scan(model, [given()], ScanOptions(labels=True, pair=(0, 1)), [])
    empty = Input(Tokens((1, 2), ("", ""), (True, True)))
    with pytest.raises(UsageError, match="no token that could be an answer"):
        attributor.attribute(empty)
