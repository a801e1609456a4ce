"""The options of ``attnviz verify``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from attnviz.errors import UsageError
from attnviz.options import OwnShape, Seed, Truncation, flag, option, typed_name


@dataclass(frozen=True)
class _Own(OwnShape, panel="attnviz's own attention"):
    causal: bool | None = option(
        "", "Mask later tokens in --steps (default: yes).", name="--causal/--no-causal"
    )
    steps: bool = flag(
        "Show each step with its shape and, for small sizes, its values (default sizes: 3 tokens, "
        "d_model 4, 2 heads).",
        brief="Show each step with shapes and values.",
    )
    seq: int | None = option("N", "Sequence length (default: 7).", min=2)
    keras: bool | None = option(
        "", "Also compare with Keras layers (default: if installed).", name="--keras/--no-keras"
    )


@dataclass(frozen=True)
class VerifyRequest(Truncation, _Own, Seed):
    """All options of ``attnviz verify``."""

    def refuse_model_options(self) -> None:
        """Raise UsageError if an option does not apply to the library's own attention."""
        if self.truncate:
            raise UsageError("--truncate is for a model: add --model NAME, or leave it out")
        if self.causal is not None and not self.steps:
            raise UsageError(
                "all cases are compared, with and without a mask: --causal is for --steps"
            )

    def refuse_own_options(self, model: str) -> None:
        """Raise UsageError if an option does not apply to a model. model: its name."""
        for own in fields(_Own):
            value = getattr(self, own.name)
            if value != own.default:
                yes, _, no = typed_name(own).partition("/")
                raise UsageError(
                    f"{no if value is False else yes} is about attnviz's own attention: leave "
                    f"out --model {model}"
                )
