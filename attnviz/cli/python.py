"""A command run from Python, for those that are not functions of the library yet."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from attnviz.cli.outlet import ArrayReport, taking
from attnviz.draw.document import Document
from attnviz.draw.report import Report as CompleteReport
from attnviz.errors import AttnvizError, UsageError
from attnviz.models.model import NumpyModel
from attnviz.models.resolve import Loaded
from attnviz.options import spelled_head as spelled

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    from attnviz.models.model import Model

_ELSEWHERE = {
    *("model", "models", "names", "a", "b", "text", "file", "texts", "clean", "corrupt", "pairs"),
    *("json", "save", "palette", "colour", "ascii", "width", "full", "quiet"),
}
"""What is said of a command otherwise than by an option: its model and texts, its outlets."""

_LOADING = (
    "device",
    "dtype",
    "backend",
    "revision",
    "offline",
    "trust_remote_code",
    "allow_pickle",
)


@dataclass(frozen=True, eq=False, repr=False)
class Analysis(CompleteReport):
    """What a command found that does not return its own report yet."""

    command: str
    report: Any = None

    def data(self) -> dict[str, Any]:
        stream = io.StringIO()
        self.report.write_json(stream)
        found: dict[str, Any] = json.loads(stream.getvalue())
        return found

    def write_json(self, stream: SupportsWrite[str]) -> None:
        self.report.write_json(stream)

    def rows(self) -> Iterable[Iterable[object]]:
        found: Iterable[Iterable[object]] = self.report.rows()
        return found

    def arrays(self) -> Mapping[str, Any]:
        return self.report.arrays() if isinstance(self.report, ArrayReport) else {}

    def document(self, *, explain: bool = False, hints: bool = False) -> Document:
        drawn: Document = self.report.document()
        return drawn


def analysis(
    command: Any,
    model: Any,
    tokenizer: Any,
    given: Mapping[str, Any],
    **inputs: Any,
) -> Analysis:
    """Run a command over a model with the options ``given``.

    command: as ``cli.groups.command`` made it. model: by name or loaded; None for what needs none.
    tokenizer: of a loaded one. inputs: ``text`` or ``texts``, as the command takes them.

    Raises TypeError for an option that the command does not have or of another type, and what the
    command raises.
    """
    call: Any = command.registered_commands[0].callback
    name = call.__name__
    parameters = signature(call).parameters
    arguments = {option: _default(one) for option, one in parameters.items()}
    with in_python_words():
        arguments |= _options(name, given, parameters)
        arguments |= {"json": True, "quiet": True, **inputs}
        if model is None and inputs:
            raise UsageError("expected a model, its name or a loaded one, got None")
        if model is not None:
            known = named(model, tokenizer, loading_given(given), reads=bool(inputs))
            place = next(each for each in ("model", "names", "a") if each in parameters)
            arguments[place] = (known,) if place == "names" else known
        with taking() as taken:
            call(**arguments)
    (report,) = taken
    return Analysis(name, report)


def loading_given(given: Mapping[str, Any]) -> list[str]:
    """The options that say how a model is loaded, among those that were given."""
    return [option for option in _LOADING if given.get(option) is not None]


# Options -------------------------------------------------------------------------------------


def _default(one: Parameter) -> Any:
    return None if one.default is Parameter.empty else one.default


def _options(
    command: str, given: Mapping[str, Any], parameters: Mapping[str, Parameter]
) -> dict[str, Any]:
    known = [name for name in parameters if name not in _ELSEWHERE]
    checked = {}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise TypeError(
                f"attnviz.{command}() has no option {name!r}: {hint}there are {', '.join(known)}"
            )
        if value is not None:
            kind, told = get_args(parameters[name].annotation)
            checked[name] = _checked(name, value, kind, told)
    return checked


def _checked(name: str, value: Any, kind: Any, told: Any) -> Any:
    """The value as the command takes it; UsageError for a type or a number that it refuses."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is list:
        (inner,) = get_args(kind)
        several = value if isinstance(value, list) else [value]
        return [_checked(name, each, inner, told) for each in several]
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            expected = ", ".join(map(repr, get_args(kind)))
            raise UsageError(f"{name}={value!r} is not one of {expected}")
        return value
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    if kind is str and name in ("head", "heads", "layer"):
        return spelled(value)
    if kind in (int, float) and not isinstance(value, bool):  # NumPy's numbers as well
        if isinstance(value, Integral):
            value = kind(int(value))
        elif kind is float and isinstance(value, Real):
            value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UsageError(f"{name} takes {kind.__name__}, got {value!r}")
    least, most = getattr(told, "min", None), getattr(told, "max", None)
    if (least is not None and value < least) or (most is not None and value > most):
        ends = f"{least} or more" if most is None else f"{least} to {most}"
        raise UsageError(f"{name}={value} is out of range: expected {ends}")
    return value


def named(model: Any, tokenizer: Any, given: Iterable[str], reads: bool = True) -> str:
    """The model's name; that of a loaded one brings it along.

    given: the options of loading that were given, which a loaded model does not heed.
    """
    if isinstance(tokenizer, str):
        raise UsageError(f"expected a tokenizer, got a text: write text={tokenizer!r}")
    if isinstance(model, str | os.PathLike):
        if tokenizer is not None:
            raise UsageError("--tokenizer is for a loaded model: a name brings its own")
        return os.fspath(model)
    for option in given:
        raise UsageError(
            f"--{option.replace('_', '-')} is for a model that is loaded by its name: this one is "
            "loaded"
        )
    return Loaded(opened(model, tokenizer, reads))


def opened(model: Any, tokenizer: Any, reads: bool = True) -> Model:
    """A model that Python code holds, as it stands; see ``models.prepare.handed_over``."""
    if isinstance(model, NumpyModel):
        return model
    from attnviz.models.prepare import handed_over  # imports transformers

    return handed_over(model, tokenizer, reads=reads)


# Words ---------------------------------------------------------------------------------------

_FLAGS = {"truncate", "causal", "offline", "trust_remote_code", "allow_pickle"}
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)")


@contextmanager
def in_python_words() -> Iterator[None]:
    """Let the same error pass: ``head=`` for ``--head``, ``truncate=True`` for ``--truncate``."""
    try:
        yield
    except AttnvizError as error:
        error.args = (_OPTION.sub(_keyword, str(error)), *error.args[1:])
        raise


def _keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    return f"{name}=True" if name in _FLAGS else f"{name}="
