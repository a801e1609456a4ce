"""A module of the person's own as ``--model``: ``path/to/file.py:build``.

``build()`` returns the module with inputs, ``module, inputs`` or ``module, inputs, options``.
``build(text)`` is given the text of the command line, and makes the inputs from it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.errors import AttnvizError, LoadError, UsageError

if TYPE_CHECKING:
    from torch.nn import Module

_NAME = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_OPTIONS = ("tokens", "key_tokens", "batch", "loss")


class Built(NamedTuple):
    """What a function ``build`` returned.

    inputs, named: the module's arguments. options: keywords of ``attnviz.capture`` and ``ablate``.
    """

    module: Module
    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    options: Mapping[str, Any]


def names_function(name: str) -> bool:
    """Return True for the name of a function in a Python file, such as ``net.py:build``."""
    return _NAME.fullmatch(name) is not None


def built(name: str, text: str | None, *, trusted: bool) -> Built:
    """Run the Python file, call its function, and return the module with its inputs.

    text: for a function that takes one; else its words name the tokens. Raises UsageError unless
    trusted, LoadError if there is no such function, or it fails or returns something else.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    path, function = Path(match[1]).expanduser(), match[2]
    if not path.is_file():
        raise LoadError(f"no file {str(path)!r} here")
    if not trusted:
        raise UsageError(f"{name!r} is code that would run: add --trust-remote-code")
    spec = spec_from_file_location(f"attnviz file {path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    namespace, folder = module_from_spec(spec), str(path.parent.resolve())
    sys.modules[spec.name] = namespace  # where dataclasses look up their annotations
    sys.path.insert(0, folder)  # as Python does for a script
    try:
        with running(name):
            spec.loader.exec_module(namespace)
            build = getattr(namespace, function)
            parameters = inspect.signature(build).parameters.values()
            if text is None and any(each.default is each.empty for each in parameters):
                raise UsageError(f"{name!r} makes its inputs from a text: give one")
            takes_text = bool(parameters) and text is not None
            given = build(text) if takes_text else build()
    finally:
        if folder in sys.path:  # the file may have changed it
            sys.path.remove(folder)
    return _checked(name, given, None if takes_text else text)


@contextmanager
def running(name: str) -> Iterator[None]:
    """Run a block with the module of a file; an error of its own becomes a LoadError."""
    try:
        yield
    except AttnvizError:
        raise
    except Exception as error:
        raise LoadError(f"{name!r} failed: {type(error).__name__}: {error}") from error


def _checked(name: str, given: Any, text: str | None) -> Built:
    from torch.nn import Module

    parts = given if isinstance(given, tuple) else (given,)
    options = parts[2] if len(parts) == 3 and isinstance(parts[2], Mapping) else {}
    wrong = [f"the option {key!r}" for key in options if key not in _OPTIONS]
    if not (len(parts) in (2, 3) and isinstance(parts[0], Module)) or wrong:
        got = (wrong or [", ".join(type(part).__name__ for part in parts)])[0]
        raise LoadError(
            f"{name!r} returned {got}: expected module, inputs, or with options of "
            f"{', '.join(_OPTIONS)}: module, inputs, {{'tokens': words}}"
        )
    module, inputs, *_ = parts
    named = inputs if isinstance(inputs, Mapping) else {}
    several = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    kept = dict(options)
    if text is not None:
        kept.setdefault("tokens", text)
    return Built(module, () if named else several, named, kept)
