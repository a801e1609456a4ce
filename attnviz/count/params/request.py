"""The options of ``params``: the sizes of an architecture, how it runs, what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, cast

from attnviz.count.params import specs
from attnviz.errors import UsageError
from attnviz.models.shapes import nearest
from attnviz.options import Options, flag, option, read_size


class NamedModel(NamedTuple):
    """The name of a model to be counted, with how to find it.

    shapes_first: whether a bare name means a built-in model configuration even if it is a hub id as
        well. loaded: the model itself, if Python code has loaded it.
    """

    name: str
    shapes_first: bool = False
    loaded: Any = None


WHAT_IF = ("kv_heads",)
"""The options of a shape that can also be compared for a named model: what if it had fewer?"""

Dtype = Literal["auto", "float32", "float16", "bfloat16", "float8", "int8", "int4"]


@dataclass(frozen=True)
class _Attention(Options, panel="Shape: attention"):
    """The options for the attention of an architecture; here and below None means not given."""

    d_model: int | None = option("D", "Model width.")
    heads: int | None = option("H", "Number of query heads.")
    kv_heads: int | None = option("K", "Number of key/value heads (default: H).")
    head_dim: int | None = option("N", "Head dimension (default: D / H).")
    v_head_dim: int | None = option("N", "Dimension of a head's values (default: head-dim).")
    bias: bool | None = option(
        "", "Biases in all linear layers (default: none).", name="--bias/--no-bias"
    )
    window: int | None = option("N", "Sliding window, in tokens (default: none).")
    linear: bool = flag("Linear attention, with a fixed-size state.")


@dataclass(frozen=True)
class _Latent(Options, panel="Shape: latent attention"):
    kv_lora: int | None = option("N", "Latent dimension of keys and values.")
    q_lora: int | None = option("N", "Latent dimension of queries (default: none).")
    rope_dim: int | None = option("N", "Rotary (RoPE) dimensions per head.")
    nope_dim: int | None = option("N", "Head dimensions without RoPE.")


@dataclass(frozen=True)
class _FeedForward(Options, panel="Shape: MLP (feed-forward)"):
    d_ff: int | None = option("F", "Hidden dimension of the MLP (feed-forward; default: none).")
    ffn: str | None = option("KIND", "Activation: relu, gelu (default), swiglu or geglu.")
    experts: int | None = option("N", "Number of experts in each layer.")
    active_experts: int | None = option("N", "Number of experts that each token is routed to.")
    shared_experts: int | None = option(
        "N", "Number of experts applied to every token (default: 0)."
    )
    d_expert: int | None = option("F", "Hidden dimension of one expert.")


@dataclass(frozen=True)
class _Rest(Options, panel="Shape: other"):
    layers: int | None = option("L", "Number of layers (default: 1).")
    vocab: int | None = option("N", "Vocabulary size (default: none).")
    tied: bool | None = option(
        "", "Tie the LM head to the embeddings (default: tied).", name="--tied/--untied"
    )
    norm: str | None = option("KIND", "Type of norm: layernorm or rmsnorm (default: none).")
    positions: str | None = option("KIND", "Position embedding: learned, rotary or none (default).")
    max_positions: int | None = option("N", "Maximum sequence length.")


@dataclass(frozen=True)
class ShapeOptions(_Rest, _FeedForward, _Latent, _Attention):
    """All options of an architecture; only learned ``positions`` are a table, with parameters."""

    d_model: int = 0
    heads: int = 0
    bias: bool = False


@dataclass(frozen=True)
class Running(Options, panel="Inference"):
    """The options for the lengths, dtypes and memory with which a model runs."""

    tokens: int | None = option(
        "N",
        "Sequence length (default: 2048, or the model's maximum if less).",
        brief="Sequence length, such as 32k.",
    )
    source_tokens: int | None = option(
        "N", "Length of an encoder's input (default: same as --tokens)."
    )
    batch: int = option("B", "Batch size.", 1)
    dtype: Dtype = option(
        "DTYPE",
        "Dtype of the weights: auto (as stored or configured, else bfloat16), float32, float16, "
        "bfloat16, float8, int8 or int4.",
        "auto",
        brief="Dtype of the weights, such as bfloat16 or int4.",
    )
    cache_dtype: Dtype = option(
        "DTYPE",
        "Dtype of keys and values: auto (what the config says, else that of the weights; "
        "bfloat16 for int8, int4 and float8 files).",
        "auto",
    )
    memory: str | None = option(
        "SIZE",
        "Check whether the model fits in this much memory, such as 24GB (1 GB = 10⁹ bytes) or "
        "24GiB (1 GiB = 2³⁰ bytes).",
        brief="Check whether it fits in SIZE, such as 24GB or 24GiB.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts(tokens=self.tokens, source_tokens=self.source_tokens, batch=self.batch)


def complete_gpu(incomplete: str) -> list[str]:
    """Return the GPU names that begin with ``incomplete``, in upper or lower case."""
    from attnviz.count.params.cards import all_cards  # only when the shell asks

    names = ("all", *(card.name for card in all_cards()))
    return [name for name in names if name.lower().startswith(incomplete.lower())]


@dataclass(frozen=True)
class Serving(Options, panel="Serving on a GPU"):
    """The options for serving on GPUs: which ones, and what takes memory besides the model."""

    gpu: tuple[str, ...] = option(
        "NAMES",
        "GPU names separated by commas (H100 or L4,A10G), or “all”: check which of them the model "
        "fits on, with an upper bound on its speed there; may be repeated.",
        (),
        autocompletion=complete_gpu,
        brief="Check which GPUs it fits on, such as L4,A10G or all.",
    )
    chunk: int = option("N", "With --gpu: prefill chunk size, in tokens.", 2048)
    overhead: str = option(
        "SIZE", "With --gpu: memory for the driver, kernels and the allocator.", "1GiB"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu:
            _check_counts(chunk=self.chunk)
            read_size(self.overhead, "--overhead", 0)
        elif (self.chunk, self.overhead) != (2048, "1GiB"):
            raise UsageError("--chunk and --overhead say how --gpu counts: give --gpu too")


@dataclass(frozen=True)
class _View(Options, panel="View"):
    compare: tuple[str, ...] = option(
        "OPTION=A,B,…",
        "Compare values of an option, such as heads=1,2,4 or tokens=1024,4096; with several "
        "options, all combinations.",
        (),
        brief="Compare values: heads=1,2,4 or tokens=1k,4k.",
    )
    formula: bool = flag("Show each line's arithmetic.")
    per_layer: bool = flag("Break the counts down by kind of layer.")


@dataclass(frozen=True)
class _Hub(Options, panel="Loading"):
    revision: str | None = option("REVISION", "Branch, tag or commit on the Hub.")
    offline: bool = flag("Use local directories and the cache only.")


@dataclass(frozen=True)
class ParamsRequest(_Attention, _Latent, _FeedForward, _Rest, Running, Serving, _View, _Hub):
    """All options of ``attnviz params``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpu and self.memory is not None:
            raise UsageError("--gpu and --memory both say where it should fit: give one of the two")

    @property
    def shape(self) -> dict[str, Any]:
        """Return the given options that describe an architecture."""
        values = {name: getattr(self, name) for name in SHAPE}
        values["linear"] = self.linear or None
        return {name: value for name, value in values.items() if value is not None}

    @property
    def names_a_shape(self) -> bool:
        """Return True if an option, or a compared one, describes an architecture."""
        compared = (name.partition("=")[0].strip().removeprefix("--") for name in self.compare)
        return bool(self.shape or {name.replace("-", "_") for name in compared} & {*SHAPE})

    @property
    def running(self) -> Running:
        return Running(**{name: getattr(self, name) for name in RUNNING})


SHAPE = tuple(field.name for field in fields(ShapeOptions))
RUNNING = tuple(field.name for field in fields(Running))
"""The names of the options that describe how a shape runs."""


def _check_counts(**counts: int | None) -> None:
    """Raise UsageError for an option's value below 1, or one that is too large to be meant."""
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"{_typed(name)} must be 1 or more, not {value}")
        check_size(name, value)


def check_size(name: str, value: object) -> None:
    """Raise UsageError if an option's value is too large to be a real size."""
    if isinstance(value, int) and value > specs.MOST:
        raise UsageError(
            f"{_typed(name)} is more than {specs.MOST:,}: is this the number you meant?"
        )


def parse_choices(text: str) -> tuple[str, tuple[str, ...]]:
    """Split ``kv-heads=32,8,1`` into the option's name and its values, as strings.

    Raises UsageError if the name is missing or there are not at least two different values.
    """
    name, equals, listed = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in listed.split(",") if value.strip()))
    if not equals or not name.strip() or not values:
        raise UsageError(
            f"cannot read --compare {text!r}: expected OPTION=VALUE,VALUE,… such as heads=1,2,4,8"
        )
    if len(values) < 2:
        raise UsageError(
            f"--compare {text} has one value: expected at least two, such as "
            f"{name.strip()}={values[0]},…"
        )
    return name.strip().removeprefix("--").replace("_", "-"), values


# How the options of a shape fit together ------------------------------------------------------

_CHOICES = {
    "ffn": ("relu", "gelu", "swiglu", "geglu"),
    "norm": ("layernorm", "rmsnorm"),
    "positions": ("learned", "rotary", "none"),
}
_GATED = ("swiglu", "geglu")
_SWITCHES = ("bias", "tied", "linear")
_MAY_BE_ZERO = ("rope_dim", "shared_experts")
_NEEDS = {
    "ffn": ("d_ff", "d_expert"),
    "tied": ("vocab",),
    **dict.fromkeys(("active_experts", "shared_experts", "d_expert"), ("experts",)),
    **dict.fromkeys(("q_lora", "rope_dim", "nope_dim"), ("kv_lora",)),
}
"""Options that have an effect only together with one of the others."""

_EXCLUDES = (
    ("kv_lora", "kv_heads", "all heads are rebuilt from one latent vector"),
    ("kv_lora", "head_dim", "the head dimension is --nope-dim + --rope-dim"),
    ("linear", "window", "linear attention keeps a state and no tokens"),
    ("linear", "kv_lora", "linear attention keeps a state and no tokens"),
    ("d_ff", "d_expert", "every layer is a mixture of experts"),
)
_MOST_SHOWN = 12
_LARGEST_TRIED = 4096


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def check_options(given: Mapping[str, Any]) -> None:
    """Raise UsageError if options break a rule. given: those of an architecture, by name."""
    for name, value in given.items():
        if name not in SHAPE:
            raise UsageError(f"no option {name!r}{nearest(name, SHAPE)}")
        if wanted := _wanted(name, value):
            raise UsageError(f"{_typed(name)} must be {wanted}")
    for name in ("d_model", "heads"):
        if name not in given:
            raise UsageError(f"{_typed(name)} is missing: a shape needs --d-model and --heads")
    for name, partners in _NEEDS.items():
        if name in given and not given.keys() & {*partners}:
            wanted = " or ".join(map(_typed, partners))
            raise UsageError(f"{_typed(name)} needs {wanted} as well")
    for name, other, why in _EXCLUDES:
        if given.get(name) and other in given:
            raise UsageError(f"{_typed(name)} and {_typed(other)} exclude each other: {why}")
    for broken in _broken(given):
        raise UsageError(broken)


def _wanted(name: str, value: object) -> str:
    """Return what was expected in place of an option's value; empty if it is valid."""
    least = 0 if name in _MAY_BE_ZERO else 1
    if name in _SWITCHES:
        return "" if isinstance(value, bool) else f"true or false, not {value!r}"
    if name in _CHOICES:
        known = _CHOICES[name]
        return "" if value in known else f"one of {', '.join(known)}, not {value!r}"
    if not isinstance(value, int) or isinstance(value, bool):
        return f"a whole number, not {value!r}"
    return "" if value >= least else f"{least} or more, not {value}"


def _broken(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the rules about several options that these break."""
    d_model, heads, experts = given["d_model"], given["heads"], given.get("experts")
    active, kv_heads = given.get("active_experts"), given.get("kv_heads", heads)
    if given.get("positions") == "learned" and "max_positions" not in given:
        yield "--positions learned needs --max-positions, the rows of the table"
    if "kv_lora" in given and not {"rope_dim", "nope_dim"} <= given.keys():
        yield "--kv-lora needs --rope-dim and --nope-dim, the two parts of the head dimension"
    if experts and active is None:
        yield "--experts needs --active-experts, those that a token passes through"
    if experts and not given.keys() & {"d_expert", "d_ff"}:
        yield "--experts needs --d-expert, the hidden dimension of one expert"
    if experts and active > experts:
        yield f"--active-experts {active} is more than there are: --experts {experts}"
    if d_model % heads and not given.keys() & {"head_dim", "kv_lora"}:
        yield (
            f"--heads {heads} does not divide --d-model {d_model}: {_divisors(d_model, heads)} "
            f"do; or give the head dimension with --head-dim, which lifts the rule"
        )
    if heads % kv_heads:
        divisors = _divisors(heads, kv_heads)
        yield f"--kv-heads {kv_heads} does not divide --heads {heads}: {divisors} do"


def _divisors(number: int, wanted: int) -> str:
    """Return the divisors of ``number`` as a string; of many only those nearest to ``wanted``."""
    divisors = [size for size in range(1, min(number, _LARGEST_TRIED) + 1) if number % size == 0]
    nearest_first = sorted(divisors, key=lambda size: abs(size - wanted))
    return ", ".join(map(str, sorted(nearest_first[:_MOST_SHOWN])))


# The architecture that they describe ----------------------------------------------------------


def spec_from_options(*, name: str = "", **options: object) -> specs.ModelSpec:
    """Return the spec of the architecture that options describe; None means not given.

    Raises UsageError for invalid numbers, heads that do not divide, options that contradict each
    other or lack their partner, and an unknown name.
    """
    given = {key: value for key, value in options.items() if value is not None}
    check_options(given)
    shape = ShapeOptions(**cast("dict[str, Any]", given))
    width, tables, head = shape.d_model, list[specs.Part](), None
    if shape.vocab is not None:
        tables.append(specs.LookupTable("token embedding", shape.vocab, width))
        head = specs.Dense("head", width, shape.vocab, tied=shape.tied is not False)
    if shape.positions == "learned" and shape.max_positions is not None:
        tables.append(specs.LookupTable("position embedding", shape.max_positions, width))
    feed_forward, shift = _feed_forward(shape), shape.norm == "layernorm"
    labels = ["attention norm", *["feed-forward norm"] * (feed_forward is not None), "final norm"]
    norms = [specs.Norm(label, width, shift=shift) for label in labels if shape.norm is not None]
    layer = specs.LayerSpec((_attention(shape),), feed_forward, tuple(norms[:-1]))
    stack = specs.StackSpec(
        name="decoder",
        groups=(specs.LayerGroup(layer, shape.layers or 1),),
        embeddings=tuple(tables),
        norms=tuple(norms[-1:]) if shape.layers is not None else (),
        head=head,
        max_positions=shape.max_positions,
    )
    return specs.ModelSpec(name, "", (stack,))


def _attention(shape: ShapeOptions) -> specs.AttentionSpec:
    latent = None
    head_dim = shape.head_dim or shape.d_model // shape.heads
    value_dim = shape.v_head_dim or head_dim
    if shape.kv_lora is not None:
        rope, nope = shape.rope_dim or 0, shape.nope_dim or 0
        latent = specs.LatentSpec(shape.kv_lora, rope, nope, shape.q_lora)
        head_dim, value_dim = rope + nope, shape.v_head_dim or nope
    inner = shape.bias and latent is None  # latent keys and values are rebuilt without biases
    return specs.AttentionSpec(
        *(shape.d_model, shape.heads, shape.kv_heads or shape.heads, head_dim, value_dim),
        *(inner, inner, inner, shape.bias),
        window=shape.window,
        latent=latent,
        linear=shape.linear,
    )


def _feed_forward(shape: ShapeOptions) -> specs.FeedForwardSpec | specs.ExpertsSpec | None:
    width, gated = shape.d_expert or shape.d_ff or 0, shape.ffn in _GATED
    expert = specs.FeedForwardSpec(shape.d_model, width, gated, shape.bias, shape.bias)
    if shape.experts is None:
        return None if shape.d_ff is None else expert._replace(d_ff=shape.d_ff)
    shared = shape.shared_experts or 0
    return specs.ExpertsSpec(
        expert=expert,
        experts=shape.experts,
        active=shape.active_experts or 0,
        shared=expert._replace(d_ff=shared * width) if shared else None,
    )
