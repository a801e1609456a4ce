"""What ``attnviz verify`` does once its options are read: compare or prove, show, and judge."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version

import numpy as np
from rich.console import Console

from attnviz.cli.output import Output
from attnviz.cli.progress import loading
from attnviz.cli.streams import printing
from attnviz.cli.terminal import messages, open_console
from attnviz.cli.text_input import read_text
from attnviz.cli.verify_wish import ModelWish, OwnWish
from attnviz.errors import AttnvizError, UsageError
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.resolve import LoadOptions, load
from attnviz.records import Tokens
from attnviz.render.blocks import Block
from attnviz.render.labels import visible
from attnviz.render.theme import Theme
from attnviz.render.verification.screen import verification_screen
from attnviz.render.verification.words import failure_words
from attnviz.verification import Check, Sizes, Step, Verification

__all__ = ["show_model_proof", "show_own_proof"]

_SENTENCE = "The cat sat on the mat because it was tired."


def show_own_proof(wish: OwnWish, explained: bool, output: Output) -> None:
    """Compare the library's own attention. Raises AttnvizError, once all is shown, on a FAIL."""
    console = _checked(output)
    sizes, dtype = wish.sizes(), wish.numbers
    notices = messages(output.quiet or output.json)
    with _telling(notices) as tell:
        found = _own_proof(wish, sizes, dtype, tell)
    hints = () if output.quiet else _own_hints(wish)
    _show(found, explained, hints, output, console, notices)


def _own_proof(
    wish: OwnWish, sizes: Sizes, dtype: str, tell: Callable[[str], None]
) -> Verification:
    # torch takes seconds; what can be refused was refused before.
    from attnviz.capture.verification.own_checks import own_checks
    from attnviz.capture.verification.steps import attention_steps, steps_check

    cases: dict[str, str] = {}

    def on_case(name: str, words: str) -> None:
        cases[name] = words
        tell(f"comparing: {name}")

    checks = own_checks(sizes, dtype, wish.keras, lambda case: on_case(case.name, case.words))
    steps: tuple[Step, ...] = ()
    causal = wish.causal is not False
    if wish.steps:
        plain = replace(sizes, kv_heads=wish.kv_heads)
        steps = attention_steps(plain, dtype, causal)
        checks = (steps_check(plain, dtype, causal, steps), *checks)
        cases = {"steps": "the last numbers of the steps against one call"} | cases
    return Verification(
        dtype=dtype,
        rounds_in=dtype,
        epsilon=float(np.finfo(dtype).eps),
        checks=checks,
        sizes=sizes,
        cases=cases,
        steps=steps,
        causal=causal,
        versions=_versions(checks),
    )


def _versions(checks: tuple[Check, ...]) -> dict[str, str]:
    """Of the libraries that were compared."""
    names = ["numpy", "torch"]
    if any(check.against.startswith("keras.") and check.measures for check in checks):
        names.append("keras")
    return {name: version(name) for name in names}


def show_model_proof(
    name: str, options: LoadOptions, wish: ModelWish, explained: bool, output: Output
) -> None:
    """Prove a model's properties. Raises AttnvizError, once all is shown, on a FAIL."""
    console = _checked(output)
    notices = messages(output.quiet or output.json)
    asked = wish.text is not None or wish.file is not None
    text = read_text(wish.text, wish.file, "verify") if asked else _SENTENCE
    with loading(name, notices) as progress:
        model = load(name, replace(options, progress=progress))
    tokens, target = _read(model, text, wish, asked)
    with _telling(notices) as tell:
        found = _model_proof(model, name, options, (tokens, target), tell)
    said = None if target is None else text if wish.target is None else wish.target
    found = replace(found, text=text, target=said)
    hints = () if output.quiet or explained else ("next: --explain reads it for you",)
    _show(found, explained, hints, output, console, notices)


def _read(model: Model, text: str, wish: ModelWish, asked: bool) -> tuple[Tokens, Tokens | None]:
    """The tokens, and what a decoder reads: a given text, else the same one."""
    from attnviz.capture.over_text import Choice, encoded, target_tokens

    cut = wish.truncate or not asked
    tokens = encoded(model, text, cut)
    if not isinstance(model, TwoStackModel) or "decoder" not in model.kinds:
        if wish.target is not None:
            raise UsageError(f"--target is a decoder's text: {model.info.name!r} has one stack")
        return tokens, None
    said = text if wish.target is None else wish.target
    return tokens, target_tokens(model, tokens, Choice(target=said, truncate=cut))


def _model_proof(
    model: Model,
    name: str,
    options: LoadOptions,
    read: tuple[Tokens, Tokens | None],
    tell: Callable[[str], None],
) -> Verification:
    from attnviz.capture.verification.model_checks import model_checks, open_examinee
    from attnviz.capture.verification.rounding import EPSILON
    from attnviz.cli.verify_count import count_check

    examinee = open_examinee(model, *read)
    checks = tuple(model_checks(examinee, lambda check: tell(f"proving: {check}")))
    return Verification(
        dtype=model.info.dtype,
        rounds_in=examinee.rounds_in,
        epsilon=EPSILON[examinee.rounds_in],
        checks=(*checks, count_check(model, name, options)),
        model=model.info,
        tokens=tuple(len(tokens) for tokens in read if tokens is not None),
    )


def _own_hints(wish: OwnWish) -> tuple[str, ...]:
    if wish.steps:
        return ("next: --seed 1 draws other numbers", "--explain reads it for you")
    return (
        "next: --steps shows every step with its numbers",
        "--dtype float64 a finer ruler",
        "--model tiny verifies a model",
        "--explain reads it for you",
    )


def _checked(output: Output) -> Console | None:
    """The console, where one is needed; files that could not be written are refused."""
    console = open_console(output.width, output.colour) if output.drawn else None
    if output.save:
        from attnviz.render.export.verification_save import check_save_path

        for path in output.save:
            check_save_path(path)
    return console


@contextmanager
def _telling(notices: Console) -> Iterator[Callable[[str], None]]:
    """A spinner that says what is being done; nothing where no terminal listens."""
    if notices.quiet or not notices.is_terminal or notices.is_dumb_terminal:
        yield lambda words: None
        return
    with notices.status("starting") as status:
        yield lambda words: status.update(words)


def _show(
    found: Verification,
    explained: bool,
    hints: tuple[str, ...],
    output: Output,
    console: Console | None,
    notices: Console,
) -> None:
    def screen(theme: Theme, room: int) -> Block:
        return verification_screen(found, theme, room, explained, hints)

    with printing():
        if output.json:
            from attnviz.render.export.verification_json import write_verification_json

            write_verification_json(found, sys.stdout)
        elif console is not None:
            theme = Theme.of(console, output.palette, output.ascii)
            console.print(screen(theme, console.width), end="")
    if output.save:
        from attnviz.render.export.verification_save import save_verification

        drawing = ""
        if console is not None:
            drawing = screen(Theme(output.palette, False, output.ascii), console.width).plain
        for path in output.save:
            save_verification(found, path, output.palette, drawing)
            notices.print(f"saved {visible(str(path))}")
    if found.failed:
        raise AttnvizError(failure_words(found))
