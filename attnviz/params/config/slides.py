"""Which layers slide where a config does not list them: a rule for each habit."""

from __future__ import annotations

from attnviz.params.config.fields import Fields

__all__ = ["all_but_each_nth", "early_even", "every_layer", "late_layers", "without_rotation"]


def every_layer(layer: int, fields: Fields) -> bool:
    """All layers (Mistral)."""
    return True


def all_but_each_nth(layer: int, fields: Fields) -> bool:
    """All but every n-th layer (Gemma 2 and 3, OLMo 3, Cohere 2)."""
    return (layer + 1) % fields.whole("sliding_window_pattern") != 0


def late_layers(layer: int, fields: Fields) -> bool:
    """From a layer on (Qwen 2 and 3)."""
    return layer >= fields.whole("max_window_layers", least=0)


def early_even(layer: int, fields: Fields) -> bool:
    """Every second layer up to one (Qwen 2 with experts)."""
    return layer % 2 == 0 and layer < fields.whole("max_window_layers", least=0)


def without_rotation(layer: int, fields: Fields) -> bool:
    """The layers without rotary positions, every n-th unless they are listed (SmolLM 3)."""
    listed = fields.listed("no_rope_layers", layer + 1)
    if listed is not None:
        return not listed[layer]
    return (layer + 1) % fields.whole("no_rope_layer_interval") == 0
