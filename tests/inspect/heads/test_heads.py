"""``attnviz heads`` as a pipe sees it: screens, JSON, of the bundled model and of checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnviz
from attnviz.engine.capture import capture
from attnviz.errors import UsageError
from attnviz.models.bundled import Bundled

SENTENCE = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
NAMES = [f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)]


def titles(out: str) -> list[str]:
    """The names of the heads whose full maps were drawn, in their order."""
    starts = (part.split(" · ")[0] for line in out.splitlines() for part in line.split("   "))
    lines = (start.strip() for start in starts)
    return [start for start in lines if start in NAMES]


def test_the_whole_answer(run: Any) -> None:
    result = run("heads", SENTENCE, "--width", "100")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0].startswith("tiny · revision ")
    assert f"trained weights · float32 · {LAYERS} layers × {HEADS} heads" in result.lines[0]
    assert "this text: 17 of 24 sink on first token" in result.out
    top = result.lines.index(next(line for line in result.lines if line.startswith("    H0 ")))
    assert result.lines[top].split() == [f"H{head}" for head in range(HEADS)]
    below = result.lines[top + 1 : result.lines.index("", top)]
    named = [line for line in below if line.startswith("L")]
    assert [line.split()[0] for line in named] == [f"L{layer}" for layer in range(LAYERS)]
    maps = result.out.partition("The most distinctive heads")[2]
    assert len(titles(maps)) == 3
    assert "\x1b" not in result.out
    assert max(map(len, result.lines)) <= 100
    assert "--pair WORD WORD" in result.out


@pytest.mark.parametrize("width", [20, 80, 1000])
def test_no_line_is_wider_than_asked(redrawn: Any, width: int) -> None:
    result = redrawn("heads", SENTENCE, "--width", str(width))
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= width


def test_the_width_of_the_surroundings(redrawn: Any) -> None:
    narrow = redrawn("heads", SENTENCE, env={"COLUMNS": "60"})
    assert narrow.out == redrawn("heads", SENTENCE, "--width", "60").out


def test_one_head_in_full(run: Any) -> None:
    result = run("heads", SENTENCE, "--head", "L1H2")
    assert titles(result.out) == ["L1H2"] * 2  # its map and its arcs
    assert "distinctive" not in result.out
    for word in ("cat", "sat", "because", "tired"):
        assert any(line.endswith(f" {word}") for line in result.lines)


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
def test_chosen_heads(document: Callable[..., Any], options: list[str], expected: Any) -> None:
    heads = document(SENTENCE, *options)["heads"]
    assert [f"L{head['layer']}H{head['head']}" for head in heads] == expected


def test_names_from_one(run: Any, document: Callable[..., Any]) -> None:
    options = ("--head", "L1H1", "--index-base", "1")
    assert titles(run("heads", SENTENCE, *options).out) == ["L1H1"] * 2
    head = document(SENTENCE, *options)["heads"][0]
    assert (head["layer"], head["head"]) == (0, 0)


def test_a_token_is_typed_as_it_is_read_whatever_the_index_base(run: Any) -> None:
    """``--index-base`` counts layers and heads; tokens count from 0 on screens and in options."""
    text, base = "the cat saw the dog", ("--index-base", "1")
    pairs = run("heads", text, "--top", "2", *base).out
    read = re.findall(r"the \([0-9]+\)", pairs)
    assert read
    for typed in {*read}:
        assert f"“the” {typed[4:]}" in run("heads", text, "--token", typed, *base).out


@pytest.mark.parametrize("wanted", ["cat", "2", "-11"])
def test_a_word_through_all_heads(run: Any, wanted: str) -> None:
    result = run("heads", SENTENCE, "--token", wanted)
    assert (result.code, result.err) == (0, "")
    assert "cat" in result.out
    assert all(name in result.out for name in NAMES)
    assert result.out == run("heads", SENTENCE, "--token", "cat").out


@pytest.mark.parametrize("measure", ["entropy", "previous"])
def test_sorting(document: Callable[..., Any], measure: str) -> None:
    found = document(SENTENCE, "--sort", measure)
    scores = [head[measure] for head in found["heads"]]
    assert found["sorted_by"] == measure
    assert scores == sorted(scores, reverse=True)
    turned = document(SENTENCE, "--sort", measure, "--reverse")
    assert [head[measure] for head in turned["heads"]] == sorted(scores)


def test_quiet_leaves_out_the_hints(run: Any) -> None:
    assert "--token WORD" in run("heads", SENTENCE).out
    assert "--token WORD" not in run("heads", SENTENCE, "-q").out


def test_text_from_a_file_and_from_standard_input(run: Any, tmp_path: Path) -> None:
    text = f"{SENTENCE}\n"
    expected = run("heads", text).out
    (tmp_path / "story.txt").write_text(text)
    assert run("heads", "--file", "story.txt").out == expected
    assert run("heads", "-", stdin=text.encode()).out == expected


def test_a_text_too_long_is_refused_or_cut(redrawn: Any, refused: Any, document: Any) -> None:
    text = "tired " * 1500
    line = refused(2, "heads", text)
    assert "takes at most 1,024: shorten it, or add --truncate to cut it there" in line
    assert "the text has 1,50" in line
    found = document(text, "--truncate", "--head", "L0H0")
    assert len(found["tokens"]) == 1024
    assert len(redrawn("heads", text, "--truncate", "--head", "L0H0").lines) < 200


@pytest.mark.parametrize("palette", ["viridis", "magma"])
def test_palettes_colour_the_same_map(run: Any, palette: str) -> None:
    plain = run("heads", SENTENCE, "--color", "always")
    result = run("heads", SENTENCE, "--color", "always", "--palette", palette)
    assert result.code == 0
    assert "\x1b[38;2;" in result.out
    assert (result.out == plain.out) == (palette == "viridis")


def test_colour_in_a_pipe_only_when_forced(run: Any) -> None:
    plain = run("heads", SENTENCE).out
    assert run("heads", SENTENCE, env={"FORCE_COLOR": "0"}).out == plain
    assert "\x1b[38;2;" in run("heads", SENTENCE, env={"FORCE_COLOR": "1"}).out
    forced = {"FORCE_COLOR": "1", "NO_COLOR": "1"}
    assert "▀" not in run("heads", SENTENCE, env=forced).out
    assert run("heads", SENTENCE, "--color", "never", env={"FORCE_COLOR": "1"}).out == plain


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_streams_that_carry_less(run: Any, encoding: str) -> None:
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


HOSTILE = "a \x1b[31mred\x1b[0m \x07 [bold]b[/bold] [/] :smile: \u202eabc\u202c \x9b2J \u200b end"


def test_a_hostile_text_does_nothing_to_the_screen(run: Any) -> None:
    for options in ((), ("--model", "mha"), ("--top", "3"), ("--token", "end"), ("--explain",)):
        out = run("heads", HOSTILE, *options).out
        assert out
        assert not {c for c in out if (c < " " and c != "\n") or "\x7f" <= c <= "\x9f"}
        assert not {"\u202e", "\u202c", "\u200b"} & set(out)
    assert "[bold]b[/bold]" in run("heads", HOSTILE, "--model", "mha", "--width", "200").out


def test_a_known_induction_head_that_follows_a_repetition_is_the_finding(redrawn):
    text = "When Nancy met John, nobody knew why Nancy met"
    said = " ".join(redrawn("heads", text).out.split())
    assert (
        "“met” (10) attends to “John”, which followed “met” (3), in the induction head L1H3" in said
    )
    unknown = " ".join(redrawn("heads", text, "--no-known-labels").out.split())
    assert "which followed" not in unknown
    assert "No link between words beats chance" in unknown


def test_the_word_that_came_before_is_quoted_whole(run):
    """The tokens of “Anna” are “An”, “n” and “a”; the last one is what repeats."""
    said = " ".join(run("heads", "Anna found the key, so Peter asked Anna").out.split())
    assert "“Anna” (11) attends to “found”, which followed “Anna” (1), in the induction" in said


# For programs: the fields of --json ---------------------------------------------------------------


def test_the_promised_fields(run: Any) -> None:
    result = run("heads", SENTENCE, "--json")
    document = result.document
    assert result.out.startswith('{"schema": "attnviz.heads/1"')
    assert next(iter(document)) == "schema"
    model, info = document["model"], Bundled().info
    assert {
        name: model[name] for name in ("name", "dtype", "layers", "heads", "kv_heads", "head_dim")
    } == {"name": "tiny", "dtype": "float32"} | {
        name: getattr(info, name) for name in ("layers", "heads", "kv_heads", "head_dim")
    }
    assert model["revision"] == info.revision
    assert document["kind"] == "self"
    assert "key_tokens" not in document
    assert len(document["tokens"]) == len(document["token_ids"]) == 13
    assert "".join(document["tokens"][1:]).strip() == SENTENCE
    assert [(head["layer"], head["head"]) for head in document["heads"]] == [
        (layer, head) for layer in range(info.layers) for head in range(info.heads)
    ]


def test_the_numbers_are_the_librarys(document: Any) -> None:
    model = Bundled()
    tokens = model.encode(SENTENCE)
    record = capture(model, tokens, kind="self")
    found = document(SENTENCE)
    assert tuple(found["token_ids"]) == tokens.ids
    assert tuple(found["tokens"]) == tokens.texts
    for (layer, head, weights), entry in zip(record, found["heads"], strict=True):
        assert (entry["layer"], entry["head"]) == (layer, head)
        assert np.array_equal(np.array(entry["weights"], dtype=np.float32), weights)


@pytest.mark.parametrize(
    "text",
    [
        "one \x1b[31m two \x1b]0;title\x07",
        "\u202eright to left\u202c and \u2066isolates\u2069",
        "[bold]markup[/bold] [/] :smile: {0} %s",
        'quotes " and \\ and \n line \t ends',
        "🙂 e\u0301 한국어 \U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\ufdd0 \U0010ffff \ue000",
    ],
)
@pytest.mark.parametrize("model", ["tiny", "mha"])
def test_hostile_texts_survive_and_cannot_act(run: Any, text: str, model: str) -> None:
    result = run("heads", text, "--model", model, "--json")
    document = result.document
    assert document["text"] == text
    assert result.out.isascii()
    assert "\x1b" not in result.out
    if model == "mha":
        assert document["tokens"] == text.split()


def test_the_views_change_nothing(run: Any) -> None:
    plain = run("heads", SENTENCE, "--json").out
    views = (
        "--values",
        "--top",
        "2",
        "--sink",
        "--explain",
        "--ascii",
        "--quiet",
        "--full",
        "--width",
        "10",
    )
    env = {"COLUMNS": "10000", "FORCE_COLOR": "1"}
    assert run("heads", SENTENCE, "--json", *views, env=env).out == plain


# The library's own attention ----------------------------------------------------------------------


KOREAN = "나는 오늘 학교에 갔다 ."
FIGURE = (KOREAN, "--model", "mha", "--d-model", "64", "--heads", "8", "--causal")


def test_the_textbooks_figure(run: Any) -> None:
    result = run("heads", *FIGURE)
    assert (result.code, result.err) == (0, "")
    assert "mha · " in result.lines[0]
    assert "random weights" in result.out
    assert "seed 0" in result.out
    for head in range(8):
        assert f"L0H{head}" in result.out
    for word in KOREAN.split():
        assert word in result.out


def test_causal_or_not(document: Any) -> None:
    for option, sees_future in (("--causal", False), ("--no-causal", True), ("--seed=0", True)):
        found = document(KOREAN, "--model", "mha", option)
        weights = np.array([head["weights"] for head in found["heads"]])
        assert found["causal"] == (not sees_future)
        assert bool(np.triu(weights, 1).any()) == sees_future
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(("kv_heads", "groups"), [(1, [0] * 4), (2, [0, 0, 1, 1])])
def test_shared_key_value_heads(document: Any, kv_heads: int, groups: list[int]) -> None:
    options = ("--model", "mha", "--heads", "4", "--kv-heads", str(kv_heads))
    found = document(KOREAN, *options)
    assert (found["model"]["heads"], found["model"]["kv_heads"]) == (4, kv_heads)
    assert found["model"]["head_dim"] == 16
    assert [head["kv_head"] for head in found["heads"]] == groups


def test_a_seed_is_a_picture(document: Any) -> None:
    first = document(KOREAN, "--model", "mha", "--seed", "3")
    assert document(KOREAN, "--model", "mha", "--seed", "3") == first
    assert document(KOREAN, "--model", "mha", "--seed", "4")["heads"] != first["heads"]


@pytest.mark.parametrize("text", ["العربية من اليمين", "🙂 👨‍👩‍👧 🏳️‍🌈 日本語", "e\u0301 ไทย ภาษา"])
def test_any_language(run: Any, text: str) -> None:
    result = run("heads", text, "--model", "mha", "--width", "60")
    assert (result.code, result.err) == (0, "")


# Ablated and weighted by norms --------------------------------------------------------------------


def maps(run: Any, *options: str) -> tuple[dict[str, Any], dict[tuple[int, int], np.ndarray]]:
    """The facts, and each head's weights."""
    found = json.loads(run("heads", SENTENCE, "--json", *options).out)
    return found, {
        (head["layer"], head["head"]): np.array(head["weights"]) for head in found["heads"]
    }


def test_an_ablated_head_changes_what_lies_behind_it(run: Any) -> None:
    _, plain = maps(run)
    found, ablated = maps(run, "--ablate", "1.*")
    assert found["ablated"] == [[1, head] for head in range(4)]
    moved = {head for head in plain if np.abs(plain[head] - ablated[head]).max() > 1e-4}
    assert moved == {head for head in plain if head[0] > 1}
    _, one_based = maps(run, "--ablate", "L2H1,L2H2,L2H3,L2H4", "--index-base", "1")
    assert all(np.array_equal(one_based[head], ablated[head]) for head in plain)


def test_norm_weights_are_those_of_values_computed_by_hand(run: Any) -> None:
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
def test_the_first_screen_says_so(
    redrawn: Any, options: list[str], said: str, size: tuple[int, int]
) -> None:
    place = {"COLUMNS": str(size[0]), "LINES": str(size[1])}
    result = redrawn("heads", SENTENCE, "--no-full", *options, env=place)
    assert said in result.lines[0]
    assert any(each in result.lines[1] for each in ("more than usual", "No link", "above usual"))
    assert len(result.lines) <= size[1]


def test_what_does_not_go_together_is_refused(run: Any) -> None:
    for options in (["--ablate", "L9H0"], ["--pair", "it", "cat", "--norm-weighted"]):
        result = run("heads", SENTENCE, *options)
        assert (result.code, result.out) == (2, "")
        assert len(result.err.splitlines()) <= 3


# Checkpoints in a directory -----------------------------------------------------------------------


TEXT = "the cat sat on the mat"
Checkpoint = Callable[[str], Path]


@pytest.fixture
def damaged(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A copy of the gpt2 checkpoint that a test may spoil."""
    return Path(shutil.copytree(checkpoint("gpt2"), tmp_path / "gpt2"))


def attentions(model: Any, **inputs: Any) -> Any:
    """What transformers itself says, with its eager attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def equal(document: Any, expected: Any) -> bool:
    """Whether a document's heads are the library's (layer, batch, head, query, key) weights."""
    return all(
        np.array_equal(
            np.array(head["weights"], dtype=np.float32),
            expected[head["layer"]][0, head["head"]].numpy(),
        )
        for head in document["heads"]
    )


@pytest.mark.parametrize(("kind", "shape"), [("gpt2", (2, 3, 3, 2)), ("llama", (2, 6, 2, 4))])
def test_a_decoder(document: Any, checkpoint: Checkpoint, kind: str, shape: tuple[int]) -> None:
    directory = str(checkpoint(kind))
    found = document(TEXT, "--backend", "torch", "--model", directory)
    info = found["model"]
    assert (info["layers"], info["heads"], info["kv_heads"], info["head_dim"]) == shape
    assert (info["name"], info["dtype"], info["weights"]) == (directory, "float32", "checkpoint")
    assert found["tokens"] == ["<s>", *TEXT.split(), "</s>"]
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.tensor([found["token_ids"]])
    assert equal(found, attentions(model, input_ids=ids).attentions)


def test_grouped_heads_name_their_group(run: Any, document: Any, checkpoint: Checkpoint) -> None:
    directory = str(checkpoint("llama"))
    heads = document(TEXT, "--model", directory, "--layer", "0")["heads"]
    assert [head["kv_head"] for head in heads] == [0, 0, 0, 1, 1, 1]
    drawn = run("heads", TEXT, "--model", directory, "--head", "L0H4")
    assert "L0H4 · key/value head 1" in drawn.out


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_an_encoder_decoder(document: Any, checkpoint: Checkpoint, kind: str) -> None:
    directory = str(checkpoint("t5"))
    options = ["--kind", kind] if kind != "encoder" else []
    target = ["--target", "cat on mat"] if kind != "encoder" else []
    found = document(TEXT, "--model", directory, *options, *target)
    assert found["kind"] == kind
    source = ["<s>", *TEXT.split(), "</s>"]
    written = ["<pad>", "<s>", "cat", "on", "mat"]
    assert found["tokens"] == (source if kind == "encoder" else written)
    assert found.get("target") == (None if kind == "encoder" else "cat on mat")
    assert found.get("key_tokens") == (source if kind == "cross" else None)
    assert found["causal"] == (kind == "decoder")
    model = transformers.T5ForConditionalGeneration.from_pretrained(directory)
    inputs = {
        "input_ids": torch.tensor([[1, 4, 5, 6, 7, 4, 8, 2]]),
        "decoder_input_ids": torch.tensor([[0, 1, 5, 7, 8]]),
    }
    assert equal(found, getattr(attentions(model, **inputs), f"{kind}_attentions"))


def test_the_default_target_is_the_models_own(document: Any, checkpoint: Checkpoint) -> None:
    found = document(TEXT, "--model", str(checkpoint("t5")), "--kind", "decoder")
    assert found["tokens"][0] == "<pad>"
    assert 1 <= len(found["tokens"]) <= 64


def test_cross_attention_on_screen(run: Any, checkpoint: Checkpoint) -> None:
    options = ("--model", str(checkpoint("t5")), "--kind", "cross", "--target", "cat on mat")
    result = run("heads", TEXT, *options, "--head", "L1H2")
    assert result.code == 0
    assert "target cat on mat" in result.out
    assert "because" not in result.out
    assert run("heads", TEXT, *options, "--token", "sat").code == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_number_types(document: Any, checkpoint: Checkpoint, dtype: str) -> None:
    found = document(TEXT, "--model", str(checkpoint("gpt2")), "--dtype", dtype)
    assert found["model"]["dtype"] == dtype
    assert found["model"]["device"] == "cpu"
    sums = np.array([head["weights"] for head in found["heads"]]).sum(-1)
    np.testing.assert_allclose(sums, 1, atol={"float64": 1e-6}.get(dtype, 0.02))


def test_options_that_do_not_fit(refused: Any, checkpoint: Checkpoint) -> None:
    gpt2, t5 = ("--model", str(checkpoint("gpt2"))), ("--model", str(checkpoint("t5")))
    for line, arguments in {
        "no layer 2: this model has layers 0 to 1": (*gpt2, "--layer", "2"),
        "has no cross attention: expected --kind self": (*gpt2, "--kind", "cross"),
        "has no self attention: expected --kind encoder": (*t5, "--kind", "self"),
        "add --kind decoder or --kind cross": (*t5, "--target", "cat"),
        "--heads shapes the library's own attention": (*gpt2, "--heads", "4"),
        "is a directory and has no revision 'main'": (*gpt2, "--revision", "main"),
        "no device 'cuda:9' here": (*gpt2, "--device", "cuda:9"),
    }.items():
        assert line in refused(2, "heads", TEXT, *arguments)


def test_without_a_tokenizer(refused: Any, damaged: Path) -> None:
    for file in damaged.glob("*token*"):
        file.unlink()
    assert "has no tokenizer" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_damaged_weights(refused: Any, damaged: Path) -> None:
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_missing_weights(refused: Any, damaged: Path) -> None:
    (damaged / "model.safetensors").unlink()
    assert "weights" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_pickles_are_read_only_on_demand(run: Any, refused: Any, damaged: Path) -> None:
    model = transformers.GPT2LMHeadModel.from_pretrained(damaged)
    torch.save(model.state_dict(), damaged / "pytorch_model.bin")
    (damaged / "model.safetensors").unlink()
    assert "--allow-pickle" in refused(3, "heads", TEXT, "--model", str(damaged))
    result = run("heads", TEXT, "--model", str(damaged), "--allow-pickle")
    assert result.code == 0


def test_remote_code_is_run_only_on_demand(refused: Any, damaged: Path) -> None:
    (damaged / "config.json").write_text(
        '{"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig"}}'
    )
    assert "--trust-remote-code" in refused(3, "heads", TEXT, "--model", str(damaged))


def test_a_model_without_heads(refused: Any, damaged: Path) -> None:
    (damaged / "config.json").write_text(
        '{"model_type": "mamba", "architectures": ["MambaForCausalLM"], "num_hidden_layers": 2}'
    )
    refused(5, "heads", TEXT, "--model", str(damaged))


def test_a_named_shape(document: Any, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        '[config]\nmodel_type = "bert"\narchitectures = ["BertForMaskedLM"]\nhidden_size = 6\n'
        "num_hidden_layers = 2\nnum_attention_heads = 3\nintermediate_size = 5\nvocab_size = 17\n"
    )
    found = document(TEXT, "--model", "small.toml", "--seed", "3")
    assert (found["model"]["weights"], found["model"]["seed"]) == ("random", 3)
    assert found["tokens"] == TEXT.split()
    assert len(found["heads"]) == 6


def test_a_cut_edge_is_refused_with_the_words_to_type(refused: Callable[..., str]) -> None:
    assert 'attnviz ablate TEXT --edge "it→cat"' in refused(2, "heads", SENTENCE, "--cut", "it→cat")
    with pytest.raises(UsageError, match='attnviz ablate TEXT --edge "it→cat"'):
        attnviz.cut("tiny", SENTENCE, "it→cat")
