"""How many bits a number takes, and exact bytes without a float in between."""

from __future__ import annotations

from attnviz.errors import UsageError

__all__ = ["BITS", "bits", "byte_count"]

BITS = {
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "int8": 8,
    "int4": 4,
}
"""Bits of a number of each dtype that ``--dtype`` takes."""

_OTHER_NAMES = {
    "float64": 64,
    "fp32": 32,
    "fp16": 16,
    "half": 16,
    "bf16": 16,
    "fp8": 8,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
}


def bits(dtype: str) -> int:
    """Bits of one number; UsageError for a dtype that is not known."""
    known = {**BITS, **_OTHER_NAMES}
    name = dtype.removeprefix("torch.").lower()
    if name not in known:
        raise UsageError(f"no dtype {dtype!r}: use one of {', '.join(BITS)}")
    return known[name]


def byte_count(numbers: int, dtype: str) -> int:
    """Bytes of so many numbers; half a byte left over (int4) takes a whole one."""
    return -(-numbers * bits(dtype) // 8)
