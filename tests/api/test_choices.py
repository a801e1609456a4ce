"""The keywords of Python list the values that the options of the command line take.

``attnviz.verify`` takes fewer: its ``dtype`` is that of the library's own attention alone.
"""

import inspect
from typing import Literal, get_args, get_origin

import pytest

import attnviz
from attnviz import records
from attnviz.cli.app import COMMANDS, app_of
from attnviz.count.params.request import Dtype
from attnviz.engine import effects, observer, patching
from attnviz.inspect.interventions.patch import request as patch
from attnviz.inspect.prune import request as prune
from attnviz.measures import registry

TYPES = {
    name: value
    for module in (effects, observer, patching, patch, prune, registry, records)
    for name, value in vars(module).items()
} | {"CountedDtype": Dtype}
"""The names that annotations use, whose modules a function imports for type checkers only."""


def choices(kind):
    """The values that a type lists; empty if it lists none."""
    if get_origin(kind) is Literal:
        return frozenset(get_args(kind))
    return frozenset().union(*map(choices, get_args(kind)))


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"docs", "explore", "use"}))
def test_the_choices_of_an_option_are_those_of_its_keyword(name):
    options = app_of(name).registered_commands[0].callback.__annotations__
    keywords = inspect.signature(getattr(attnviz, name)).parameters
    for option, kind in options.items():
        listed = choices(get_args(kind)[0])
        if listed and option in keywords and (name, option) != ("verify", "dtype"):
            assert choices(eval(keywords[option].annotation, TYPES)) == listed, option
