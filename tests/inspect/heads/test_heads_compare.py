"""``attnviz heads`` of several runs: by kind, mask and score of attention, or by text."""

import numpy as np
import pytest

KEYS, QUERIES = "the cat sat on the mat", "vier Wörter der mat"
MHA = ("--model", "mha", "--heads", "4")
CROSS = (KEYS, *MHA, "--target", QUERIES)


def weights(found, variant=None):
    heads = [head for head in found["heads"] if variant in (None, head.get("variant"))]
    return np.array([head["weights"] for head in heads])


def test_cross_attention_is_queries_by_keys(document):
    found = document(*CROSS, "--kind", "cross")
    assert (found["kind"], found["causal"], found["score"]) == ("cross", False, "scaled-dot")
    assert found["tokens"] == QUERIES.split()
    assert found["key_tokens"] == KEYS.split()
    assert found["target"] == QUERIES
    assert weights(found).shape == (4, 4, 6)
    np.testing.assert_allclose(weights(found).sum(-1), 1, atol=1e-5)
    # “mat” stands in both texts: it looks at this one as it does from within.
    inside = weights(document(KEYS, *MHA))
    np.testing.assert_allclose(weights(found)[:, 3], inside[:, 5], atol=1e-6)


def test_both_masks_of_the_same_heads(document):
    found = document(KEYS, *MHA, "--compare-mask")
    assert (found["schema"], found["compared"], found["causal"]) == (
        "attnviz.heads/1",
        ["causal"],
        None,
    )
    assert [variant["causal"] for variant in found["variants"]] == [False, True]
    order = [(head["head"], head["causal"]) for head in found["heads"]]
    assert order == [(head, causal) for head in range(4) for causal in (False, True)]
    for variant, option in enumerate(("--no-causal", "--causal")):
        alone = weights(document(KEYS, *MHA, option))
        np.testing.assert_array_equal(weights(found, variant), alone)
    free, masked = weights(found, 0), weights(found, 1)
    assert not np.triu(masked, 1).any()
    # A mask takes later words away and shares their weight out among the rest.
    left = np.tril(free)
    np.testing.assert_allclose(masked, left / left.sum(-1, keepdims=True), atol=1e-5)
    moved = [head["moved"] for head in found["heads"] if head["variant"] == 1]
    np.testing.assert_allclose(moved, np.triu(free, 1).sum(-1).mean(-1), atol=1e-5)
    assert all(head["moved"] is None for head in found["heads"] if head["variant"] == 0)


@pytest.mark.parametrize("swapped", [False, True])
def test_padding_takes_weight_that_its_mask_gives_back(document, run, swapped):
    """Hidden padding changes nothing: words attend as in their text alone; else they lose to it."""
    short, texts = "sat on", ["sat on", KEYS][:: -1 if swapped else 1]
    found = document(texts[0], "--and", texts[1], *MHA, "--compare-mask", "--save", "p.npz")
    assert (found["text"], found["compared"]) == ("sat on PAD PAD PAD PAD", ["padding"])
    assert [variant.get("padding") for variant in found["variants"]] == [None, 4]
    free, masked = weights(found, 0), weights(found, 1)
    np.testing.assert_allclose(masked[:, :2, :2], weights(document(short, *MHA)), atol=1e-6)
    assert not masked[:, :, 2:].any()
    lost = free[:, :2, 2:].sum(-1)
    np.testing.assert_allclose(
        free[:, :2, :2], masked[:, :2, :2] * (1 - lost[..., None]), atol=1e-5
    )
    told = run("heads", *texts[:1], "--and", texts[1], *MHA, "--compare-mask").out
    said = f"give {lost.mean():.2f} of their attention to 4 padding".replace("0.", ".")
    assert said in " ".join(told.split())
    assert said in " ".join(run("heads", "--from", "p.npz").out.split())


def test_self_beside_cross(document):
    found = document(*CROSS, "--kind", "self,cross", "--causal")
    assert found["compared"] == ["kind", "causal"]
    own, crossed = found["variants"]
    assert (own["kind"], own["causal"], "key_tokens" in own) == ("self", True, False)
    assert (crossed["kind"], crossed["causal"]) == ("cross", False)
    assert (crossed["tokens"], crossed["key_tokens"]) == (QUERIES.split(), KEYS.split())
    assert weights(found, 0).shape == (4, 6, 6)
    assert weights(found, 1).shape == (4, 4, 6)


def test_an_encoder_decoders_kinds_stand_side_by_side(document, checkpoint):
    options = ("the cat sat", "--model", str(checkpoint("t5")), "--target", "the mat")
    found = document(*options, "--kind", "encoder,decoder,cross")
    assert [each["kind"] for each in found["variants"]] == ["encoder", "decoder", "cross"]
    for variant, kind in enumerate(("encoder", "decoder", "cross")):
        target = () if kind == "encoder" else options[3:]
        alone = document(*options[:3], *target, "--kind", kind)
        np.testing.assert_array_equal(weights(found, variant), weights(alone))


# Several texts side by side -----------------------------------------------------------------------


TEXTS = ["The cat sat on the mat.", "She said that he said so.", "Mary met John."]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    return "texts.txt"


def test_each_text_has_the_numbers_of_its_own_run(document, texts):
    found = document("--texts", texts)
    assert [each["text"] for each in found["variants"]] == TEXTS
    assert found["text"] is None
    assert {"text", "sink"} <= {*found["compared"]}
    for at, text in enumerate(TEXTS):
        alone = document(text)
        assert found["variants"][at]["tokens"] == alone["tokens"]
        mine = [each for each in found["heads"] if each.get("variant") == at]
        for one, other in zip(mine, alone["heads"], strict=True):
            assert one.pop("variant") == at
            assert one.pop("moved") is None
            np.testing.assert_allclose(one.pop("weights"), other.pop("weights"), atol=1e-6)
            assert one["trait"]["name"] == other["trait"]["name"]


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_what_was_saved_is_read_back(run, document, texts, ending):
    run("heads", "--texts", texts, "--save", f"a.{ending}")
    saved = document("--from", f"a.{ending}")
    assert saved == document("--texts", texts)
