"""Makes a Typer command of a function whose parameters are groups of options, with a short help.

``@command(EXAMPLES) def rollout(text: Text, out: Output)`` becomes a function with a parameter for
each field of each group, as Typer needs it. The function gets the groups, which have checked
themselves; see ``attnviz.options``. ``-h`` shows a help on one small screen; ``--help`` is Typer's.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from textwrap import wrap
from types import GenericAlias, MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from attnviz.errors import UsageError
from attnviz.options import Declared, options_of, typed_name
from attnviz.ranks import check_together
from attnviz.texts import as_utf8

_LARGEST = 2**63 - 1  # the largest whole number that torch and NumPy accept
_NUMBER = re.compile("[0-9]{1,18}")  # a whole number as it is mostly typed
_WHOLE, _THOUSANDS = re.compile(r"[+-]?\d+"), re.compile("([0-9]{1,15})k", re.IGNORECASE)
"""Every whole number, and 32k for 32,000."""

_LITERAL: Any = Literal  # for choices that are known only at run time

_COMMON = ("--model", "--save", "--json", "--brief", "--explain")
"""Options that the short help of every command names, if the command has them."""

_EXAMPLES = 2
_WIDEST = 100
_BREAKS = ("; ", " (", ", ", " ")
"""Where a help that is longer than its line is cut, the best place first."""

WHOLE = "attnviz.whole"
"""The key of what is kept for a command line: whether it asks for the whole help."""

SETTINGS = {"help_option_names": ["-h", "--help"]}


def with_plain_values(parameters: list[Any]) -> list[Any]:
    """Return Typer's parameters of a command, which then convert their values without pydantic.

    Importing pydantic takes a third of the time of a command without a model.
    """
    for param in parameters:
        vars(param)["process_value"] = partial(_processed, param)
    return parameters


def _processed(param: Any, context: Any, value: Any) -> Any:
    """Return a value from the command line converted to its type; Typer does all but plain ones."""
    values = value if isinstance(value, tuple | list) else (value,)
    if "" in values and Path in _kinds(param):
        raise typer.BadParameter("expected a path, got an empty text", context, param)
    if isinstance(value, str) and int in _kinds(param):
        if thousands := _THOUSANDS.fullmatch(value):
            value = f"{thousands[1]}000"
        if not _WHOLE.fullmatch(value):
            expected = f"expected a whole number such as 512 or 32k, got {value!r}"
            raise typer.BadParameter(expected, context, param)
    missing = param.required and param.value_is_missing(value)
    converted = _NOT_PLAIN if missing else _converted(param, value)
    if converted is _NOT_PLAIN:
        return type(param).process_value(param, context, value)
    return converted if param.callback is None else param.callback(context, param, converted)


def _kinds(param: Any) -> tuple[Any, ...]:
    """Return the types that a parameter's values may have, and those in a list of them."""
    kind = param.type_descriptor.annotation
    return kind, *get_args(kind)


_NOT_PLAIN: Any = object()


def _converted(param: Any, value: Any) -> Any:
    """Return a value or default converted to its type; ``_NOT_PLAIN`` if Typer must convert it."""
    kind, several = param.type_descriptor.annotation, param.multiple or param.nargs == -1
    if value is None:
        return () if several else None
    if several:
        kinds = get_args(kind) * len(value)
        return value if all(map(_is_plain, value, kinds)) else _NOT_PLAIN
    if _is_plain(value, kind):
        return value
    if kind is int and isinstance(value, str) and _NUMBER.fullmatch(value):
        number, least, most = int(value), param.min, param.max
        if (least is None or number >= least) and (most is None or number <= most):
            return number
    return _NOT_PLAIN


def _is_plain(value: Any, kind: Any) -> bool:
    """Return whether a value has this plain type, or is one of its choices, without conversion."""
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return kind in (str, bool, int, float) and type(value) is kind


class OptionsOnce(TyperCommand):
    """A Typer command that refuses a repeated option if only one of its values would count.

    often: its most used options, which ``-h`` shows; ``--help`` shows all. briefs: the short texts
    of its parameters for ``-h``, by name, where they have one.
    """

    often: tuple[str, ...] = ()
    briefs: Mapping[str, str] = MappingProxyType({})

    def get_params(self, ctx: Any) -> list[Any]:
        *others, asking = with_plain_values(super().get_params(ctx))
        asking.help = "Show all options and exit; -h shows the common ones."
        return [*others, asking]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the usage line; a required argument stands without Typer's braces."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help: for ``-h`` the usage, two examples and the most used options."""
        if ctx.meta[WHOLE]:
            super().format_help(ctx, formatter)
            return
        room, path = shell_columns(), f"attnviz {self.name}"
        options = [param for param in self.params if param.param_type_name == "option"]
        named = {name: param for param in options for name in param.opts}
        chosen = [named[name] for name in (*self.often, *_COMMON) if name in named]
        usage, typed = [path], list[tuple[str, Any]]()
        for param in self.params:
            if param.param_type_name == "argument":
                shown = str(param.metavar).strip("[]")
                typed.append((shown, param))
                shown = shown if param.required else f"[{shown}]"
                usage.append(f"{shown}..." if param.nargs == -1 or param.multiple else shown)
        typed += [(typed_option(param), param) for param in chosen]
        lead = max(len(spelled) for spelled, _ in typed)
        every = f"all {len(options)} options" if len(options) > 1 else "everything"
        manual = "attnviz docs" if self.name == "docs" else f"attnviz docs {self.name}"
        lines = str(self.epilog).splitlines()
        examples = [line for line in lines if line.startswith("attnviz ")]
        whole_first = sorted(examples, key=lambda line: len(line) + 2 > room)
        lines = [" ".join([*usage, "[OPTIONS]"]), *wrap(str(self.help), room), ""]
        lines += [*(f"  {line}" for line in whole_first[:_EXAMPLES]), ""]
        for spelled, param in typed:
            text = self.briefs.get(param.name) or param.help or ""
            lines.append(f"  {spelled.ljust(lead)}  {cut_help(text, room - lead - 4)}")
        lines += ["", *wrap(f"{path} --help: {every}; {manual}: the manual", room)]
        formatter.write("\n".join(lines))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WHOLE] = "--help" in args
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for param in given:
            flag = getattr(param, "is_flag", True)
            if given.count(param) > 1 and not (flag or param.multiple or ctx.resilient_parsing):
                times = given.count(param)
                raise UsageError(f"{param.opts[0]} is given {times} times: expected one")
        return super().parse_args(ctx, args)


def command(
    examples: str, often: str = "", cls: type[OptionsOnce] = OptionsOnce, draws: str = ""
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Return a decorator that makes a Typer command of a function whose parameters are ``Options``.

    examples: a command a line, for the end of the help; the first two are those of ``-h``.
    often: the options of the command that ``-h`` shows, next to those that all commands share.
    draws: what the command draws from its ``--seed``, for the help.
    A later group's field replaces an earlier one of the same name, in the help as well.
    """

    def built(call: Callable[..., None]) -> typer.Typer:
        groups = {name: kind for name, kind in get_type_hints(call).items() if name != "return"}
        options: dict[str, Declared] = {}
        for kind in groups.values():
            for name, declared in options_of(kind).items():
                options.pop(name, None)  # a later group's takes its place
                options[name] = declared
        briefs = {name: own.field.metadata.get("brief") for name, own in options.items()}
        kept = {"often": tuple(often.split()), "briefs": briefs}
        chosen = type(cls.__name__, (cls,), kept)
        app = typer.Typer(add_completion=False, rich_markup_mode="rich", context_settings=SETTINGS)
        lines = ["[bold]Examples[/bold]", *examples.split("\n")[1:-1]]
        epilog = "\n" + "\n\n".join(lines) + "\n"
        app.command(epilog=epilog, cls=chosen)(_spread(call, groups, options, draws))
        return app

    return built


def _spread(
    call: Callable[..., None],
    groups: Mapping[str, type],
    options: Mapping[str, Declared],
    draws: str,
) -> Callable[..., None]:
    """Return ``call`` with a parameter for each field of the groups that it takes.

    groups: by the names of its parameters. options: of all groups. draws: see ``command``.
    """
    helps = {"seed": {"help": f"Random seed ({draws})."}} if draws else {}
    parameters = [_parameter(own, **helps.get(name, {})) for name, own in options.items()]

    def run(**given: Any) -> None:
        read = {name: _read(given[name], own) for name, own in options.items()}
        _check_outputs(read, options)
        made = {
            name: kind(**{field.name: read[field.name] for field in fields(kind)})
            for name, kind in groups.items()
        }
        if read.get("tp"):
            check_together(call.__name__, read)
        call(**made)

    run.__name__, run.__doc__ = call.__name__, call.__doc__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {param.name: param.annotation for param in parameters}
    return run


def _parameter(declared: Declared, **more: str) -> inspect.Parameter:
    """Return the parameter that declares an option for Typer; ``more`` replaces its own words."""
    field, kind = declared.field, declared.type
    given = {"rich_help_panel": declared.panel, **field.metadata, **more}
    for own in ("words", "endings", "brief", "writes"):
        given.pop(own, None)
    if Path in get_args(kind) and get_origin(kind) is not tuple:
        kind = Path | None  # Python code may pass the contents instead
    if "choices" in given:
        kind = _LITERAL[given.pop("choices")] | None
    default = {} if field.default is ... else {"default": field.default}
    if get_origin(kind) is tuple:
        kind, default = GenericAlias(list, get_args(kind)[:1]) | None, {"default": None}
    if given.pop("bare", False):
        typer_info: Any = typer.Argument(**given)
    else:
        given.pop("name", None)
        typer_info = typer.Option(typed_name(field), *given.pop("short", "").split(), **given)
    annotation, keyword = Annotated[kind, typer_info], inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, annotation=annotation, **default)


def _read(value: Any, declared: Declared) -> Any:
    field, kind = declared.field, declared.type
    if get_origin(kind) is tuple:
        return tuple(value or ())
    if value is not None and field.metadata.get("words"):
        if isinstance(value, tuple):
            return tuple(as_utf8(word, typed_name(field)) for word in value)
        return as_utf8(value, typed_name(field))
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise UsageError(
            f"{typed_name(field)} {value} is too large a number: expected at most 2^63 - 1"
        )
    return value


def _check_outputs(read: Mapping[str, Any], options: Mapping[str, Declared]) -> None:
    """Raise UsageError if a file to write is one that another option names, which would be lost."""
    given = [
        (path, own)
        for own in (declared.field for declared in options.values())
        for path in (read[own.name] if isinstance(read[own.name], tuple) else (read[own.name],))
        if isinstance(path, str | Path) and not own.metadata.get("words")
    ]
    try:
        named = [(os.path.realpath(path), own) for path, own in given]
    except OSError:  # the working directory was deleted, so that no path leads into it
        return
    written = {path: typed_name(own) for path, own in named if own.metadata.get("writes")}
    for path, own in named:
        if (writing := written.get(path, typed_name(own))) != typed_name(own):
            raise UsageError(f"{writing} would overwrite {path} of {typed_name(own)}: name another")


# The short help -------------------------------------------------------------------------------


def shell_columns() -> int:
    """Return the width in characters of the help."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def typed_option(param: Any) -> str:
    """Return the spelling of a Typer option with its value, such as ``-m, --model NAME``."""
    short = [name for name in param.opts if not name.startswith("--")]
    long = [name for name in param.opts if name.startswith("--")]
    return f"{', '.join([*short, *long[:1]])} {param.metavar or ''}".rstrip()


def cut_help(text: str, max_width: int) -> str:
    """Return a sentence in at most ``max_width`` characters, ended by three dots if it is cut."""
    if len(text) <= max_width:
        return text
    kept = text[: max(max_width, 12) - 4]
    ends = [position for mark in _BREAKS[:-1] if (position := kept.rfind(mark)) > max_width // 2]
    end = max(ends, default=kept.rfind(_BREAKS[-1]))
    return f"{kept[:end].rstrip(' ,;:(')} ..."
