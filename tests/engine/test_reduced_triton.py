"""The Triton kernels give the sums of whole matrices in float64; here in Triton's interpreter."""

import importlib
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch

from attnviz.engine.reduced_torch import TorchLayer
from attnviz.errors import UsageError
from attnviz.inspect.patterns.measure import LayerSums
from attnviz.measures.reduced import summed_parts
from attnviz.measures.registry import OF_ONE_TEXT
from attnviz.measures.rows import Conditions, TextFacts, scores_of
from attnviz.models import memory
from attnviz.progress import Watch, watched
from attnviz.records import Tokens

from .kernel_cases import MASKS, TYPES, errors

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's NumPy


@pytest.fixture(scope="module")
def layers():
    """The module of the layer, whose kernels run on the processor.

    What is a kernel to be compiled, and what is run by the interpreter, is decided when triton is
    imported: so it is imported anew, all but its extension.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_INTERPRET", "1")
        own = ("attnviz.engine.sums_kernels", "attnviz.engine.reduced_triton")
        for name in [*sys.modules]:
            if name in own or (name.split(".")[0] == "triton" and "_C" not in name):
                patched.delitem(sys.modules, name)
        pytest.importorskip("triton")
        yield importlib.import_module("attnviz.engine.reduced_triton")


@pytest.fixture(autouse=True)
def trusted(layers, monkeypatch):
    """Let each test begin as a process does that has refused no kernel."""
    monkeypatch.setattr(layers, "_refused", [])
    monkeypatch.setattr(layers, "_trusted", set())
    monkeypatch.setattr(layers, "_too_large", set())


def case(layers, mask="causal", dtype="float32", **options):
    """Assert that all that the layer says equals sums over a matrix in float64."""
    run = layers.KernelRun(*2 * [(layers.Tile(16, 16, 4, 1),)])
    found, apart = errors(partial(layers.TritonLayer, run=run), mask, dtype, **options)
    assert not layers._refused
    assert isinstance(found.total, torch.Tensor)
    assert layers._trusted, "the first layer is compared with blocks"
    for name, error in apart.items():
        assert error < (1e-5 if dtype == "float32" else 2e-5), (name, error)


QUICK = {
    **{mask: {"mask": mask} for mask in MASKS},
    "float16": {"dtype": "float16", "bucket": 17},
    "bfloat16": {"dtype": "bfloat16", "sink": True, "mask": "window"},
    "sinks": {"sink": True},
    "cap": {"cap": 1.5, "dim": 24},
    "bias": {"bias": True, "heads": 4, "shared": 2},
    "one token": {"queries": 1, "bucket": None},
    "one head": {"heads": 1, "dim": 40, "queries": 41},
    "more keys than queries": {"queries": 13, "keys": 53, "mask": "full"},
    "large scores": {"strength": 40.0, "dtype": "float16"},
}


@pytest.mark.parametrize("given", QUICK.values(), ids=QUICK)
def test_the_sums_are_those_of_the_matrix(layers, given):
    case(layers, **given)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(120))
def test_random_layers(layers, seed):
    draw = np.random.default_rng(1000 + seed)
    heads = int(draw.choice([1, 2, 4, 6]))
    case(
        layers,
        MASKS[seed % len(MASKS)],
        list(TYPES)[seed // 6 % 3],
        queries=int(draw.choice([1, 2, 3, 16, 17, 31, 47, 61])),
        heads=heads,
        shared=int(draw.choice([number for number in (1, 2, 3) if heads % number == 0])),
        dim=int(draw.choice([16, 32, 33, 64, 80, 96, 128, 256])),
        bucket=[None, 16, 17, 23, 40][int(draw.integers(5))],
        sink=bool(draw.random() < 0.4),
        cap=float(draw.uniform(1, 5)) if draw.random() < 0.3 else None,
        bias=bool(draw.random() < 0.3),
        strength=float(draw.choice([0.1, 2.0, 4.0])),
        seed=seed,
    )


def small_layer(layers, tokens=29):
    """The same layer by the kernels and by blocks, of four heads that share two keys."""
    draw = torch.Generator().manual_seed(3)
    query = torch.randn(4, tokens, 16, generator=draw)
    key = torch.randn(2, tokens, 16, generator=draw)
    rest = {"ranges": (np.zeros(tokens, int), np.arange(1, tokens + 1))}
    run = layers.KernelRun(*2 * [(layers.Tile(16, 16, 4, 1),)])
    return layers.TritonLayer(query, key, 0.3, **rest, run=run), TorchLayer(query, key, 0.3, **rest)


@pytest.mark.parametrize("causal", [True, False])
def test_scores_of_tensors_are_those_of_arrays(layers, causal, monkeypatch):
    """The values stay on the device up to the sum over rows, with equal tokens in nine orders."""

    def refuse(self, *given):
        raise TypeError("a tensor of a GPU is no array")

    monkeypatch.setattr(torch.Tensor, "__array__", refuse)
    ours, blocks = small_layer(layers)
    ids = np.random.default_rng(3).integers(5, 12, 29)
    texts = tuple("," if each == 7 else f"t{each}" for each in ids)
    tokens = Tokens(tuple(map(int, ids)), texts, tuple(place in (0, 19) for place in range(29)))
    text = TextFacts(tokens, tokens, Conditions("self", causal, ranked=True), shuffles=8)
    if not causal:
        ours.past = blocks.past = np.full(29, 29)
    scores = []
    for layer in (ours, blocks):
        sums = LayerSums(text)
        assert not sums.add_sums(layer, [0, 1, 2, 3]).any()
        found, one = sums.scores((0, 1, 2, 3)), LayerSums(text)
        one.add_sums(layer, [2])
        for name, given in one.scores((2,)).scores.items():
            assert np.allclose(given, found.scores[name][2], atol=1e-6, equal_nan=True), name
        even, _ = next(iter(sums._evens.values()))
        ((_, _, rows),) = summed_parts(text, layer, even, [0, 1, 2, 3])
        assert isinstance(rows.total, torch.Tensor) == (layer is ours)
        means = scores_of(rows, OF_ONE_TEXT)
        scores.append({**found.scores, **found.delimiters, **means})
        scores[-1] |= {f"{name} by chance": each for name, each in found.base.items()}
    assert scores[0].keys() == scores[1].keys()
    for name, given in scores[0].items():
        expected = scores[1][name]
        assert isinstance(given, np.ndarray), name
        assert np.allclose(given, expected, atol=1e-5, rtol=1e-5, equal_nan=True), name


@pytest.mark.parametrize("many", [62, 63, 150])
def test_many_columns_take_several_sweeps(layers, many):
    """A column of other numbers than zeros and ones has three parts, also where a sweep ends."""
    ours, blocks = small_layer(layers)
    draw = np.random.default_rng(many)
    columns = np.floor(2 * draw.random((29, many)))
    columns[:, 61::20] = draw.standard_normal(columns[:, 61::20].shape)
    columns[:, [3, many - 1]] = 0
    found, expected = ours.reduced(columns, 16), blocks.reduced(columns, 16)
    assert not layers._refused
    for given, wanted in zip(found, expected, strict=True):
        assert given is wanted is None or np.allclose(given, wanted, atol=1e-5, rtol=0)
    ready = layers.split_columns(columns, 16, 16)
    assert len(ready) == {62: 1, 63: 2, 150: 3}[many]
    assert max(parts.shape[1] for parts, _ in ready) == 64


def test_columns_that_do_not_fit_are_refused_in_words(layers, monkeypatch):
    ours, _ = small_layer(layers)
    monkeypatch.setattr(memory, "free_memory", lambda device: 8 * 4 * 29 * 11 - 1)
    ours.reduced(np.ones((29, 9)))
    with pytest.raises(UsageError, match=r"of 4 heads with 11 columns take 10\.21 kB"):
        ours.reduced(np.ones((29, 10)))
    assert not layers._refused


@pytest.mark.parametrize("kernel", ["sum_rows", "take_single"])
def test_all_answers_come_from_blocks_where_a_kernel_breaks_later(layers, kernel, monkeypatch):
    ours, blocks = small_layer(layers)
    notes = []
    monkeypatch.setattr(layers, "note_of_runs", notes.append)
    ours.reduced(np.ones((29, 1)), 16)
    monkeypatch.setattr(layers, kernel, None)
    hidden, keys = np.arange(29) == 0, np.arange(29)
    if kernel == "sum_rows":
        assert ours.strongest(3, hidden) == blocks.strongest(3, hidden)
    assert np.array_equal(ours.single(keys), blocks.single(keys))
    assert ours.strongest(3, hidden) == blocks.strongest(3, hidden)
    assert len(notes) == 1


def test_each_kind_of_sums_is_compared_once(layers, monkeypatch):
    own, compared = layers.TritonLayer._compare, []

    def compare(self, found, columns, *rest):
        compared.append(columns.shape[1])
        own(self, found, columns, *rest)

    monkeypatch.setattr(layers.TritonLayer, "_compare", compare)
    for many in (1, 3, 1, 3):
        small_layer(layers)[0].reduced(np.ones((29, many)))  # a run of its own
    assert compared == [2, 4], "with a column of ones"


def test_a_query_that_sees_no_key_has_no_weight(layers):
    ours, _ = small_layer(layers)
    ours.first = ours.first.copy()
    ours.first[20:23] = ours.past[20:23]
    found = ours.reduced(np.ones((29, 1)))
    assert not layers._refused
    for sums in (found.mixed, found.total, found.entropy, found.largest, found.signed):
        assert not sums[:, 20:23].any()
        assert sums[:, 23:].all()


def test_all_answers_about_small_buckets_come_from_blocks(layers):
    ours, blocks = small_layer(layers)
    found, expected = ours.reduced(np.ones((29, 1)), 8), blocks.reduced(np.ones((29, 1)), 8)
    assert np.array_equal(found.pooled, expected.pooled)
    keys = np.arange(29)
    assert np.array_equal(ours.single(keys), blocks.single(keys))
    assert not layers._refused


def test_keys_of_another_type_take_blocks(layers):
    ours, _ = small_layer(layers)
    key = ours._given_key.bfloat16()
    rest = {"ranges": (ours.first, ours.past), "run": ours._run}
    other = layers.TritonLayer(ours._asking, key, 0.3, **rest)
    assert isinstance(other.reduced(np.ones((29, 1))).total, np.ndarray)
    assert not layers._refused


def test_a_tile_that_does_not_fit_makes_room_for_a_smaller_one(layers):
    tried, tiles = [], [layers.Tile(16, keys, 4, 1) for keys in (128, 64, 32, 16)]

    def run(tile):
        tried.append(tile.keys)
        if tile.keys > 16:
            raise layers._UNFIT[-1]("too many registers")
        return int(tile.keys)

    ours, _ = small_layer(layers)
    assert [ours._fitting("rows", tiles, run) for _ in range(2)] == [16, 16]
    assert tried == [64, 32, 16, 16], "float32 has no room for the first; ptxas refuses a tile once"


@pytest.mark.parametrize("fault", ["another sum", "some rows", "another bucket", "no compiler"])
def test_blocks_take_over_with_a_note(layers, fault, monkeypatch):
    ours, blocks = small_layer(layers)
    notes = []
    monkeypatch.setattr(layers, "note_of_runs", notes.append)
    own = layers.TritonLayer._of_rows

    def broken(self, *given):
        if fault == "no compiler":
            raise RuntimeError("Failed to find C compiler.\nSet CC")
        found = own(self, *given)
        if fault == "another bucket":
            return found._replace(pooled=found.pooled[..., ::-1].copy())
        if fault == "some rows":  # between those that are compared with the blocks
            found.mixed[:, 8:14] += 0.01
            return found
        return found._replace(mixed=found.mixed + 0.01)

    monkeypatch.setattr(layers.TritonLayer, "_of_rows", broken)
    columns = np.ones((29, 1))
    for _ in range(2):
        found, expected = ours.reduced(columns, 16), blocks.reduced(columns, 16)
        for given, wanted in zip(found, expected, strict=True):
            assert given is wanted is None or np.array_equal(given, wanted)
    assert np.array_equal(ours.single(np.arange(29)), blocks.single(np.arange(29)))
    assert ours.strongest(3, np.arange(29) == 0) == blocks.strongest(3, np.arange(29) == 0)
    assert len(notes) == 1
    assert notes[0].startswith("attention is summed in blocks, which is slower: the kernel ")
    assert ("Failed to find C compiler.)" in notes[0]) == (fault == "no compiler")


def test_a_query_that_is_no_number_is_none_in_its_rows_alone(layers):
    ours, _ = small_layer(layers)
    ours._query[1, 1, 7] = torch.nan
    found = ours.reduced(np.ones((29, 1)), 16)
    assert not layers._refused
    lost = np.isnan(np.asarray(found.entropy))
    assert lost[3, 7]
    assert lost.sum() == 1
    assert np.isnan(found.pooled[3, 0]).any()
    assert not np.isnan(found.pooled[:3]).any()


def test_a_slow_first_call_is_mentioned_once(layers, monkeypatch):
    said = []
    watch = Watch()
    monkeypatch.setattr(watch, "aside", said.append)
    monkeypatch.setattr(layers, "_SLOW", 0.01)
    with watched(watch):
        for _ in range(2):
            with layers._mentioned("slow"):
                threading.Event().wait(0.3)
    assert said == ["compiling the kernel for this card, once"]


_COMPILE = '''
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnviz.engine import sums_kernels as kernels
from attnviz.engine.reduced_triton import EQUAL_TILES, TILES

WHOLE = {"first_ptr", "past_ptr", "sorted_ptr", "begin_ptr", "key_ptr"}


def compiled(kernel, number, tile, card, **fixed):
    """Compile a kernel without a card. number: the type of queries and keys."""
    names = [*kernel.arg_names]

    def kind(name):
        if name in fixed:
            return "constexpr"
        if name.endswith("_ptr"):
            of = {"q_ptr": number, "k_ptr": number, "c_ptr": "fp16"}
            return "*" + ("i32" if name in WHOLE else of.get(name, "fp32"))
        return "fp32" if name in ("scale", "cap") else "i32"

    options = {"num_warps": tile.warps, "num_stages": tile.stages, "maxnreg": tile.registers}
    given = {name: kind(name) for name in names}
    values = {(names.index(name),): value for name, value in fixed.items()}
    whole = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if name.endswith(("_ptr", "_head", "_step")) and name not in fixed
    }
    source = ASTSource(kernel, given, values, whole)
    made = triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)
    most = {80: 163, 86: 99, 90: 227}[card] * 1024
    assert made.asm["cubin"] and made.metadata.shared <= most, made.metadata.shared
    print(kernel.__name__, number, card, made.metadata.shared)


plain = {"b_ptr": None, "cap": None, "IN": "ieee", "D": 128, "WIDE": 128}
rows = plain | {
    "sink_ptr": None, "far_ptr": None, "ALIGNED": True, "LEFT": 0, "COLUMNS": 16, "OF_QUERIES": 2,
    "QUERIES": TILES[0].queries, "KEYS": TILES[0].keys,
}
compiled(kernels.sum_rows, "bf16", TILES[0], 90, **rows)
every = rows | {"LEFT": 1, "ALIGNED": False, "D": 80}
for name in ("sink_ptr", "far_ptr", "b_ptr", "cap"):
    del every[name]
compiled(kernels.sum_rows, "fp16", TILES[0], 90, **every)
compiled(kernels.sum_rows, "bf16", TILES[0], 80, **(rows | {"log_ptr": None, "pool_ptr": None}))
small = {"QUERIES": TILES[1].queries, "KEYS": TILES[1].keys}
compiled(kernels.sum_rows, "fp32", TILES[1], 90, **(rows | small | {"IN": "tf32x3"}))
compiled(kernels.sum_rows, "bf16", TILES[1], 90, **(rows | small | {"D": 256, "WIDE": 256}))
least = {"QUERIES": TILES[-1].queries, "KEYS": TILES[-1].keys, "D": 256, "WIDE": 256}
compiled(kernels.sum_rows, "fp32", TILES[-1], 86, **(rows | least | {"IN": "tf32x3"}))
for number, tile in (("bf16", EQUAL_TILES[0]), ("fp32", EQUAL_TILES[1])):
    size = {"QUERIES": tile.queries, "KEYS": tile.keys}
    precision = {"IN": "tf32x3" if number == "fp32" else "ieee"}
    compiled(kernels.sum_equal, number, tile, 90, **(plain | size | precision))
compiled(kernels.take_single, "bf16", EQUAL_TILES[0], 90, D=128, WIDE=128, QUERIES=32)
'''


@pytest.mark.long
def test_the_kernels_compile_for_a_card_that_is_not_there(layers, tmp_path, monkeypatch):
    """In another process: this one imported triton's interpreter."""
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    script = tmp_path / "compile_kernels.py"
    script.write_text(_COMPILE, encoding="utf-8")
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 9
