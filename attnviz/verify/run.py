"""What ``attnviz verify`` does once its options are read: compare or prove, show, and judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from attnviz.cli.inputs import read_text
from attnviz.cli.options import Output
from attnviz.cli.outlet import Outlet, open_outlet
from attnviz.cli.progress import loading
from attnviz.draw.blocks import Block
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError, UsageError
from attnviz.models.model import Model, TwoStackModel
from attnviz.models.resolve import LoadOptions, load
from attnviz.records import Tokens
from attnviz.verify.records import Check, Sizes, Step, Verification
from attnviz.verify.request import ModelWish, OwnWish
from attnviz.verify.screen import verification_screen
from attnviz.verify.words import failure_words

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.draw.files import Writer

__all__ = ["Verified", "show_model_proof", "show_own_proof"]

_SENTENCE = "The cat sat on the mat because it was tired."


def show_own_proof(wish: OwnWish, explained: bool, output: Output) -> None:
    """Compare the library's own attention. Raises AttnvizError, once all is shown, on a FAIL."""
    outlet = open_outlet(output)
    sizes, dtype = wish.sizes(), wish.numbers
    with _telling(outlet.notices) as tell:
        found = _own_proof(wish, sizes, dtype, tell)
    hints = () if output.quiet else _own_hints(wish)
    _show(Verified(found, explained, hints), outlet)


def _own_proof(
    wish: OwnWish, sizes: Sizes, dtype: str, tell: Callable[[str], None]
) -> Verification:
    # torch takes seconds; what can be refused was refused before.
    from attnviz.verify.own_checks import own_checks
    from attnviz.verify.steps import attention_steps, steps_check

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
    outlet = open_outlet(output)
    asked = wish.text is not None or wish.file is not None
    text = read_text(wish.text, wish.file, "verify") if asked else _SENTENCE
    with loading(name, outlet.notices) as progress:
        model = load(name, replace(options, progress=progress))
    tokens, target = _read(model, text, wish, asked)
    with _telling(outlet.notices) as tell:
        found = _model_proof(model, name, options, (tokens, target), tell)
    said = None if target is None else text if wish.target is None else wish.target
    found = replace(found, text=text, target=said)
    hints = () if output.quiet or explained else ("next: --explain reads it for you",)
    _show(Verified(found, explained, hints), outlet)


def _read(model: Model, text: str, wish: ModelWish, asked: bool) -> tuple[Tokens, Tokens | None]:
    """The tokens, and what a decoder reads: a given text, else the same one."""
    from attnviz.engine.over_text import Choice, encoded, require_maps, target_tokens

    cut = wish.truncate or not asked
    tokens = encoded(model, text, cut)
    heads = model.info.layers * model.info.heads
    require_maps(heads, len(tokens), len(tokens), "shorten the text, or add --truncate")
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
    from attnviz.verify.count import count_check
    from attnviz.verify.model_checks import model_checks, open_examinee
    from attnviz.verify.rounding import EPSILON

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


@contextmanager
def _telling(notices: Console) -> Iterator[Callable[[str], None]]:
    """A spinner that says what is being done; nothing where no terminal listens."""
    if notices.quiet or not notices.is_terminal or notices.is_dumb_terminal:
        yield lambda words: None
        return
    with notices.status("starting") as status:
        yield lambda words: status.update(words)


def _show(result: Verified, outlet: Outlet) -> None:
    outlet.show(result)
    if result.found.failed:
        raise AttnvizError(failure_words(result.found))


@dataclass(frozen=True)
class Verified:
    """What was found, and how it is to be seen."""

    found: Verification
    explained: bool
    hints: tuple[str, ...]

    def screen(self, theme: Theme, console: Console) -> Block:
        return verification_screen(self.found, theme, console.width, self.explained, self.hints)

    def write_json(self, stream: SupportsWrite[str]) -> None:
        from attnviz.verify.json import write_verification_json

        write_verification_json(self.found, stream)

    def files(self, palette: str) -> Mapping[str, Writer]:
        from attnviz.draw.files import page_files, text_file
        from attnviz.verify.csv import write_verification_csv
        from attnviz.verify.page import verification_page

        csv = text_file(partial(write_verification_csv, self.found))
        return {".csv": csv, **page_files(partial(verification_page, self.found), palette)}
