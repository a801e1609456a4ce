"""The options of ``attnviz verify``."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.errors import UsageError
from attnviz.options import Options, OwnShape, Seed, Truncation, flag, option


@dataclass(frozen=True)
class _Target(Options):
    """The option on the text of a decoder."""

    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (default: TEXT itself).", words=True
    )


@dataclass(frozen=True)
class _Own(OwnShape, panel="The library's own attention"):
    """The options on the checks and the sizes of the library's own attention."""

    causal: bool | None = option(
        "",
        "Mask later tokens (default: yes in --steps, no with --model mha).",
        name="--causal/--no-causal",
    )
    steps: bool = flag(
        "Show each step with its shape, and for small sizes its numbers (default sizes: 3 tokens, "
        "d_model 4, 2 heads).",
        brief="Each step with its shape and its numbers.",
    )
    seq: int | None = option("N", "Number of tokens in a text (default: 7).", min=2)
    keras: bool | None = option(
        "", "Compare with Keras's layers (default: if installed).", name="--keras/--no-keras"
    )


@dataclass(frozen=True)
class VerifyRequest(_Target, Truncation, _Own, Seed):
    """All options of ``attnviz verify``."""

    def refuse_model_options(self) -> None:
        """Raise UsageError if an option does not apply to the library's own attention."""
        for name, given in (("--target", self.target is not None), ("--truncate", self.truncate)):
            if given:
                raise UsageError(f"{name} is for a model: add --model NAME, or leave it out")
        if self.causal is not None and not self.steps:
            raise UsageError(
                "all cases are compared, with and without a mask: --causal is for --steps or "
                "--model mha"
            )

    def refuse_own_options(self, model: str) -> None:
        """Raise UsageError if an option does not apply to a model. model: its name."""
        names = {"--steps": self.steps, "--seq": self.seq, "--keras": self.keras}
        for name, value in names.items():
            if value is not None and (value or name == "--keras"):
                name = "--no-keras" if value is False else name
                raise UsageError(
                    f"{name} is about the library's own attention: leave out --model {model}"
                )
