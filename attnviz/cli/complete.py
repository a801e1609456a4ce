"""What the shell is offered after ``--model``."""

from __future__ import annotations

__all__ = ["complete_model"]


def complete_model(incomplete: str) -> list[str]:
    """The built-in models and named shapes that begin with what was typed."""
    from attnviz.models.shapes import shape_names  # only when the shell asks

    names = ["tiny", "mha", *(f"configs/{name}" for name in shape_names())]
    return [name for name in names if name.startswith(incomplete)]
