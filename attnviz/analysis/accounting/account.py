"""Everything that a design costs, counted for one length, batch and dtype."""

from __future__ import annotations

from attnviz.accounts.account import Account
from attnviz.analysis.accounting.cache import count_cache
from attnviz.analysis.accounting.dtypes import bits, byte_count
from attnviz.analysis.accounting.flops import count_flops
from attnviz.analysis.accounting.lengths import lengths
from attnviz.analysis.accounting.maps import count_maps
from attnviz.analysis.accounting.parameters import count_parameters
from attnviz.designs import Design
from attnviz.errors import UsageError

__all__ = ["DEFAULT_TOKENS", "account"]

DEFAULT_TOKENS = 2048
"""The length that is counted where none is asked for and the positions reach as far."""


def account(
    design: Design,
    *,
    tokens: int | None = None,
    source_tokens: int | None = None,
    batch: int = 1,
    dtype: str = "bfloat16",
    cache_dtype: str | None = None,
) -> Account:
    """Count a design for ``batch`` sequences of ``tokens``.

    tokens: ``DEFAULT_TOKENS`` or, where it is shorter, the longest sequence of the design.
    source_tokens: what an encoder reads; as many as ``tokens``, unless the design fixes them.
    cache_dtype: as ``dtype``.

    Raises:
        UsageError: an unknown dtype, or lengths and batches below 1.
    """
    if batch < 1:
        raise UsageError(f"batch must be 1 or more, not {batch}")
    length = lengths(design, _usual(design) if tokens is None else tokens, source_tokens)
    parameters = count_parameters(design)
    return Account(
        design=design,
        tokens=length.target,
        source_tokens=length.source,
        batch=batch,
        dtype=dtype,
        cache_dtype=cache_dtype or dtype,
        bits=bits(dtype),
        parameters=parameters,
        cache=count_cache(design, length, batch=batch, dtype=cache_dtype or dtype),
        flops=count_flops(design, parameters, length, batch=batch),
        maps=count_maps(design, length, batch=batch, dtype=dtype),
        weight_bytes=byte_count(parameters.total, dtype),
        buffer_bytes=byte_count(parameters.buffer_total, dtype),
    )


def _usual(design: Design) -> int:
    longest = design.main.tokens or design.main.max_positions
    return min(DEFAULT_TOKENS, longest or DEFAULT_TOKENS)
