"""The options of a command, declared once as frozen dataclasses, for Python and the command line.

Each field is declared with ``option``, ``flag`` or ``argument``, which give its help. Groups of
fields that belong together are classes, and the request of a command inherits its groups:
``class RolloutRequest(Truncation, Kind, HeadChoice)``. Creating a request checks every value, so
that a wrong one is refused before a model is loaded. ``attnviz.cli.groups`` makes the options of
the command line from the same fields.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from attnviz.errors import UsageError


@dataclass(frozen=True)
class Options:
    """A group of options; a subclass is a frozen dataclass.

    A subclass that checks how its options go together does so in ``__post_init__``, after it has
    called that of its base.

    panel: the heading in the help for the options of the class.
    """

    panel: ClassVar[str | None] = None

    def __init_subclass__(cls, panel: str | None = None) -> None:
        if panel is not None:
            cls.panel = panel

    def __post_init__(self) -> None:
        group: Any = type(self)
        for name, declared in options_of(group).items():
            value = checked(name, getattr(self, name), declared)
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Return the checked request with the options among ``keywords``; ignore other keywords.

        A function whose keywords are the options passes its ``locals()``.
        """
        names = {own.name for own in fields(cls)}
        return cls(**{name: value for name, value in keywords.items() if name in names})

    def given(self) -> Iterator[str]:
        """Yield the names of the options that differ from their defaults, as they are typed."""
        for own in fields(self):
            if getattr(self, own.name) != own.default:
                yield typed_name(own)

    def typed(self) -> Iterator[str]:
        """Yield the options that differ from their defaults as arguments of a command line."""
        for own in fields(self):
            values = getattr(self, own.name)
            if values == own.default or own.metadata.get("bare"):
                continue
            yes, _, no = typed_name(own).partition("/")
            for value in values if isinstance(values, tuple) else (values,):
                yield no if value is False else yes
                if not isinstance(value, bool):
                    yield str(value)


def option(metavar: str, help: str, default: Any = None, **more: Any) -> Any:
    """Declare an option that has the name of its field; ``name`` and ``short`` give other names.

    metavar: the name of its value in the help. help: a sentence about it.
    default: ``...`` if a value must be given. A field of type ``tuple`` may be given several times.
    more: ``choices`` are the allowed values, if the type does not list them. ``words=True`` reads
        the value as UTF-8, whatever the locale. ``writes=True`` if the value names a file to write.
        ``brief`` replaces the help in ``-h``, with at most 50 characters. Others go to Typer.
    """
    return field(default=default, metadata={"metavar": metavar, "help": help, **more})


def flag(help: str, **more: Any) -> Any:
    """Declare an option without a value: False unless its name is typed; see ``option``."""
    return option("", help, False, **more)


def argument(metavar: str, help: str, default: Any = None, **more: Any) -> Any:
    """Declare a value that is typed on the command line without an option name.

    metavar: its name in the help. help: a sentence about it. default: ``...`` if it must be given.
    more: as for ``option``.
    """
    return option(metavar, help, default, bare=True, **more)


def typed_name(field: Field[Any]) -> str:
    """Return what a person types for a field, such as ``--index-base``."""
    rules, usual = field.metadata, "--" + field.name.replace("_", "-")
    return str(rules["metavar"] if rules.get("bare") else rules.get("name", usual))


@dataclass(frozen=True)
class Declared:
    """An option as its class declares it; the command line is made from these."""

    field: Field[Any]
    type: Any
    panel: str | None


@cache
def options_of(group: Any) -> Mapping[str, Declared]:
    """Return a class's options by name, those of its first base first; ``group``: the class.

    An option that a class declares again keeps its place in the base. If a class names a panel, the
    options of its bases move there.
    """
    options: dict[str, Declared] = {}
    for base in group.__bases__:
        if issubclass(base, Options):
            options |= options_of(base)
    if "panel" in vars(group):
        options = {name: replace(own, panel=group.panel) for name, own in options.items()}
    types = get_type_hints(group)
    for own in fields(group):
        if own.name in vars(group).get("__annotations__", {}):
            options[own.name] = Declared(own, types[own.name], group.panel)
    return options


# Values --------------------------------------------------------------------------------------


def checked(name: str, value: Any, declared: Declared) -> Any:
    """Return an option's value, checked and converted to the type of its field.

    name: the option's name. declared: how its class declares it.
    NumPy's numbers become Python's, an INDEX given as a number its digits, a string for a path a
    Path, and a single value where several are allowed a tuple of one.
    Raises UsageError for another type, or a value out of range or not among the choices.
    """
    kind, rules = declared.type, declared.field.metadata
    if value is declared.field.default or (value is None and get_origin(kind) is not tuple):
        return value
    if get_origin(kind) in (Union, UnionType):
        kinds = [own for own in get_args(kind) if own is not type(None)]
        if len(kinds) > 1:  # the request class checks it
            return value
        kind = kinds[0]
    if get_origin(kind) is tuple:
        several = value if isinstance(value, tuple | list) else (value,)
        kinds = [*get_args(kind)]
        if ... not in kinds and len(several) != len(kinds):
            raise UsageError(f"{name} takes {len(kinds)} values, got {len(several)}")
        return tuple(_single(name, single, get_args(kind)[0], rules) for single in several)
    return _single(name, value, kind, rules)


def _single(name: str, value: Any, kind: Any, rules: Mapping[str, Any]) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            expected = ", ".join(map(repr, get_args(kind)))
            raise UsageError(f"{name}={value!r} is not one of {expected}")
        return value
    if kind is Path:
        return Path(value) if isinstance(value, str | os.PathLike) else value
    if kind is str and isinstance(value, Integral) and "INDEX" in rules.get("metavar", ""):
        value = str(int(value))
    if kind in (int, float) and not isinstance(value, bool):
        if isinstance(value, Integral):
            value = kind(int(value))
        elif kind is float and isinstance(value, Real):
            value = float(value)
    wrong = isinstance(value, bool) and kind is not bool
    if isinstance(kind, type) and (wrong or not isinstance(value, kind)):
        raise UsageError(f"{name} takes {kind.__name__}, got {value!r}")
    least, most = rules.get("min"), rules.get("max")
    if (least is not None and value < least) or (most is not None and value > most):
        ends = f"{least} or more" if most is None else f"{least} to {most}"
        raise UsageError(f"{name}={value} is out of range: expected {ends}")
    return value


# Groups that many commands share -------------------------------------------------------------


@dataclass(frozen=True)
class Truncation(Options):
    """The option on texts that are longer than the model's context."""

    truncate: bool = flag("Truncate texts that are longer than the model's context.")


@dataclass(frozen=True)
class AttentionKind(Options):
    """The option that chooses the kind of attention in a model that has several kinds."""

    kind: Literal["self", "encoder", "decoder", "cross"] | None = option(
        "KIND",
        "Which attention of an encoder–decoder: encoder (default), decoder or cross.",
        brief="For an encoder–decoder: encoder, decoder or cross.",
    )


@dataclass(frozen=True)
class Kind(AttentionKind):
    """The options that choose the kind of attention, and the decoder text of an encoder–decoder."""

    target: str | None = option(
        "TEXT",
        "Decoder text for --kind decoder and cross (default: the model's own greedy output).",
        words=True,
    )


@dataclass(frozen=True)
class Reduction(Options, panel="Long texts"):
    """The option on how the attention over a long text is read."""

    reduce: Literal["auto", "fused", "full"] = option(
        "MODE",
            "full: keep whole maps; fused: keep only sums over the queries, no maps; auto: choose "
            "by size.",
        "auto",
    )  # fmt: skip


@dataclass(frozen=True)
class HeadChoice(Options):
    """The options that choose heads; Python code may give numbers and pairs (layer, head)."""

    layer: str | None = option("LAYERS", "Layers: 2, 0-3 or 0,5; -1 is the last.", short="-l")
    head: tuple[str, ...] = option(
        "HEADS",
        "Heads: L2H5, 3 (in every layer), 2.5, 2.*, 0-3.1,4, -1, or a label such as induction; may "
        "be repeated.",
        (),
        short="-H",
        brief="Heads: L2H5, 3 (in every layer), 2.*, induction.",
    )

    def __post_init__(self) -> None:
        if self.layer is not None:
            object.__setattr__(self, "layer", str(self.layer))
        object.__setattr__(self, "head", spelled_heads(self.head))
        super().__post_init__()


@dataclass(frozen=True)
class Known(Options):
    """The option on showing labels that were measured before this run."""

    no_known_labels: bool = flag(
        "Ignore labels assigned earlier: those in the model card and those saved by attnviz "
        "patterns."
    )


@dataclass(frozen=True)
class Ranked(Options, panel="View"):
    """The option on the length of a ranking."""

    top: int = option("N", "Number of heads to list.", 8, min=1)


_JOINED = "A second text, joined to the first the way the tokenizer joins pairs"


@dataclass(frozen=True)
class SecondText(Options):
    """The option that makes a text a pair of texts, for models that compare two."""

    second: str | None = option("TEXT", f"{_JOINED}.", name="--and", words=True)


@dataclass(frozen=True)
class ChatOption(Options):
    """The option ``--chat``: a chat that is read in place of the text.

    chat: a file's path, or JSON, or lines such as ``user: Hi.``; from Python also a list of
        messages, which is stored as JSON.
    """

    chat: str | None = option(
        "FILE|TEXT",
        "A chat instead of TEXT: JSON with role and content fields, or lines such as “user: Hi”. "
        "The model's own chat template is applied.",
        words=True,
    )

    def __post_init__(self) -> None:
        chat: Any = self.chat
        if isinstance(chat, os.PathLike):
            object.__setattr__(self, "chat", os.fspath(chat))
        elif chat is not None and not isinstance(chat, str):
            try:
                object.__setattr__(self, "chat", json.dumps(chat))
            except (TypeError, ValueError) as error:
                raise UsageError(f"chat is not a list of messages: {error}") from error
        super().__post_init__()
        if self.chat is not None and getattr(self, "second", None) is not None:
            raise UsageError("--chat is one text: leave out --and")


@dataclass(frozen=True)
class RegionOptions(ChatOption, panel="Chat and regions"):
    """The options on which parts of a text are regions, between which attention is summed.

    The roles of a chat are regions. Python code gives ``spans`` as a mapping of names to
    (start, end) or to words.
    """

    span: tuple[str, ...] = option(
        "NAME=PLACES",
        "Name a region: NAME=2:5 is tokens 2, 3 and 4; NAME=WORDS or NAME='FIRST … LAST' "
        "matches words that occur exactly once in the text; may be repeated.",
        (),
    )
    spans: Path | None = option("FILE", "Regions from a file, one per line, written as for --span.")
    second: str | None = option("TEXT", f"{_JOINED}; each is a region.", name="--and", words=True)

    def __post_init__(self) -> None:
        spans: Any = self.spans
        if isinstance(spans, Mapping):
            object.__setattr__(self, "span", (*self.span, *_spelled(spans)))
            object.__setattr__(self, "spans", None)
        super().__post_init__()
        if self.second is not None and not self.second.strip():
            raise UsageError("--and is empty: expected a text of at least one word")

    @property
    def regions_given(self) -> tuple[str, ...]:
        """Return the names of these options that are given, as they are typed."""
        return tuple(RegionOptions.of(vars(self)).given())


def _spelled(spans: Mapping[Any, Any]) -> Iterator[str]:
    for name, span in spans.items():
        if isinstance(span, str):
            yield f"{name}={span}"
        elif isinstance(span, Sequence) and len(span) == 2:
            yield f"{name}={span[0]}:{span[1]}"
        else:
            raise UsageError(f"spans[{name!r}] is (start, end) or words, got {span!r}")


@dataclass(frozen=True)
class IndexBase(Options):
    """Number layers and heads from 0 or 1, in options and on screens; tokens count from 0."""

    index_base: int = option("0|1", "Index base for layers and heads (0 or 1).", 0, min=0, max=1)


@dataclass(frozen=True)
class Seed(Options):
    """The option on the seed of every random choice."""

    seed: int = option("N", "Random seed.", 0, min=0)


@dataclass(frozen=True)
class Sharding(Options, panel="Many texts"):
    """The option on the share of a corpus that one process measures."""

    shard: str | None = option(
        "K/N",
        "Process only shard K of N, counting from 0 (default: everything; under torchrun, K and N "
        "are the rank and the world size).",
        brief="Process only shard K of N, counting from 0.",
    )


@dataclass(frozen=True)
class TextColumn(Options):
    """The option that names the column of a table in which the texts are."""

    column: str | None = option(
        "NAME", "The column of --texts that holds the texts (default: text).", words=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.column is not None and getattr(self, "texts", None) is None:
            raise UsageError("--column is that of a table of texts: add --texts FILE")


@dataclass(frozen=True)
class ManyTexts(TextColumn, Sharding, panel="Many texts"):
    """The options on a corpus, of which several processes may each measure a share."""

    texts: str | None = option(
        "FILE|NAME",
        "A corpus of any size: one text per line; CSV, TSV, JSON or Parquet with a column named "
        "text; or a dataset on the Hub, OWNER/NAME[:SPLIT[:COLUMN]]; use - for standard input.",
        brief="A corpus: lines, CSV, TSV, JSON, Parquet or a dataset.",
    )
    resume: Path | None = option(
        "FILE", "Save results to FILE, and resume where an earlier run left off; see attnviz merge."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        lonely = "--shard" if self.shard is not None else "--resume"
        if self.texts is None and (self.shard is not None or self.resume is not None):
            raise UsageError(f"{lonely} is for a corpus: add --texts FILE")


@dataclass(frozen=True)
class OwnShape(Options, panel="attnviz's own attention (--model mha)"):
    """The options on the sizes of the model ``mha``; None means not given."""

    d_model: int | None = option("D", "Model width (default: 64).")
    heads: int | None = option("H", "Number of query heads (default: 8).")
    kv_heads: int | None = option("K", "Number of key/value heads (default: one per query head).")
    causal: bool | None = option(
        "", "Mask later tokens (causal mask; default: no).", name="--causal/--no-causal"
    )

    @property
    def shape(self) -> dict[str, Any]:
        """Return the sizes that were given, by the keyword names of ``LoadOptions``."""
        given = {name: getattr(self, name) for name in ("d_model", "heads", "kv_heads", "causal")}
        return {name: value for name, value in given.items() if value is not None}


_BARE = re.compile(r"(^|[\s,])[Hh](?=[\d*-])")


def spelled_heads(choice: Any) -> tuple[str, ...]:
    """Return choices of heads as strings of the command line.

    choice: None, a choice or a list of choices; each is a string such as ``L2H5``, the number of a
    head of every layer, or a pair (layer, head). ``H3``, as heads of an array without layers are
    named, becomes 3.
    """
    if choice is None:
        return ()
    pair = isinstance(choice, tuple) and len(choice) == 2 and not isinstance(choice[0], str | tuple)
    several = choice if isinstance(choice, tuple | list) and not pair else (choice,)
    return tuple(map(spelled_head, several))


def spelled_head(choice: Any) -> str:
    """Return a choice, such as ``L2H5``, 3 in every layer or (2, 5), as the command line has it."""
    if isinstance(choice, tuple) and len(choice) == 2:
        return f"L{choice[0]}H{choice[1]}"
    return _BARE.sub(r"\1", str(choice))


# Amounts -------------------------------------------------------------------------------------

_NUMBER = r"([0-9]{1,15}(?:\.[0-9]*)?|\.[0-9]+)"
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BYTES |= {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgtp", start=1)}


@dataclass(frozen=True)
class Budget:
    """A limit for measurements: seconds or a number of removals of heads; the other is None."""

    seconds: float | None = None
    count: int | None = None


def read_budget(typed: str) -> Budget:
    match = re.fullmatch(rf"{_NUMBER}\s*(s|m|min|h|heads?)?", typed.strip().lower())
    heads = "a number of heads such as 20"
    if match is None or (match[2] not in _SECONDS and not match[1].isdigit()):
        raise UsageError(
            f"cannot read --budget {typed!r}: expected a time such as 30s or 5m, or {heads}"
        )
    if float(match[1]) == 0:
        wanted = f"expected a time such as 30s or {heads}"
        raise UsageError(f"--budget 0 leaves nothing to measure: {wanted}")
    if match[2] in _SECONDS:
        return Budget(seconds=float(match[1]) * _SECONDS[match[2]])
    return Budget(count=int(match[1]))


def read_size(typed: str, option: str = "--max-memory", least: int = 1) -> int:
    """Return the bytes of a size such as ``2GB`` (10⁹ each), ``512MiB`` (2²⁰ each) or ``64B``.

    typed: the size. option: the option's name for the message. least: the fewest bytes, 0 or 1.
    Raises UsageError for anything else, also for a bare number, which could mean any unit.
    """
    from fractions import Fraction  # with decimal; few commands read sizes

    match = re.fullmatch(rf"{_NUMBER}\s*(?:([kmgtp]i?)b?|b)", typed.strip().lower())
    if match is None:
        bare = re.fullmatch(_NUMBER, typed.strip()) is not None and float(typed) > 0
        instead = f"{typed.strip()}GB" if bare else "24GB or 512MiB"
        raise UsageError(
            f"cannot read {option} {typed!r}: expected a size with its unit, such as {instead}"
        )
    size = int(Fraction(match[1]) * _BYTES[match[2] or ""])
    if size < least:
        raise UsageError(f"{option} {typed.strip()} leaves no room: expected a size such as 24GB")
    return size


# Keywords of functions -----------------------------------------------------------------------

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def keywords_checked(function: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Return the function, made to refuse keywords that it does not have, unless it takes any."""
    if any(param.kind is param.VAR_KEYWORD for param in _parameters(function)):
        return function

    @wraps(function)
    def checked_call(*args: _Given.args, **given: _Given.kwargs) -> _Answer:
        refuse_unknown(function.__name__, given, function)
        return function(*args, **given)

    return checked_call


def refuse_unknown(
    name: str, given: Iterable[str], function: Callable[..., Any], *others: Callable[..., Any]
) -> None:
    """Raise TypeError for a keyword that a function does not have, with the one that is meant.

    name: of the function. given: the keywords that were passed. others: functions that take some of
        the keywords too; one that takes any has them all.
    """
    from difflib import get_close_matches  # of a call that fails

    if any(param.kind is param.VAR_KEYWORD for own in others for param in _parameters(own)):
        return
    alone = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    shared = (param for own in (function, *others) for param in _parameters(own))
    known = [param.name for param in shared if param.kind not in alone]
    for keyword in given:
        if keyword not in known:
            close = get_close_matches(keyword, known, 1)
            advice = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}: {advice}")


def _parameters(function: Callable[..., Any]) -> Iterable[Parameter]:
    return signature(function).parameters.values()
