"""Cards: a table with sources, found by the names that people type; what they hold, how fast."""

import math
import re
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.count.params.cards import Gpu, all_cards, find_cards, fit_cards
from attnviz.count.params.cost import count_cost
from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.request import complete_gpu, spec_from_options
from attnviz.errors import UsageError
from attnviz.models.shapes import configs_directory

GIB = 2**30
CARD = Gpu(
    "made up", (), "nobody", 2020, 24 * 1024, 1e12, {"float32": 5e13, "float16": 1e14}, "a test"
)
EXPERTS = st.sampled_from([{}, {"experts": 6, "active_experts": 2}])
DTYPES = st.sampled_from(["float32", "bfloat16", "int8", "int4"])
FILES = sorted((configs_directory() / "gpus").glob("*.toml"))
FIELDS = {"name", "aliases", "year", "memory_mib", "bandwidth", "flops", "source"}


def fitted(cost, memory_mib=24 * 1024, **more):
    options = {"chunk": 2048, "overhead": GIB, **more}
    (fit,) = fit_cards(cost, [CARD._replace(memory_mib=memory_mib)], **options)
    return fit


def named(name):
    return find_spec(name, shapes_first=True).spec


def test_llama_2_7b_on_24_gib_by_hand():
    d, layers, f, vocab, tokens, batch = 4096, 32, 11008, 32000, 1024, 4
    layer = 4 * d * d + 3 * d * f + 2 * d
    parameters = layers * layer + 2 * vocab * d + d
    cache = batch * tokens * 2 * layers * d * 2
    fit = fitted(count_cost(named("llama-2-7b"), tokens=tokens, batch=batch, dtype="float16"))
    assert fit.need.weights == 2 * parameters == 13_476_831_232
    assert fit.need.cache == cache == 2 * GIB
    assert fit.need.step == 2048
    assert fit.need.activations == 2 * 2048 * (2 * d + 3 * f)
    assert fit.need.logits == 4 * batch * vocab
    assert fit.need.total == sum((2 * parameters, cache, fit.need.activations, GIB, 512_000))
    assert fit.free == 24 * GIB - fit.need.total
    assert fit.fits
    assert fit.cards == 1

    room = 24 * GIB - 2 * parameters - fit.need.activations - GIB
    assert fit.batch == room // (cache // batch + 4 * vocab)
    assert fit.context == (room - 512_000) // (cache // tokens)

    read = 2 * (parameters - vocab * d) + cache
    operations = batch * (2 * (layers * (layer - 2 * d) + vocab * d) + 4 * tokens * d * layers)
    assert fit.decode.read == read
    assert fit.decode.operations == operations
    assert fit.decode.bound == "bandwidth"
    assert fit.decode.seconds == pytest.approx(read / 1e12)
    assert fit.decode.each == pytest.approx(1e12 / read)
    assert fit.decode.tokens_per_second == pytest.approx(4e12 / read)

    pairs = batch * tokens**2 // 2 * 4 * d * layers
    prompts = batch * tokens * 2 * layers * (layer - 2 * d) + batch * 2 * vocab * d + pairs
    assert fit.prefill == pytest.approx(prompts / 1e14)


def test_experts_are_read_once_if_a_token_was_sent_to_them():
    """Mixtral: 8 experts, 2 of them active; B tokens use 8 (1 − (3/4)^B) with even routing."""
    spec = named("mixtral-8x7b")
    expert, layers = 3 * 4096 * 14336, 32
    one, two, many = (
        fitted(count_cost(spec, tokens=1, batch=batch), 10**6).decode for batch in (1, 2, 500)
    )
    token = 2 * 8 * 128 * 2 * layers
    assert two.read - one.read == round(2 * layers * expert * 8 * (0.75 - 0.75**2)) + token
    rest = 2 * (46_702_792_704 - 32000 * 4096)  # the published count, without the token table
    assert many.read == rest + 500 * token
    assert one.read == rest - 2 * layers * 6 * expert + token


def test_a_source_is_read_as_cache_and_the_encoder_not_at_all():
    """T5-small: decoder weights less cross keys and values, with the tied token table."""
    spec = named("t5-small")
    cost = count_cost(spec, tokens=7, source_tokens=11, dtype="float32")
    decode = fitted(cost).decode
    d, f, layers, vocab = 512, 2048, 6, 32128
    layer = 4 * d * d + 2 * d * d + 2 * d * f + 3 * d
    weights = layers * layer + d + 32 * 8 + vocab * d
    assert decode.read == 4 * (weights + layers * 2 * d * (7 + 11))


def test_tokens_that_a_window_hides_are_kept_but_not_read():
    spec = spec_from_options(d_model=64, heads=4, window=5)
    attention = spec.stacks[0].groups[0].layer.attentions[0]._replace(keeps_all=True)
    layer = spec.stacks[0].groups[0].layer._replace(attentions=(attention,))
    group = spec.stacks[0].groups[0]._replace(layer=layer)
    kept = spec._replace(stacks=(spec.stacks[0]._replace(groups=(group,)),))
    short, long = (fitted(count_cost(kept, tokens=tokens)) for tokens in (5, 500))
    assert long.need.cache == 100 * short.need.cache
    assert long.decode.read == short.decode.read


def test_an_encoder_takes_its_batch_at_once_and_writes_nothing():
    fit = fitted(count_cost(named("bert-base"), tokens=512, batch=32))
    assert fit.need.step == 32 * 512
    assert (fit.need.cache, fit.need.logits) == (0, 0)
    assert (fit.decode, fit.full) == (None, None)


def test_too_large_for_one_card():
    fit = fitted(count_cost(named("llama-2-70b"), tokens=4096))
    each = 24 * GIB - fit.need.activations - fit.need.logits - GIB
    assert fit.cards == math.ceil((fit.need.weights + fit.need.cache) / each)
    assert (fit.batch, fit.context, fit.decode, fit.full) == (0, 0, None, None)
    assert fitted(count_cost(named("llama-2-70b")), overhead=24 * GIB).cards is None


SHAPES = st.fixed_dictionaries(
    {
        "heads": st.sampled_from([4, 8]),
        "kv_heads": st.sampled_from([1, 2, 4]),
        "d_model": st.sampled_from([64, 256]),
        "layers": st.integers(1, 5),
        "d_ff": st.sampled_from([128, 1000]),
        "vocab": st.sampled_from([100, 5000]),
    },
    optional={"window": st.integers(1, 300), "tied": st.booleans()},
)


@settings(deadline=None, max_examples=25)
@given(SHAPES, EXPERTS, DTYPES, st.integers(1, 3000), st.integers(1, 40), st.integers(20, 400))
def test_one_more_never_fits_and_more_memory_never_holds_less(
    shape, experts, dtype, tokens, batch, mib
):
    spec = spec_from_options(**shape, **experts)
    small = {"chunk": 64, "overhead": 2**20}

    def at(tokens, batch, memory=mib):
        cost = count_cost(spec, tokens=tokens, batch=batch, dtype=dtype)
        return fitted(cost, memory, **small)

    fit = at(tokens, batch)
    assert fit.fits == (fit.batch >= batch)
    assert fit.fits == (fit.context is None or fit.context >= tokens)
    assert fit.batch == 0 or at(tokens, fit.batch).fits
    assert not at(tokens, fit.batch + 1).fits
    if fit.context is not None:
        assert fit.context == 0 or at(fit.context, batch).fits
        assert not at(fit.context + 1, batch).fits
    else:
        assert at(10**6, batch).fits
    more = at(tokens, batch, mib + 100)
    assert (more.batch or 0) >= fit.batch
    assert more.context is None or (fit.context is not None and more.context >= fit.context)
    assert fit.need.total <= at(tokens + 1, batch).need.total
    if more.decode is not None:
        longer, wider = at(tokens + 1, batch, 10**6).decode, at(tokens, batch + 1, 10**6).decode
        assert longer.each <= more.decode.each
        assert wider.each <= more.decode.each
        assert wider.tokens_per_second >= more.decode.tokens_per_second * (1 - 1e-9)


ENTRIES = [
    (path.stem, entry)
    for path in FILES
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["card"]
]


@pytest.mark.parametrize(("file", "entry"), ENTRIES, ids=[entry["name"] for _, entry in ENTRIES])
def test_an_entry_is_complete(file, entry):
    assert set(entry) == FIELDS
    assert 2017 <= entry["year"] <= 2026
    assert entry["source"].startswith({"nvidia": "NVIDIA ", "amd": "AMD "}[file])
    assert re.search("datasheet|data sheet|whitepaper", entry["source"])
    flops = entry["flops"]
    assert {"float32", "float16"} <= set(flops)
    assert set(flops) <= {"float32", "bfloat16", "float16", "float8", "int8"}
    assert 1e12 < flops["float32"] < flops["float16"] < 1e16
    assert flops.get("bfloat16", flops["float16"]) == flops["float16"]
    for narrow in ("float8", "int8"):  # dense rates double with each halving, at least nearly
        assert flops.get(narrow, flops["float16"]) >= flops["float16"]
    assert 1e11 < entry["bandwidth"] < 1e13
    # A program gets a little less than the advertised memory, in GiB.
    advertised = int(re.findall(r"(\d+) GB", entry["source"])[-1])
    assert 0.9 * advertised <= entry["memory_mib"] / 1024 <= advertised


def test_no_name_stands_twice():
    names = [card.name for card in all_cards()]
    assert len(names) == len(set(names)) == len(ENTRIES) >= 15


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["rtx4090"], ["RTX 4090"]),
        (["nvidia-l4"], ["L4"]),
        (["4090, a10g"], ["RTX 4090", "A10G"]),
        (["T4", "L4", "t4"], ["T4", "L4"]),
        (["V100"], ["V100-16", "V100-32"]),
        (["mi250x"], ["MI250X die"]),
    ],
)
def test_the_names_that_people_type(typed, found):
    assert [card.name for card in find_cards(typed)] == found


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("rtx 4091", "no card 'rtx 4091'; did you mean 'RTX 4090'?"),
        ("abacus", "no card 'abacus'; --gpu all lists those that are known"),
    ],
)
def test_an_unknown_name(typed, line):
    with pytest.raises(UsageError, match=f"^{re.escape(line)}$"):
        find_cards([typed])


def test_completion():
    assert complete_gpu("h1") == ["H100 PCIe", "H100 SXM", "H100 NVL"]
    assert complete_gpu("al") == ["all"]


@pytest.mark.parametrize(
    ("card", "dtype", "rate"),
    [
        ("L4", "bfloat16", 121e12),
        ("RTX 4090", "float8", 330.3e12),  # floats are not multiplied as whole numbers
        ("RTX 4090", "int8", 660.6e12),
        ("A100-40", "float8", 312e12),  # widened
        ("V100-16", "int8", 125e12),
        ("T4", "float64", 8.1e12),
    ],
)
def test_the_rate_is_the_fastest_of_equal_or_wider_dtypes(card, dtype, rate):
    assert find_cards([card])[0].rate(dtype) == rate
