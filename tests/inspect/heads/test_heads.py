"""``attnviz heads`` as a pipe sees it: screens, JSON, of the bundled model and of checkpoints."""

import io
import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import attnviz
from attnviz.errors import UsageError
from attnviz.measures.registry import find_label
from attnviz.models.bundled import Bundled

from ...bert_by_hand import TEXTS

SENTENCE = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]
KEYS, QUERIES = "the cat sat on the mat", "vier Wörter der mat"
MHA = ("--model", "mha", "--heads", "4")
CROSS = (KEYS, *MHA, "--target", QUERIES)
THREE_TEXTS = ["The cat sat on the mat.", "She said that he said so.", "Mary met John."]
MARY = "When Mary and John went out, John gave Mary a book."


def titles(out):
    """The names of the heads whose full maps were drawn, in their order."""
    starts = (part.split(" · ")[0] for line in out.splitlines() for part in line.split("   "))
    lines = (start.strip() for start in starts)
    return [start for start in lines if start in NAMES]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--layer", "2"], NAMES[2 * HEADS : 3 * HEADS]),
        (["-l", "-1"], NAMES[-HEADS:]),
        (["--head", "3"], [f"L{layer}H3" for layer in range(LAYERS)]),
        (["-H", "L0H1", "-H", "2.0"], ["L0H1", "L2H0"]),
        (["--layer", "1", "--head", "0,2"], ["L1H0", "L1H2"]),
    ],
)
def test_chosen_heads(document, options, expected):
    heads = document(SENTENCE, *options)["heads"]
    assert [f"L{head['layer']}H{head['head']}" for head in heads] == expected


def test_names_from_one(run, document):
    options = ("--head", "L1H1", "--index-base", "1")
    assert titles(run("heads", SENTENCE, *options).out) == ["L1H1"] * 2
    head = document(SENTENCE, *options)["heads"][0]
    assert (head["layer"], head["head"]) == (0, 0)


def test_a_token_is_typed_as_it_is_read_whatever_the_index_base(run):
    """``--index-base`` counts layers and heads; tokens count from 0 on screens and in options."""
    text, base = "the cat saw the dog", ("--index-base", "1")
    pairs = run("heads", text, "--top", "2", *base).out
    read = re.findall(r"the \([0-9]+\)", pairs)
    assert read
    for typed in {*read}:
        assert f"“the” {typed[4:]}" in run("heads", text, "--token", typed, *base).out


@pytest.mark.parametrize("wanted", ["cat", "2", "-11"])
def test_a_word_through_all_heads(run, wanted):
    result = run("heads", SENTENCE, "--token", wanted)
    assert (result.code, result.err) == (0, "")
    assert "cat" in result.out
    assert all(name in result.out for name in NAMES)
    assert result.out == run("heads", SENTENCE, "--token", "cat").out


@pytest.mark.parametrize("measure", ["entropy", "previous"])
def test_sorting(document, measure):
    found = document(SENTENCE, "--sort", measure)
    scores = [head[measure] for head in found["heads"]]
    assert found["sorted_by"] == measure
    assert scores == sorted(scores, reverse=True)
    turned = document(SENTENCE, "--sort", measure, "--reverse")
    assert [head[measure] for head in turned["heads"]] == sorted(scores)


def test_a_text_too_long_is_refused_or_cut(refused, document):
    text = "tired " * 1500
    line = refused(2, "heads", text)
    assert "takes at most 1,024: shorten it, or add --truncate to cut it there" in line
    assert "the text has 1,50" in line
    found = document(text, "--truncate", "--head", "L0H0", "--save", "a.txt")
    assert len(found["tokens"]) == 1024
    assert len(Path("a.txt").read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_streams_that_carry_less(run, encoding):
    text = "나는 오늘 “학교”에 갔다 ."
    for arguments in (
        ("heads", text, "--model", "mha"),
        ("heads", text),
        ("heads", text, "--explain"),
        ("heads", text, "--token", "갔다", "--model", "mha"),
        ("heads", text, "--top", "2", "--model", "mha"),
        ("heads", "--help"),
        ("--help",),
    ):
        result = run(*arguments, encoding=encoding)
        assert (result.code, result.err) == (0, ""), arguments
        assert result.out.strip()


def test_a_known_induction_head_that_follows_a_repetition_is_the_finding(redrawn):
    text = "When Nancy met John, nobody knew why Nancy met"
    said = " ".join(redrawn("heads", text).out.split())
    assert (
        "Induction: L1H2 attends (.94) from “met” (10) to “John”, which followed “met” (3)." in said
    )
    unknown = " ".join(redrawn("heads", text, "--no-known-labels").out.split())
    assert "which followed" not in unknown
    assert (
        "in L1H2 (.94, control .23); with 24 heads to choose from, this may be chance." in unknown
    )


def test_the_word_that_came_before_is_quoted_whole(run):
    """The tokens of “Anna” are “An”, “n” and “a”; the last one is what repeats."""
    said = " ".join(run("heads", "Anna found the key, so Peter asked Anna").out.split())
    assert "from “Anna” (11) to “found”, which followed “Anna” (1)" in said


def test_the_views_change_nothing(run):
    plain = run("heads", SENTENCE, "--json").out
    views = (
        *("--values", "--top", "2", "--sink", "--explain"),
        *("--ascii", "--quiet", "--full", "--width", "10"),
    )
    env = {"COLUMNS": "10000", "FORCE_COLOR": "1"}
    assert run("heads", SENTENCE, "--json", *views, env=env).out == plain


def maps(run, *options):
    found = json.loads(run("heads", SENTENCE, "--json", *options).out)
    return found, {
        (head["layer"], head["head"]): np.array(head["weights"]) for head in found["heads"]
    }


def test_an_ablated_head_changes_what_lies_behind_it(run):
    _, plain = maps(run)
    found, ablated = maps(run, "--ablate", "1.*")
    assert found["ablated"] == [[1, head] for head in range(4)]
    moved = {head for head in plain if np.abs(plain[head] - ablated[head]).max() > 1e-4}
    assert moved == {head for head in plain if head[0] > 1}
    _, one_based = maps(run, "--ablate", "L2H1,L2H2,L2H3,L2H4", "--index-base", "1")
    assert all(np.array_equal(one_based[head], ablated[head]) for head in plain)


def test_norm_weights_are_those_of_values_computed_by_hand(run):
    """Layer 0 alone: its input is the embedding, RMS-normed (Kobayashi et al. 2020, eq. 3)."""
    _, plain = maps(run)
    found, weighted = maps(run, "--norm-weighted", "--layer", "0")
    assert found["norm_weighted"] is True
    model = Bundled()
    config, tensors = model.checkpoint.config, model.tensors
    part = {name.removeprefix("model."): np.asarray(t, np.float64) for name, t in tensors.items()}
    x = part["embed_tokens.weight"][list(found["token_ids"])]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    x = x * part["layers.0.input_layernorm.weight"]
    values = (x @ part["layers.0.self_attn.v_proj.weight"].T).reshape(len(x), config.kv_heads, -1)
    dim = values.shape[-1]
    for head in range(config.heads):
        output = part["layers.0.self_attn.o_proj.weight"][:, head * dim : (head + 1) * dim]
        norms = np.linalg.norm(
            values[:, head * config.kv_heads // config.heads] @ output.T, axis=-1
        )
        expected = plain[0, head] * norms
        expected /= expected.sum(-1, keepdims=True)
        np.testing.assert_allclose(weighted[0, head], expected, atol=2e-6)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ablate", "L0H1"], "without L0H1"),
        (["--norm-weighted", "--head", "L3H1"], "norm-weighted"),
        (
            ["--ablate", "0.*,1.*", "--norm-weighted", "--no-sink"],
            "without L0H0, L0H1, 6 more · norm-weighted",
        ),
    ],
)
def test_the_first_screen_says_so(redrawn, options, said, size):
    place = {"COLUMNS": str(size[0]), "LINES": str(size[1])}
    result = redrawn("heads", SENTENCE, "--no-full", *options, env=place)
    assert said in result.lines[0]
    assert any(
        each in result.lines[1] for each in ("is labelled", "attends", "local: “", "No word")
    )
    assert len(result.lines) <= size[1]


def test_a_cut_edge_is_refused_with_the_words_to_type():
    with pytest.raises(UsageError, match='attnviz ablate TEXT --edge "it→cat"'):
        attnviz.cut("tiny", SENTENCE, "it→cat")


def test_the_score_of_the_first_token_is_not_called_sink(run, trained_bert):
    """Of an encoder the sink's weight is that of [CLS] and [SEP], this score that of [CLS]."""
    shown = run("heads", TEXTS[1], "--model", str(trained_bert), "--head", "L0H0", "--full").out
    entry = run("heads", TEXTS[1], "--model", str(trained_bert), "--json").document["heads"][0]
    assert entry["sink_weight"] - entry["first"] > 0.02
    columns, row = next(
        (names.split("  "), values.split())
        for names, values in pairwise(shown.splitlines())
        if names.startswith("head") and "first token" in names
    )
    at = [name.strip() for name in columns if name.strip()].index("first token")
    assert float(row[at]) == pytest.approx(entry["first"], abs=0.0006)
    assert not [name for name in columns if name.strip() == "sink"]
    assert find_label("sink") == find_label("first token") == "first"


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


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(THREE_TEXTS))
    return "texts.txt"


def test_each_text_has_the_numbers_of_its_own_run(document, texts):
    found = document("--texts", texts)
    assert [each["text"] for each in found["variants"]] == THREE_TEXTS
    assert found["text"] is None
    assert {"text", "sink"} <= {*found["compared"]}
    for at, text in enumerate(THREE_TEXTS):
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


def test_a_run_of_generate_is_sent_to_what_replays_it(run, refused):
    run("generate", "Once there was", "--tokens", "3", "--save", "run.jsonl")
    assert "attnviz explore replays it" in refused(3, "heads", "--from", "run.jsonl")


def test_a_saved_file_has_the_page_of_the_model(run, tmp_path):
    run("heads", MARY, "--vectors", "--save", "a.npz", "--save", "model.html")
    run("heads", "--from", "a.npz", "--save", "file.html")
    assert (tmp_path / "file.html").read_bytes() == (tmp_path / "model.html").read_bytes()


def test_the_weights_follow_from_what_was_saved(run, tmp_path):
    run("heads", MARY, "--vectors", "--layer", "2,4", "--save", "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as kept:
        found = {name: kept[name] for name in kept}
    scores = found["queries"] @ found["keys"].transpose(0, 2, 1) * found["query_key_factor"]
    scores[:, ~np.tri(scores.shape[1], dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, found["weights"], atol=3e-5)
    assert found["value_norms"].shape == (8, weights.shape[-1])


def test_json_has_the_norms(run, tmp_path):
    run("heads", MARY, "--vectors", "--save", "a.json", "--save", "a.npz")
    heads = json.loads((tmp_path / "a.json").read_text())["heads"]
    with np.load(tmp_path / "a.npz") as kept:
        norms = [head["value_norms"] for head in heads]
        np.testing.assert_allclose(norms, kept["value_norms"], rtol=1e-6)
    run("heads", "--from", "a.json", "--save", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "The file has no queries and keys" in page
    assert '"norms":' in page


def test_without_the_option_files_are_as_before(run, tmp_path):
    run("heads", MARY, "--save", "a.npz", "--save", "a.json")
    with np.load(tmp_path / "a.npz") as kept:
        assert {*kept} == {"provenance", "weights", "layers", "heads", "tokens", "token_ids"}
    assert "value_norms" not in (tmp_path / "a.json").read_text()
    run("heads", "--from", "a.npz", "--save", "page.html")
    assert "The file has no value norms, queries and keys" in (tmp_path / "page.html").read_text()


def test_several_runs_in_another_order_keep_their_own(run, tmp_path):
    """The second text has another order of heads: its arrays are in that of the first."""
    (tmp_path / "texts.txt").write_text(f"{KEYS}\nThe cat sat on the mat because it was tired.")
    given = ("--texts", "texts.txt", "--sort", "entropy", "--vectors")
    wanted = run("heads", *given, "--save", "a.npz", "--json").document
    assert run("heads", "--from", "a.npz", "--json").document["heads"] == wanted["heads"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("value_norms", lambda array: array[:, 1:]),
        ("queries", lambda array: array[1:]),
        ("keys", lambda array: array * np.nan),
        ("keys", lambda array: array.astype(np.int64)),
        ("query_key_factor", lambda array: array * np.inf),
        ("tokens", lambda array: array[::-1]),
        ("token_ids", lambda array: array[:-1]),
        ("layers", lambda array: array + 1),
        ("heads", lambda array: array.astype(str)),
    ],
)
def test_damage_is_refused(run, refused, tmp_path, name, change):
    run("heads", MARY, "--vectors", "--save", "a.npz")
    with np.load(tmp_path / "a.npz") as kept:
        arrays = {one: kept[one] for one in kept}
    arrays[name] = change(arrays[name])
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    (tmp_path / "a.npz").write_bytes(stream.getvalue())
    assert "a.npz" in refused(3, "heads", "--from", "a.npz")
