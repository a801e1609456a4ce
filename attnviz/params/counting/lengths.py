"""How many tokens each tower of a design sees when a person asks for so many."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.params.specs import ModelSpec, StackSpec

__all__ = ["Lengths", "lengths"]


@dataclass(frozen=True)
class Lengths:
    """Tokens of one sequence.

    target: the tokens that the model writes or, without a tower that writes, reads.
    source: the tokens that a decoder's cross attention looks back at.
    """

    target: int
    source: int

    def of(self, stack: StackSpec) -> int:
        """The tokens that a tower sees."""
        if stack.tokens is not None:
            return stack.tokens
        return self.target if stack.reads == "target" else self.source


def lengths(spec: ModelSpec, tokens: int, source_tokens: int | None = None) -> Lengths:
    """The lengths for ``tokens``; the source is as long unless it is given or fixed."""
    for name, number in (("tokens", tokens), ("source tokens", source_tokens)):
        if number is not None and number < 1:
            raise UsageError(f"{name} must be 1 or more, not {number}")
    read = [stack for stack in spec.stacks if stack.reads == "source"]
    fixed = read[-1].tokens if read else None
    return Lengths(tokens, fixed or source_tokens or tokens)
