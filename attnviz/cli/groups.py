"""A command's options as frozen dataclasses: one field an option, one class a panel of the help.

``@command(EXAMPLES) def rollout(text: Text, out: Output)`` is what Typer would want with every
field of every group as a parameter; the command gets the groups, which have checked themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from types import GenericAlias
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from attnviz.errors import UsageError

_LARGEST = 2**63 - 1
"""The largest whole number that torch and NumPy take."""

_LITERAL: Any = Literal  # of choices that are known only when a command is imported

SETTINGS = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Options:
    """A group of options; a subclass is a frozen dataclass whose ``__post_init__`` checks it.

    panel: the heading of the help that its options stand under.
    """

    panel: ClassVar[str | None] = None

    def __init_subclass__(cls, panel: str | None = None) -> None:
        cls.panel = panel or cls.panel

    def given(self) -> Iterator[str]:
        """The options that are not as they would be anyway, as they are typed."""
        for one in fields(self):
            if getattr(self, one.name) != one.default:
                yield _typed(one)

    def typed(self) -> Iterator[str]:
        """The same options with their values, each word an argument of the command line."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value == one.default or one.metadata.get("bare"):
                continue
            yes, _, no = _typed(one).partition("/")
            for each in value if isinstance(value, tuple) else (value,):
                yield no if each is False else yes
                if not isinstance(each, bool):
                    yield str(each)


def option(metavar: str, help: str, default: Any = None, **more: Any) -> Any:
    """An option called as its field is; ``name`` says it otherwise, ``short`` has more names.

    default: ``...`` where it must be given. A field of type ``tuple`` may be given several times.
    ``choices`` are the values that there are, where the type does not list them. ``words=True``
    reads the value as UTF-8 whatever the locale made of its bytes. All else goes to Typer.
    """
    return field(default=default, metadata={"metavar": metavar, "help": help, **more})


def flag(help: str, **more: Any) -> Any:
    """An option that is on or off."""
    return option("", help, False, **more)


def argument(metavar: str, help: str, default: Any = None, **more: Any) -> Any:
    """What stands on the command line without a name."""
    return option(metavar, help, default, bare=True, **more)


class OptionsOnce(TyperCommand):
    """A command that refuses an option that is given twice and of which only one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for one in given:
            flag = getattr(one, "is_flag", True)
            if given.count(one) > 1 and not (flag or one.multiple or ctx.resilient_parsing):
                raise UsageError(f"{one.opts[0]} is given {given.count(one)} times: expected one")
        return super().parse_args(ctx, args)


def command(
    examples: str, cls: type[TyperCommand] = OptionsOnce
) -> Callable[[Callable[..., None]], typer.Typer]:
    """Make a function of groups a command of its own; ``examples`` close its help.

    A later group's field takes the place of an earlier one of the same name, in the help as well.
    """

    def built(call: Callable[..., None]) -> typer.Typer:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich", context_settings=SETTINGS)
        app.command(epilog=examples, cls=cls)(_spread(call))
        return app

    return built


def _spread(call: Callable[..., None]) -> Callable[..., None]:
    """``call`` with a parameter for each field of its groups."""
    groups = {name: kind for name, kind in get_type_hints(call).items() if name != "return"}
    one_each: dict[str, tuple[Field[Any], Any]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    for kind in groups.values():
        types = get_type_hints(kind)
        for one in fields(kind):
            one_each[one.name] = one, types[one.name]
            parameters[one.name] = _parameter(one, types[one.name], kind.panel)

    def run(**given: Any) -> None:
        read = {name: _read(given[name], *one) for name, one in one_each.items()}
        made = {
            name: kind(**{one.name: read[one.name] for one in fields(kind)})
            for name, kind in groups.items()
        }
        call(**made)

    run.__name__, run.__doc__ = call.__name__, call.__doc__
    vars(run)["__signature__"] = inspect.Signature(list(parameters.values()))
    run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return run


def _parameter(one: Field[Any], kind: Any, panel: str | None) -> inspect.Parameter:
    """How Typer is told of a field."""
    given = {"rich_help_panel": panel, **one.metadata}
    given.pop("words", None)
    given.pop("endings", None)
    if "choices" in given:
        kind = _LITERAL[given.pop("choices")] | None
    default = {} if one.default is ... else {"default": one.default}
    if get_origin(kind) is tuple:
        kind, default = GenericAlias(list, get_args(kind)[:1]) | None, {"default": None}
    if given.pop("bare", False):
        told: Any = typer.Argument(**given)
    else:
        given.pop("name", None)
        told = typer.Option(_typed(one), *given.pop("short", "").split(), **given)
    return inspect.Parameter(
        one.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, told], **default
    )


def _read(value: Any, one: Field[Any], kind: Any) -> Any:
    """What the command line gave, as the field holds it."""
    if get_origin(kind) is tuple:
        return tuple(value or ())
    if value is not None and one.metadata.get("words"):
        from attnviz.texts import as_utf8

        if isinstance(value, tuple):
            return tuple(as_utf8(word, _typed(one)) for word in value)
        return as_utf8(value, _typed(one))
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise UsageError(f"{_typed(one)} {value} is too large a number: expected at most 2^63 - 1")
    return value


def _typed(one: Field[Any]) -> str:
    """What a person types for a field."""
    if one.metadata.get("bare"):
        return str(one.metadata["metavar"])
    return str(one.metadata.get("name", "--" + one.name.replace("_", "-")))
