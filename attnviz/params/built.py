"""The sheet of a model that was counted by building it, where no arithmetic claims its class."""

from __future__ import annotations

from attnviz.params.accounts.built import BuiltCount
from attnviz.params.numbers import bytes_text, count, share
from attnviz.params.running import cache_facts
from attnviz.params.sheet import Column, Fact, Grid, Row, Sheet

__all__ = ["built_sheet"]


def built_sheet(built: BuiltCount) -> Sheet:
    """Its parts, which add up to the total, and the memory of its weights."""
    columns = (Column("part", right=False), Column("parameters"), Column("share", keep=6))
    rows = [
        Row((name, count(number), share(number, built.total)), bar=(number, built.total))
        for name, number in built.parts
    ]
    rest = built.total - sum(number for _, number in built.parts)
    if rest:
        rows.append(Row(("outside these", count(rest), share(rest, built.total))))
    total = (count(built.total), share(built.total, built.total))
    rows.append(Row(("total", *total), "strong", ruled=True))
    facts = [Fact("all parameters", bytes_text(built.weight_bytes), built.dtype)]
    if built.buffers:
        facts.append(Fact("buffers, apart", count(built.buffers), "numbers, not trained"))
    told = "operations and maps" if built.cache is not None else "cache, operations and maps"
    sentence = (
        f"Counted by building {built.architecture} without weights: the arithmetic does not know "
        f"this class, so {told} are not told."
    )
    sections = {"Weights": facts}
    if built.cache is not None and built.cache.lines:
        sections["KV cache and states"] = cache_facts(built.cache)
    return Sheet(
        (built.name, built.architecture, built.dtype),
        (f"source: {built.source}",) if built.source else (),
        (Grid(columns, tuple(rows)),),
        sections,
        (sentence,),
    )
