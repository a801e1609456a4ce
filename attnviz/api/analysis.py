"""A command run from Python: its options are keywords, its report is the result."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from attnviz.api.capture import named
from attnviz.api.drawn import Drawn
from attnviz.api.head_choice import in_python_words, spelled
from attnviz.cli.inputs import Texts
from attnviz.cli.outlet import Report, report_files, taking
from attnviz.draw.document import Document
from attnviz.draw.labels import visible
from attnviz.draw.theme import Theme
from attnviz.errors import AttnvizError, UsageError

_ELSEWHERE = {
    *("model", "models", "names", "a", "b", "text", "file", "texts", "clean", "corrupt", "pairs"),
    *("sender", "files", "json", "save", "palette", "colour", "ascii", "width", "full", "quiet"),
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
class Analysis(Drawn):
    """What a command has found.

    command: its name. report: what it found, as the command itself has it.
    palette, ascii: see ``view``.
    """

    command: str
    report: Report
    palette: str = "viridis"
    ascii: bool = False

    @cached_property
    def document(self) -> Document:
        """All that there is to see, for any outlet."""
        return self.report.document()

    @property
    def finding(self) -> str:
        """The answer in a sentence."""
        return self.document.finding

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows of ``save("name.csv")``, a dictionary each: ``pandas.DataFrame`` takes them."""
        rows = iter(self.report.rows())
        header = [str(name) for name in next(rows)]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """Everything, as ``save("name.json")`` writes it."""
        stream = io.StringIO()
        self.report.write_json(stream)
        found: dict[str, Any] = json.loads(stream.getvalue())
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that the ending of its name says, whole or not at all.

        Raises UsageError for another ending, LoadError where it cannot be written.
        """
        from attnviz.draw.files import save

        def plain() -> str:
            return self._plain(Theme(self.palette, colour=False, ascii=self.ascii))

        with in_python_words():
            writers = report_files(self.report, lambda: self.document, self.palette, plain)
            save(Path(path), writers)

    def __repr__(self) -> str:
        said = visible(self.finding or self.document.title)
        return f"<attnviz.{self.command}: {said}>"


def analysis(
    command: Any,
    model: Any,
    tokenizer: Any,
    given: Mapping[str, Any],
    *,
    needs_model: bool = True,
    **inputs: Any,
) -> Analysis:
    """Run a command over a model with the options ``given``.

    command: as ``cli.groups.command`` made it. model: by name or loaded; None is for a command that
    does not always need one. tokenizer: of a loaded one. inputs: ``text`` or ``texts``, as the
    command takes them.

    Raises TypeError for an option that the command does not have or of another type, and what the
    command raises; where it raises after it has shown its report, the error carries this.
    """
    call: Any = command.registered_commands[0].callback
    name = call.__name__
    parameters = signature(call).parameters
    arguments = {option: _default(one) for option, one in parameters.items()}
    with in_python_words():
        arguments |= _options(name, given, parameters)
        arguments |= {"json": True, "quiet": True, **inputs}
        if model is None and needs_model:
            raise UsageError("expected a model, its name or a loaded one, got None")
        if model is not None:
            known = named(model, tokenizer, loading_given(given), reads=bool(inputs))
            place = next(each for each in ("model", "names", "a") if each in parameters)
            arguments[place] = (known,) if place == "names" else known
        with taking() as taken, _recording_gradients():
            try:
                call(**arguments)
            except AttnvizError as error:
                error.analysis = Analysis(name, taken[0]) if taken else None
                raise
    (report,) = taken
    return Analysis(name, report)


@contextmanager
def _recording_gradients() -> Iterator[None]:
    """Let torch record gradients inside, whatever the caller has switched off."""
    torch = sys.modules.get("torch")
    if torch is None:  # nobody has switched anything off
        yield
        return
    with torch.inference_mode(False), torch.enable_grad():
        yield


def texts_of(texts: str | Iterable[str] | None) -> Texts | None:
    """One text or several; None where none is given. UsageError for what is no text."""
    if texts is None:
        return None
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise UsageError(f"expected a text or several, got {texts!r:.40}")
    several = (texts,) if isinstance(texts, str) else tuple(texts)
    for text in several:
        if not isinstance(text, str) or not text.strip():
            raise UsageError(f"expected texts of at least one word, got {text!r}")
    if not several:
        raise UsageError("expected at least one text, got none")
    lines = tuple(range(1, len(several) + 1)) if len(several) > 1 else ()
    return Texts(several, "", lines)


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
