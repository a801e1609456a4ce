"""The rules by which the options for an architecture fit together, each with its message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attnviz.errors import UsageError
from attnviz.models.shapes import nearest

_CHOICES = {
    "ffn": ("relu", "gelu", "swiglu", "geglu"),
    "norm": ("layernorm", "rmsnorm"),
    "positions": ("learned", "rotary", "none"),
}
_SWITCHES = ("bias", "tied", "linear")
_MAY_BE_ZERO = ("rope_dim", "shared_experts")
_NEEDS = {
    "ffn": ("d_ff", "d_expert"),
    "tied": ("vocab",),
    "active_experts": ("experts",),
    "shared_experts": ("experts",),
    "d_expert": ("experts",),
    "q_lora": ("kv_lora",),
    "rope_dim": ("kv_lora",),
    "nope_dim": ("kv_lora",),
}
"""Options that have an effect only together with one of the others."""

_EXCLUDES = {
    "kv_lora": (
        ("kv_heads", "all heads are rebuilt from one latent vector"),
        ("head_dim", "the width of a head is --nope-dim + --rope-dim"),
    ),
    "linear": (
        ("window", "linear attention keeps a state and no tokens"),
        ("kv_lora", "linear attention keeps a state and no tokens"),
    ),
}
_MOST_SHOWN = 12
_LARGEST_TRIED = 4096


def option(name: str) -> str:
    """Return an option as it is typed: ``--kv-heads`` for ``kv_heads``."""
    return f"--{name.replace('_', '-')}"


def check_options(given: Mapping[str, object], known: Iterable[str]) -> None:
    """Raise UsageError for the first rule that the given options break.

    given: the options for an architecture by name. known: the names of all options.
    """
    names = tuple(known)
    for name, value in given.items():
        if name not in names:
            raise UsageError(f"no option {name!r}{nearest(name, names)}")
        _check_value(name, value)
    for name in ("d_model", "heads"):
        if name not in given:
            raise UsageError(f"{option(name)} is missing: a shape needs --d-model and --heads")
    _check_partners(given)
    _check_heads({name: value for name, value in given.items() if isinstance(value, int)})


def _check_value(name: str, value: object) -> None:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise UsageError(f"{option(name)} must be true or false, not {value!r}")
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise UsageError(
                f"{option(name)} must be one of {', '.join(_CHOICES[name])}, not {value!r}"
            )
    elif not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{option(name)} must be a whole number, not {value!r}")
    elif value < (least := 0 if name in _MAY_BE_ZERO else 1):
        raise UsageError(f"{option(name)} must be {least} or more, not {value}")


def _check_partners(given: Mapping[str, object]) -> None:
    for name, partners in _NEEDS.items():
        if name in given and not any(partner in given for partner in partners):
            wanted = " or ".join(option(partner) for partner in partners)
            raise UsageError(f"{option(name)} needs {wanted} beside it")
    for name, others in _EXCLUDES.items():
        for other, why in others:
            if given.get(name) and other in given:
                raise UsageError(f"{option(name)} and {option(other)} exclude each other: {why}")
    if given.get("positions") == "learned" and "max_positions" not in given:
        raise UsageError("--positions learned needs --max-positions, the rows of the table")
    if "kv_lora" in given and not {"rope_dim", "nope_dim"} <= given.keys():
        raise UsageError(
            "--kv-lora needs --rope-dim and --nope-dim, the two parts of a head's width"
        )
    if "experts" in given:
        _check_experts(given)


def _check_experts(given: Mapping[str, object]) -> None:
    experts, active = given["experts"], given.get("active_experts")
    if active is None:
        raise UsageError("--experts needs --active-experts, those that a token passes through")
    if "d_expert" in given and "d_ff" in given:
        raise UsageError(
            "--d-ff and --d-expert exclude each other: every layer is a mixture of experts"
        )
    if "d_expert" not in given and "d_ff" not in given:
        raise UsageError("--experts needs --d-expert, the inner width of one expert")
    if isinstance(active, int) and isinstance(experts, int) and active > experts:
        raise UsageError(f"--active-experts {active} is more than there are: --experts {experts}")


def _check_heads(given: Mapping[str, int]) -> None:
    d_model, heads = given["d_model"], given["heads"]
    if d_model % heads and "head_dim" not in given and "kv_lora" not in given:
        raise UsageError(
            f"--heads {heads} does not divide --d-model {d_model}: {_divisors(d_model, heads)} "
            f"do; or give the width of a head with --head-dim, which lifts the rule"
        )
    kv_heads = given.get("kv_heads", heads)
    if kv_heads > heads or heads % kv_heads:
        raise UsageError(
            f"--kv-heads {kv_heads} does not divide --heads {heads}: {_divisors(heads, kv_heads)} "
            f"do"
        )


def _divisors(number: int, wanted: int) -> str:
    """Return the divisors of ``number`` as a string; of many only those nearest to ``wanted``."""
    found = [size for size in range(1, min(number, _LARGEST_TRIED) + 1) if number % size == 0]
    if len(found) > _MOST_SHOWN:
        found = sorted(sorted(found, key=lambda size: abs(size - wanted))[:_MOST_SHOWN])
    return ", ".join(str(size) for size in found)
