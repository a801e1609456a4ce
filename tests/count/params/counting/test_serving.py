"""What a card holds and how fast it can be, by hand, and as properties of many shapes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz.count.params.cards import Gpu
from attnviz.count.params.counting.cost import CostReport, count_cost
from attnviz.count.params.counting.serving import CardFit, fit_cards
from attnviz.count.params.find_spec import find_spec
from attnviz.count.params.shapes import spec_from_options
from attnviz.count.params.specs import ModelSpec

GIB = 2**30
CARD = Gpu(
    "made up", (), "nobody", 2020, 24 * 1024, 1e12, {"float32": 5e13, "float16": 1e14}, "a test"
)


def fitted(cost: CostReport, memory_mib: int = 24 * 1024, **more: Any) -> CardFit:
    options = {"chunk": 2048, "overhead": GIB, **more}
    (fit,) = fit_cards(cost, [CARD._replace(memory_mib=memory_mib)], **options)
    return fit


def named(name: str) -> ModelSpec:
    spec = find_spec(name, shapes_first=True).spec
    assert spec is not None
    return spec


def test_llama_2_7b_on_24_gib_by_hand() -> None:
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

    assert fit.decode is not None
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


def test_many_sequences_are_bound_by_compute() -> None:
    spec = spec_from_options(d_model=4096, heads=32, layers=2, d_ff=16384)
    assert (few := fitted(count_cost(spec, tokens=1, batch=1)).decode) is not None
    assert (many := fitted(count_cost(spec, tokens=1, batch=2000)).decode) is not None
    assert (few.bound, many.bound) == ("bandwidth", "compute")
    assert many.seconds == pytest.approx(many.operations / 1e14)


def test_experts_are_read_once_if_a_token_was_sent_to_them() -> None:
    """Mixtral: 8 experts, 2 of them active; B tokens use 8 (1 − (3/4)^B) with even routing."""
    spec = named("mixtral-8x7b")
    expert, layers = 3 * 4096 * 14336, 32
    one, two, many = (
        fitted(count_cost(spec, tokens=1, batch=batch), 10**6).decode for batch in (1, 2, 500)
    )
    assert one is not None
    assert two is not None
    assert many is not None
    token = 2 * 8 * 128 * 2 * layers
    assert two.read - one.read == round(2 * layers * expert * 8 * (0.75 - 0.75**2)) + token
    rest = 2 * (46_702_792_704 - 32000 * 4096)  # the published count, without the token table
    assert many.read == rest + 500 * token
    assert one.read == rest - 2 * layers * 6 * expert + token


def test_a_source_is_read_as_cache_and_the_encoder_not_at_all() -> None:
    """T5-small: decoder weights less cross keys and values, with the tied token table."""
    spec = named("t5-small")
    cost = count_cost(spec, tokens=7, source_tokens=11, dtype="float32")
    decode = fitted(cost).decode
    assert decode is not None
    d, f, layers, vocab = 512, 2048, 6, 32128
    layer = 4 * d * d + 2 * d * d + 2 * d * f + 3 * d
    weights = layers * layer + d + 32 * 8 + vocab * d
    assert decode.read == 4 * (weights + layers * 2 * d * (7 + 11))


def test_a_tied_table_is_read_once_and_an_untied_one_not() -> None:
    shape = {"d_model": 64, "heads": 4, "layers": 2, "d_ff": 128, "vocab": 1000}
    costs = [count_cost(spec_from_options(**shape, tied=tied), tokens=8) for tied in (True, False)]
    tied, untied = (fitted(cost).decode for cost in costs)
    assert tied is not None
    assert untied is not None
    assert tied.read == untied.read


def test_tokens_that_a_window_hides_are_kept_but_not_read() -> None:
    spec = spec_from_options(d_model=64, heads=4, window=5)
    attention = spec.stacks[0].groups[0].layer.attentions[0]._replace(keeps_all=True)
    layer = spec.stacks[0].groups[0].layer._replace(attentions=(attention,))
    group = spec.stacks[0].groups[0]._replace(layer=layer)
    kept = spec._replace(stacks=(spec.stacks[0]._replace(groups=(group,)),))
    short, long = (fitted(count_cost(kept, tokens=tokens)) for tokens in (5, 500))
    assert long.need.cache == 100 * short.need.cache
    assert long.decode is not None
    assert short.decode is not None
    assert long.decode.read == short.decode.read


def test_an_encoder_takes_its_batch_at_once_and_writes_nothing() -> None:
    fit = fitted(count_cost(named("bert-base"), tokens=512, batch=32))
    assert fit.need.step == 32 * 512
    assert (fit.need.cache, fit.need.logits) == (0, 0)
    assert (fit.decode, fit.full) == (None, None)


def test_a_state_sets_no_limit_to_the_context() -> None:
    fit = fitted(count_cost(spec_from_options(d_model=64, heads=4, linear=True)))
    assert fit.context is None
    assert fit.batch


def test_too_large_for_one_card() -> None:
    fit = fitted(count_cost(named("llama-2-70b"), tokens=4096))
    each = 24 * GIB - fit.need.activations - fit.need.logits - GIB
    assert fit.cards == math.ceil((fit.need.weights + fit.need.cache) / each)
    assert (fit.batch, fit.context, fit.decode, fit.full) == (0, 0, None, None)
    assert fitted(count_cost(named("llama-2-70b")), overhead=24 * GIB).cards is None


def test_a_batch_that_does_not_fit_leaves_the_bound_of_the_largest_that_does() -> None:
    fit = fitted(count_cost(named("llama-2-7b"), tokens=4096, batch=8))
    assert fit.batch == 5
    assert fit.decode is None
    assert fit.full is not None
    assert fit.full == fitted(count_cost(named("llama-2-7b"), tokens=4096, batch=5)).decode


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
EXPERTS = st.sampled_from([{}, {"experts": 6, "active_experts": 2}])
DTYPES = st.sampled_from(["float32", "bfloat16", "int8", "int4"])


@settings(deadline=None, max_examples=25)
@given(SHAPES, EXPERTS, DTYPES, st.integers(1, 3000), st.integers(1, 40), st.integers(20, 400))
def test_one_more_never_fits_and_more_memory_never_holds_less(
    shape: dict[str, Any], experts: dict[str, Any], dtype: str, tokens: int, batch: int, mib: int
) -> None:
    spec = spec_from_options(**shape, **experts)
    small = {"chunk": 64, "overhead": 2**20}

    def at(tokens: int, batch: int, memory: int = mib) -> CardFit:
        cost = count_cost(spec, tokens=tokens, batch=batch, dtype=dtype)
        return fitted(cost, memory, **small)

    fit = at(tokens, batch)
    assert fit.batch is not None
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
        assert longer is not None
        assert wider is not None
        assert longer.each <= more.decode.each
        assert wider.each <= more.decode.each
        assert wider.tokens_per_second >= more.decode.tokens_per_second * (1 - 1e-9)
