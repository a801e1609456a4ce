"""Which model types the arithmetic claims, with the classes whose weights it can count."""

from __future__ import annotations

from functools import partial

from attnviz.params.config.decoder import decoder
from attnviz.params.config.encoder_families import ENCODER_FAMILIES
from attnviz.params.config.family import Adapter
from attnviz.params.config.gpt_families import GPT_FAMILIES
from attnviz.params.config.pair_families import PAIR_FAMILIES
from attnviz.params.config.row import Row
from attnviz.params.config.rows import ROWS
from attnviz.params.config.vision_families import VISION_FAMILIES

__all__ = ["FAMILIES"]


def _row(row: Row) -> Adapter:
    bare, causal = f"{row.prefix}Model", f"{row.prefix}ForCausalLM"
    if row.prefix == "Gemma3":
        bare = "Gemma3TextModel"
    classes = {
        bare: partial(decoder, row=row, with_head=False),
        causal: partial(decoder, row=row, with_head=True),
    }
    spellings = {
        "num_experts": ("num_local_experts",),
        "num_local_experts": ("num_experts",),
        "sliding_window_pattern": ("_sliding_window_pattern",),
    }
    return Adapter(classes, causal, row.defaults, spellings)


FAMILIES: dict[str, Adapter] = {
    **{name: _row(row) for name, row in ROWS.items()},
    **GPT_FAMILIES,
    **ENCODER_FAMILIES,
    **PAIR_FAMILIES,
    **VISION_FAMILIES,
}
