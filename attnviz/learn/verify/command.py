"""``attnviz verify``: whether the numbers are right, of the own attention or of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from attnviz import options
from attnviz.cli import options as shared
from attnviz.cli.groups import command
from attnviz.errors import AttnvizError, UsageError
from attnviz.options import Options, argument, flag, option

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from rich.console import Console

    from attnviz.cli.outlet import Outlet
    from attnviz.draw.document import Document
    from attnviz.learn.verify.records import Sizes, Verification
    from attnviz.models.model import Model
    from attnviz.models.resolve import LoadOptions
    from attnviz.records import Tokens

EXAMPLES = """
[bold]Examples[/bold]

attnviz verify

attnviz verify --steps

attnviz verify --d-model 96 --heads 6 --kv-heads 3 --seq 11 --dtype float64

attnviz verify --model tiny

attnviz verify "A text of your own." --model ./my-checkpoint --json
"""

_SENTENCE = "The cat sat on the mat because it was tired."
_BATCH = 2
_MORE_KEYS = 4
"""Keys of cross-attention beyond the queries."""

_COPIES = 12
"""Arrays of weights that the comparisons of one case hold at once."""


@dataclass(frozen=True)
class ModelText(shared.Text):
    """The text that a model reads."""

    text: str | None = argument(
        "TEXT", "With --model: the text, in quotes; - reads standard input (default: a sentence)."
    )
    target: str | None = option(
        "TEXT", "Decoder text of an encoder–decoder (default: TEXT itself).", words=True
    )


@dataclass(frozen=True)
class Own(shared.OwnShape, panel="The library's own attention"):
    """What is verified of the own attention, and its shape."""

    causal: bool | None = option(
        "",
        "Mask later tokens (default: yes in --steps, no with --model mha).",
        name="--causal/--no-causal",
    )
    steps: bool = flag(
        "Show each step with its shape, and for small sizes its numbers (default sizes: 3 tokens, "
        "d_model 4, 2 heads)."
    )
    seq: int | None = option("N", "Number of tokens in a text (default: 7).", min=2)
    keras: bool | None = option(
        "", "Compare with Keras's layers (default: if installed).", name="--keras/--no-keras"
    )

    def sizes(self, seed: int) -> Sizes:
        """The sizes with the usual ones where none are given, small for steps.

        Raises UsageError for heads that do not divide, or what the memory does not hold.
        """
        from attnviz.learn.verify.records import Sizes
        from attnviz.models.memory import require_room
        from attnviz.models.own import check_sizes

        usual = (4, 2, 3) if self.steps else (64, 8, 7)
        given = (self.d_model, self.heads, self.seq)
        d_model, heads, tokens = (
            default if one is None else one for one, default in zip(given, usual, strict=True)
        )
        check_sizes(d_model, heads, self.kv_heads, None)
        kv_heads = _shared(heads) if self.kv_heads is None else self.kv_heads
        keys = tokens + _MORE_KEYS
        require_room(
            "these sizes take about",
            8 * (_COPIES * _BATCH * heads * tokens * keys + 12 * d_model * d_model),
            "choose a smaller --seq or --d-model",
        )
        return Sizes(d_model, heads, kv_heads, tokens, keys, _BATCH, seed)


def _shared(heads: int) -> int | None:
    """Key/value heads for the grouped case: the fewest above one where that is possible."""
    parts = [part for part in range(1, heads) if heads % part == 0]
    return next((part for part in parts if part > 1), parts[0] if parts else None)


@dataclass(frozen=True)
class Examined(Options, panel="Model"):
    """The model that is verified; none for the own attention."""

    model: str | None = option(
        "NAME",
        "Check this model: tiny (bundled), mha, a directory, a Hugging Face id, or a named shape "
        "such as configs/gpt2 (random weights).",
        short="-m",
        autocompletion=shared.complete_model,
    )
    seed: int = option("N", "Random seed (weights, inputs).", 0, min=0)


@command(EXAMPLES)
def verify(
    text: ModelText,
    truncation: options.Truncation,
    own: Own,
    model: Examined,
    loading: shared.Loading,
    output: shared.Output,
) -> None:
    """Check attention against reference implementations."""
    if model.model is None:
        _refuse_model_options(text, truncation, own, loading)
        _verify_own(own, loading.dtype, model.seed, output)
        return
    _refuse_own_options(own, model.model)
    options = shared.load_options(model.model, loading, model.seed, own)
    _verify_model(model.model, options, text, truncation.truncate, output)


def _refuse_model_options(
    text: ModelText, truncation: options.Truncation, own: Own, loading: shared.Loading
) -> None:
    """Raise UsageError for options that say nothing about the own attention."""
    if text.text is not None or text.file is not None:
        raise UsageError("a text is for a model to read: add --model tiny, or leave the text out")
    # The dtype is that of the own attention as well.
    for name in (*replace(loading, dtype="auto").given(), *text.given(), *truncation.given()):
        raise UsageError(f"{name} is for a model: add --model NAME, or leave it out")
    if own.causal is not None and not own.steps:
        raise UsageError(
            "all cases are compared, with and without a mask: --causal is for --steps or "
            "--model mha"
        )


def _refuse_own_options(own: Own, model: str) -> None:
    """Raise UsageError for options that say nothing about a model."""
    names = {"--steps": own.steps, "--seq": own.seq, "--keras": own.keras}
    for name, value in names.items():
        if value is not None and (value or name == "--keras"):
            name = "--no-keras" if value is False else name
            raise UsageError(
                f"{name} is about the library's own attention: leave out --model {model}"
            )


def _verify_own(own: Own, dtype: str, seed: int, output: shared.Output) -> None:
    """Compare the library's own attention. Raises AttnvizError, once all is shown, on a FAIL."""
    from attnviz.cli.outlet import open_outlet

    outlet = open_outlet(output)
    sizes = own.sizes(seed)
    if dtype not in ("auto", "float32", "float64"):
        raise UsageError(
            f"the library's own attention is verified in float32 or float64, got --dtype {dtype}"
        )
    with _telling(outlet.notices) as tell:
        found = _test_own(own, sizes, "float32" if dtype == "auto" else dtype, tell)
    hints = (
        ("--seed 1: other numbers",)
        if own.steps
        else (
            "--steps: follow it on paper",
            "--model tiny: check a model",
            "--dtype float64: higher precision",
        )
    )
    _show(Tested(found, output, hints), outlet)


def _test_own(own: Own, sizes: Sizes, dtype: str, tell: Callable[[str], None]) -> Verification:
    # torch takes seconds; what can be refused was refused before.
    import numpy as np

    from attnviz.learn.verify.own import own_checks
    from attnviz.learn.verify.records import Step, Verification
    from attnviz.learn.verify.steps import attention_steps, steps_check

    cases: dict[str, str] = {}

    def on_case(name: str, words: str) -> None:
        cases[name] = words
        tell(f"comparing: {name}")

    checks = own_checks(sizes, dtype, own.keras, lambda case: on_case(case.name, case.words))
    steps: tuple[Step, ...] = ()
    causal = own.causal is not False
    if own.steps:
        plain = replace(sizes, kv_heads=own.kv_heads)
        steps = attention_steps(plain, dtype, causal)
        checks = (steps_check(plain, dtype, causal, steps), *checks)
        cases = {"steps": "the steps against NumPy in one call"} | cases
    libraries = ["numpy", "torch"]
    if any(check.against.startswith("keras.") and check.measures for check in checks):
        libraries.append("keras")
    return Verification(
        dtype=dtype,
        rounds_in=dtype,
        epsilon=float(np.finfo(dtype).eps),
        checks=checks,
        sizes=sizes,
        cases=cases,
        steps=steps,
        causal=causal,
        versions={name: version(name) for name in libraries},
    )


def _verify_model(
    name: str, options: LoadOptions, text: ModelText, truncate: bool, output: shared.Output
) -> None:
    """Check a model's properties. Raises AttnvizError, once all is shown, on a FAIL."""
    from attnviz.cli.outlet import open_outlet
    from attnviz.cli.progress import loading
    from attnviz.models.resolve import load
    from attnviz.texts import read_text

    outlet = open_outlet(output)
    asked = text.text is not None or text.file is not None
    source = read_text(text.text, text.file, "verify") if asked else _SENTENCE
    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress, backend="torch"))
    tokens, target = _read(model, source, text.target, truncate or not asked)
    with _telling(outlet.notices) as tell:
        found = _test_model(model, name, options, (tokens, target), tell)
    said = None if target is None else source if text.target is None else text.target
    _show(Tested(replace(found, text=source, target=said), output), outlet)


def _read(
    model: Model, text: str, target: str | None, truncate: bool
) -> tuple[Tokens, Tokens | None]:
    """The tokens, and what a decoder reads: a given text, else the same one."""
    from attnviz.engine.capture import Choice, encoded, require_maps, target_tokens
    from attnviz.models.model import TwoStackModel

    tokens = encoded(model, text, truncate)
    heads = model.info.layers * model.info.heads
    require_maps(heads, len(tokens), len(tokens), "shorten the text, or add --truncate")
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        if target is not None:
            raise UsageError(f"--target is a decoder's text: {model.info.name!r} has one stack")
        return tokens, None
    said = text if target is None else target
    return tokens, target_tokens(model, tokens, Choice(target=said, truncate=truncate))


def _test_model(
    model: Model,
    name: str,
    options: LoadOptions,
    read: tuple[Tokens, Tokens | None],
    tell: Callable[[str], None],
) -> Verification:
    from attnviz.learn.verify.backends import backend_check
    from attnviz.learn.verify.model import count_check, open_examinee
    from attnviz.learn.verify.properties import EPSILON, model_checks
    from attnviz.learn.verify.records import Verification
    from attnviz.models.transformers_model import TransformersModel

    examinee = open_examinee(model, *read)
    checks = list(model_checks(examinee, lambda check: tell(f"checking: {check}")))
    backends = None
    if isinstance(model, TransformersModel):
        tell("running it in NumPy")
        check, backends = backend_check(examinee, model, name, options)
        checks.append(check)
    return Verification(
        dtype=model.info.dtype,
        rounds_in=examinee.rounds_in,
        epsilon=EPSILON[examinee.rounds_in],
        checks=(*checks, count_check(examinee, model, name, options)),
        model=model.info,
        tokens=tuple(len(tokens) for tokens in read if tokens is not None),
        backends=backends,
    )


@contextmanager
def _telling(notices: Console) -> Iterator[Callable[[str], None]]:
    """A spinner that says what is being done; nothing where no terminal listens."""
    if notices.quiet or not notices.is_terminal or notices.is_dumb_terminal:
        yield lambda words: None
        return
    with notices.status("starting") as status:
        yield lambda words: status.update(words)


def _show(tested: Tested, outlet: Outlet) -> None:
    from attnviz.learn.verify.words import failure_words

    outlet.show(tested)
    if tested.found.failed:
        raise AttnvizError(failure_words(tested.found))


@dataclass(frozen=True)
class Tested:
    """What was found, and how it is to be seen."""

    found: Verification
    output: shared.Output
    hints: tuple[str, ...] = ()

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.learn.verify.data import write_verification_json

        write_verification_json(self.found, stream)

    def rows(self) -> Iterator[tuple[object, ...]]:
        from attnviz.learn.verify.data import verification_rows

        return verification_rows(self.found)

    def document(self) -> Document:
        from attnviz.learn.verify.document import verification_document

        explain = self.output.explain
        hints = (*self.hints, *["--explain: how to read this"] * (not explain))
        return verification_document(self.found, () if self.output.quiet else hints, explain)
