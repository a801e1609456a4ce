"""``attnviz.capture``: what it reads, as transformers computes it; what it returns, and shows."""

import html
import io
import json
import math
import re
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
import transformers
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import attnviz
from attnviz.errors import LoadError, UsageError
from attnviz.models.bundled import Bundled

from ..small_models import bart_fields

TEXT = "The cat sat on the mat because it was tired."
LAYERS, HEADS = Bundled().info.layers, Bundled().info.heads
SHORT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def maps():
    return attnviz.capture("tiny", TEXT)


def drawn(content, width=80, **options):
    stream = io.StringIO()
    Console(file=stream, width=width, **options).print(content)
    return stream.getvalue()


def unpadded(screen):
    """Without the blanks at line ends."""
    return "".join(f"{line.rstrip()}\n" for line in screen.splitlines())


def names(maps):
    return [maps.report.name(*head) for head in maps]


@pytest.mark.parametrize(
    ("choice", "layer", "expected"),
    [
        (["L1H0"], None, ["L1H0"]),
        (["L0H3", "2.1"], None, ["L0H3", "L2H1"]),
        ([3], None, [f"L{layer}H3" for layer in range(LAYERS)]),
        ([(1, 0)], None, ["L1H0"]),
        ([(np.int64(1), np.int64(0))], None, ["L1H0"]),
        (["h2"], "-1", [f"L{LAYERS - 1}H2"]),
    ],
)
def test_heads_are_chosen_as_on_the_command_line(maps, choice, layer, expected):
    chosen = maps.heads(*choice, layer=layer)
    assert names(chosen) == expected
    assert len(chosen) == len(expected)
    for head in expected:
        assert np.array_equal(chosen[head], maps[head])
        assert chosen.scores(head) == maps.scores(head)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (f"L{LAYERS}H0", f"no layer {LAYERS}: this model has layers 0 to {LAYERS - 1} "),
        (1.5, "no head 5"),
        (None, "cannot read 'None' as a head"),
    ],
)
def test_no_choice(maps, choice, said):
    with pytest.raises(UsageError, match=said):
        maps.heads(choice)


def test_what_names_no_single_head_that_was_kept(maps):
    some = maps.heads("0.*", "1.0")
    with pytest.raises(UsageError, match=r"none of .* kept: here are L0H0, .*, L0H3, …$"):
        some["L3H3"]
    assert names(some.heads(0)) == ["L0H0", "L1H0"]
    assert len(maps) == LAYERS * HEADS  # a choice leaves them alone
    assert maps.heads() is not maps
    with pytest.raises(ValueError, match=r"'2.\*' names 4 heads: name one, such as L2H0, or take"):
        maps["2.*"]
    with pytest.raises(UsageError, match=f"3 names {LAYERS} heads: name one, such as L0H3"):
        maps.scores(3)
    with pytest.raises(UsageError, match="--head L1H0 names no head of --layer 2"):
        maps.heads("L1H0", layer=2)


def test_weights_by_layer_and_head_and_as_an_array(maps):
    weights = maps.weights
    assert list(weights) == list(maps)
    assert np.array_equal(weights[2, 1], maps["L2H1"])
    with pytest.raises(TypeError):
        weights[0, 0] = None  # a view that cannot be written
    with pytest.raises(FrozenInstanceError):
        maps.text = "other"  # that is what is tested
    stacked = np.asarray(maps)
    assert stacked.shape == (LAYERS * HEADS, 13, 13)
    assert np.array_equal(stacked[HEADS * 2 + 1], maps["L2H1"])
    assert np.asarray(maps, dtype=np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.array(maps, copy=False)
    assert attnviz.heatmap(maps, maps.tokens).limit == 1
    assert repr(maps) == f"<HeadMaps of tiny: {LAYERS * HEADS} heads, 13 tokens>"
    assert repr(maps.heads("L0H1", "2.0")) == "<HeadMaps of tiny: L0H1, L2H0, 13 tokens>"


def test_it_is_drawn_and_saved_as_by_the_command(maps, run, tmp_path):
    files = [tmp_path / f"command{ending}" for ending in (".json", ".csv", ".svg", ".txt")]
    saved = [word for file in files for word in ("--save", str(file))]
    for options, shown in (saved, maps), (["--head", "L0H2,1.3"], maps.heads("L0H2,1.3")):
        assert str(shown) + "\n" == unpadded(run("heads", TEXT, "--quiet", *options).out)
    for file in files:
        own = tmp_path / f"own{file.suffix}"
        maps.save(own)
        assert own.read_bytes() == file.read_bytes()
    document = json.loads((tmp_path / "own.json").read_text())
    assert document["text"] == TEXT
    assert document["tokens"] == list(maps.tokens)


def test_plain_in_a_string_coloured_in_rich(maps, monkeypatch):
    head = maps.heads("L1H0")
    assert "\x1b" not in str(head)
    coloured = drawn(head, force_terminal=True, color_system="truecolor")
    assert "\x1b[48;2;207;230;255m" in coloured  # the last of blues: a weight of one
    full = coloured.count("207;230;255")
    coloured = drawn(head.view(contrast=0.2), force_terminal=True, color_system="truecolor")
    assert coloured.count("207;230;255") > full
    with pytest.raises(UsageError, match="a contrast above 0 and up to 1, got 2"):
        head.view(contrast=2)
    assert unpadded(drawn(head, no_color=True)) == str(head) + "\n"
    for width in (24, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = list(map(cell_len, str(maps).splitlines()))
        assert width * 0.7 < max(lines) <= width
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert str(maps).isascii()


@pytest.mark.parametrize("width", [10, 20, 33, 80])
def test_inside_other_renderables(maps, width):
    table = Table("maps", "words")
    table.add_row(maps.heads("0.0"), "beside")
    for content in (Panel(maps.heads("0.0")), table):
        lines = drawn(content, width).splitlines()
        assert {cell_len(line.rstrip()) for line in lines if line.strip()} == {width}


def test_views(maps):
    head = maps.heads("L0H1")
    assert f"\n{maps['L0H1'][1, 0]:.2f} ".replace("\n0.", "\n.") in str(head.view(values=True))
    assert "3 strongest pairs" in str(head.view(top=3))
    assert "How to read this" in str(head.view(explain=True))
    assert str(head.view(ascii=True)).isascii()
    grey = head.view(palette="grey")
    assert "\x1b[48;2;250;250;250m" in drawn(grey, force_terminal=True, color_system="truecolor")
    assert str(head.view(values=True).heads("L0H1")) == str(head.view(values=True))
    with pytest.raises(UsageError, match="no palette 'jet': expected one of viridis, magma"):
        head.view(palette="jet")
    with pytest.raises(UsageError, match="at least one pair"):
        head.view(top=0)


class Frame:
    """The page inside the frame of ``_repr_html_``."""

    def __init__(self, element):
        sandbox = "allow-scripts allow-downloads"
        match = re.fullmatch(
            rf'<iframe sandbox="{sandbox}" [^<>]*srcdoc="([^"<>]*)"[^<>]*></iframe>', element
        )
        self.page = html.unescape(match[1])
        self.height = int(re.search(r"100%; height: (\d+)px", element)[1])


def test_a_notebook_shows_the_saved_page(maps, tmp_path):
    for shown in (maps, maps.heads("L1H0"), attnviz.heatmap(np.eye(3), title="<b>")):
        shown.save(tmp_path / "maps.html")
        frame = Frame(shown._repr_html_())
        assert frame.page == (tmp_path / "maps.html").read_text()
        assert 360 <= frame.height <= 1000
        assert not re.search(r"\s(?:src|href)=\"(?!#|data:|\$)", frame.page)


def expected(model, ids):
    """Each layer's weights (head, query, key), by the library's own eager attention."""
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(torch.tensor([ids]), output_attentions=True).attentions
    return [layer[0].numpy() for layer in layers]


def test_a_loaded_model(model, tokenizer):
    maps = attnviz.capture(model.eval(), SHORT, tokenizer=tokenizer)
    assert maps.tokens == ("<s>", *SHORT.split(), "</s>")
    assert maps.text == SHORT
    for layer, weights in enumerate(expected(model, tokenizer(SHORT)["input_ids"])):
        for head in range(3):
            assert np.array_equal(maps[layer, head], weights[head])
    assert repr(maps) == "<HeadMaps of LlamaForCausalLM: 6 heads, 8 tokens>"
    assert "loaded weights · float32\n2 layers × 3 heads on 1 key/value" in str(maps)


def test_some_heads_of_a_loaded_model(model, tokenizer):
    every = attnviz.capture(model, SHORT, tokenizer=tokenizer)
    some = attnviz.capture(model, SHORT, tokenizer=tokenizer, layer=1, head=["0", 2])
    assert list(some) == [(1, 0), (1, 2)]
    assert np.array_equal(some["L1H2"], every["L1H2"])
    assert list(attnviz.capture(model, SHORT, tokenizer=tokenizer, head=(0, 1))) == [(0, 1)]


def test_a_directory(model, tokenizer, tmp_path):
    """A model that was read from it is called by its name."""
    model.save_pretrained(tmp_path / "fine-tuned")
    tokenizer.save_pretrained(tmp_path / "fine-tuned")
    by_path = attnviz.capture(attnviz.load(tmp_path / "fine-tuned"), SHORT)
    loaded = attnviz.capture(model, SHORT, tokenizer=tokenizer)
    assert np.array_equal(np.asarray(by_path), np.asarray(loaded))
    assert by_path.report.record.model.weights == "checkpoint"
    again = type(model).from_pretrained(tmp_path / "fine-tuned")
    maps = attnviz.capture(again, SHORT, tokenizer=tokenizer)
    assert repr(maps).startswith("<HeadMaps of fine-tuned:")
    with pytest.raises(LoadError, match="no directory"):
        attnviz.capture(tmp_path / "nothing", SHORT)


def test_models_that_were_opened():
    model = attnviz.load("mha", d_model=10, heads=5, causal=True, seed=3)
    maps = attnviz.capture(model, "나는 오늘 학교에 갔다")
    assert len(maps) == 5
    assert maps.report.record.model.seed == 3
    assert np.array_equal(np.triu(maps["L0H4"], 1), np.zeros((4, 4)))
    opened = attnviz.load("tiny")
    first, second = (attnviz.capture(opened, text) for text in ("a cat", "a dog"))
    assert first.report.record.model == second.report.record.model
    assert str(first) == str(attnviz.capture("tiny", "a cat"))


def test_an_encoder_decoder(tokenizer):
    torch.manual_seed(0)
    config = transformers.BartConfig(
        **bart_fields(10, 7, 31, (1, 1), (2, 2)),
        vocab_size=11,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    maps = attnviz.capture(model, SHORT, tokenizer=tokenizer, kind="cross", target="the dog")
    assert maps.key_tokens == ("<s>", *SHORT.split(), "</s>")
    assert "dog" in maps.tokens
    assert maps.target == "the dog"
    attnviz.capture(model, SHORT, tokenizer=tokenizer, kind="decoder")
    with pytest.raises(UsageError, match="add --kind decoder or --kind cross"):
        attnviz.capture(model, SHORT, tokenizer=tokenizer, target="the dog")


def wrong(*arguments, **options):
    return lambda model, tokenizer: attnviz.capture(*arguments, **options)


def opening(*arguments, **options):
    return lambda model, tokenizer: attnviz.load(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (wrong("tiny", 3), "expected one text of at least one word, got 3"),
        (wrong("tiny", SHORT, head="L9H0"), "no layer 9"),
        (opening("tiny", d_model=8), "--d-model shapes attnviz's own attention: add --model"),
        (opening("tiny", revision="main"), "--revision is for models on the Hub"),
        (wrong("tiny", SHORT, tokenizer=str.split), "tokenizer is for a loaded model"),
        (wrong("tiny", "word " * 9999), "shorten it, or add --truncate to cut it there"),
        (opening("mha", d_model=7, heads=2), "does not divide into 2 heads"),
        (wrong(None, SHORT), "got a NoneType"),
        (
            wrong(torch.nn.Linear(2, 3), SHORT),
            "loaded transformers model, got a Linear: give it its own inputs, as in .*capture",
        ),
        (lambda model, _: attnviz.capture(model, SHORT), "needs its tokenizer .* give tokenizer="),
        (
            lambda model, tokenizer: attnviz.capture(model, "cat " * 40, tokenizer=tokenizer),
            "42 tokens, 'LlamaForCausalLM' takes at most 31",
        ),
    ],
)
def test_what_cannot_be_done(call, said, model, tokenizer):
    with pytest.raises(UsageError, match=said):
        call(model, tokenizer)


def test_regions_are_those_of_the_spans():
    maps = attnviz.capture(
        "tiny", "The cat sat on the mat.", spans={"who": (1, 3), "on": "the mat"}
    )
    assert maps.report.record.keys.regions.count("who") == 2
    assert {"who", "on"} <= {*maps.report.regions.keys}


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def by_hand(query, key, value):
    """The formula in loops, one query at a time."""
    output, weights = [], []
    for q in query:
        powers = [math.exp(sum(q * k) / math.sqrt(len(q))) for k in key]
        row = [power / sum(powers) for power in powers]
        weights.append(row)
        output.append(sum(share * v for share, v in zip(row, value, strict=True)))
    return np.array(output), np.array(weights)


def test_the_formula():
    query, key, value = random(2, 5), random(3, 5, seed=1), random(3, 7, seed=2)
    result = attnviz.scaled_dot_product_attention(query, key, value)
    output, weights = result
    assert np.allclose(output, by_hand(query, key, value)[0])
    assert np.allclose(weights, by_hand(query, key, value)[1])
    assert (result.output is output, result.weights is weights) == (True, True)


def test_tensors_stay_tensors_and_keep_their_gradients():
    query = torch.randn(2, 3, 5, 7, requires_grad=True)
    output, weights = attnviz.scaled_dot_product_attention(query, query, query)
    assert weights.shape == (2, 3, 5, 5)
    output.sum().backward()
    assert query.grad is not None


def test_mask_and_scale():
    x = random(3, 5)
    causal = attnviz.scaled_dot_product_attention(x, x, x, np.tri(3, dtype=bool))
    assert np.array_equal(np.triu(causal.weights, 1), np.zeros((3, 3)))
    even = attnviz.scaled_dot_product_attention(x, x, x, scale=0.0)
    assert np.allclose(even.weights, 1 / 3)
    with pytest.raises(ValueError, match="a mask is boolean"):
        attnviz.scaled_dot_product_attention(x, x, x, np.ones((3, 3), dtype=int))


def test_it_draws_its_weights_and_writes_what_cannot_be_drawn():
    x = random(2, 3, 5)
    result = attnviz.scaled_dot_product_attention(x, x, x)
    assert drawn(result).startswith("scaled dot-product attention · given as a float64 array")
    assert "H1 · " in drawn(result)
    assert result._repr_html_().startswith("<iframe")
    named = result.heatmap("look at this")
    assert named.tokens == ("look", "at", "this")
    assert np.array_equal(np.asarray(named), result.weights)
    for shape in ((0, 5), (2, 0, 5)):
        x = np.zeros(shape)
        result = attnviz.scaled_dot_product_attention(x, x, x)
        assert drawn(result).startswith("AttentionResult(output=")
        assert result._repr_html_() is None


def test_of_a_batch_it_draws_the_first_and_says_so():
    x = torch.randn(2, 3, 5, 7)
    result = attnviz.scaled_dot_product_attention(x, x, x)
    assert "text 0 of 2 · given as a float32 array · 3 heads" in drawn(result)
    with pytest.raises(ValueError, match="several texts"):
        result.heatmap()


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (((2, 3), (2, 4), (2, 3)), "of one width, the last axis; got query (2, 3), key (2, 4)"),
        (((2, 3), (2, 3), (3, 3)), "each key has its value"),
        (((3,), (2, 3), (2, 3)), "at least two axes (token, width)"),
        (((4, 2, 3), (3, 2, 3), (2, 3)), "leading axes do not broadcast together"),
        (((2, 3), (2, 3), (2, 3), (5, 5)), "mask of (5, 5) does not broadcast over weights (2, 2)"),
    ],
)
@pytest.mark.parametrize("ones", [np.ones, torch.ones])
def test_shapes_that_do_not_fit(shapes, said, ones):
    with pytest.raises(UsageError, match=re.escape(said)):
        attnviz.scaled_dot_product_attention(*map(ones, shapes))
