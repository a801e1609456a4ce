"""What the shell is offered where a model or a label is named."""

from __future__ import annotations

__all__ = ["complete_label", "complete_model", "complete_shape"]


def complete_model(incomplete: str) -> list[str]:
    """The built-in models and named shapes that begin with what was typed."""
    from attnviz.models.shapes import shape_names  # only when the shell asks

    names = ["tiny", "mha", *(f"configs/{name}" for name in shape_names())]
    return [name for name in names if name.startswith(incomplete)]


def complete_shape(incomplete: str) -> list[str]:
    """The named shapes that begin with what was typed, for a command that counts them."""
    from attnviz.models.shapes import shape_names

    return [name for name in shape_names() if name.startswith(incomplete)]


def complete_label(incomplete: str) -> list[str]:
    """The labels of heads that begin with what was typed."""
    from attnviz.measures.registry import LABELS

    return [name for name in LABELS if name.startswith(incomplete)]
