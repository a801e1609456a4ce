"""Turns the fields of a config.json into a ``ModelSpec``: code that all model families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from attnviz.count.params import specs
from attnviz.errors import LoadError

MOST_LAYERS = 100_000
"""The most layers that are distinguished."""

_SIMILAR = 0.85


class UnclaimedError(Exception):
    """Raised if a config has a setting that the counts do not cover."""


class Fields:
    """The fields of a config; records which names were asked for, to find misspelt ones.

    config: the fields as its file has them. name: of the model. defaults: the values of missing
        fields. spellings: other names that a field may have.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        defaults: Mapping[str, Any],
        spellings: Mapping[str, Sequence[str]],
    ) -> None:
        self.name = name
        self._config = config
        self._defaults = defaults
        self._spellings = spellings
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        """Return the value of a field, or its default if it is missing; None for null."""
        for spelling in (*self._spellings.get(key, ()), key):
            self._asked.add(spelling)
            if spelling in self._config:
                return self._config[spelling]
        return self._defaults.get(key)

    def whole(self, key: str, least: int = 1) -> int:
        """Return the integer in field ``key``; raise LoadError unless it is at least ``least``."""
        value = self.get(key)
        if type(value) is not int or not least <= value <= specs.MOST:
            raise self._wrong(
                f"{key} = {value!r}: expected a whole number of {least} or more, "
                f"{specs.MOST:,} at most"
            )
        return value

    def wholes(self, *keys: str) -> list[int]:
        """Return the integers in several fields, each at least 1."""
        return [self.whole(key) for key in keys]

    def optional(self, key: str, least: int = 1) -> int | None:
        """Return the integer in field ``key``, or None if the field is null or missing.

        Raises LoadError unless it is a whole number of at least ``least``.
        """
        return None if self.get(key) is None else self.whole(key, least)

    def flag(self, key: bool | str) -> bool:
        """Return ``key`` itself if it is a bool; else the field of that name, as a bool."""
        return key if isinstance(key, bool) else bool(self.get(key))

    def listed(self, key: str, length: int) -> list[Any] | None:
        """Return the field ``key``, a list with an entry per layer; None if it is missing.

        length: the number of layers. Raises LoadError for another type or a shorter list.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self._wrong(f"{key} = {value!r}: expected a list of {length}")
        return value[:length]

    def divided(self, width: int, heads: int) -> int:
        """Return the width of a head; raise LoadError if ``heads`` do not divide ``width``."""
        if width % heads:
            raise self._wrong(f"{heads} heads, which do not divide its width {width}")
        return width // heads

    def grouped(self, heads: int, kv_heads: int) -> int:
        """Return ``kv_heads``; raise LoadError if it does not divide the query heads ``heads``."""
        if heads % kv_heads:
            raise self._wrong(f"{kv_heads} key/value heads, which do not divide its {heads} heads")
        return kv_heads

    def _wrong(self, what: str) -> LoadError:
        return LoadError(f"the config of {self.name!r} has {what}")

    def misspelt(self) -> tuple[str, str] | None:
        """Return a probably misspelt field and the field that was meant; None if all are known."""
        import difflib  # only a config that is read from a file can have misspelt fields

        for key in self._config:
            if key not in self._asked:
                close = difflib.get_close_matches(key, self._asked, n=1, cutoff=_SIMILAR)
                if close and close[0] not in self._config:
                    return key, close[0]
        return None


Reader: TypeAlias = "Callable[..., specs.ModelSpec]"
"""Called with ``Fields`` and, by name, the purpose of the class and the family's switches."""


class Adapter(NamedTuple):
    """The rules that turn configs of one ``model_type`` into ``ModelSpec``s.

    classes: for each supported model class the function that makes a spec of ``Fields``.
    assumed: the class that is counted where a config names none.
    defaults: the fields that its config class fills in.
    spellings: other names of a field, the family's own first.
    """

    classes: Mapping[str, Reader]
    assumed: str
    defaults: Mapping[str, Any]
    spellings: Mapping[str, Sequence[str]]


def layer_norm(label: str, width: int) -> specs.Norm:
    """Return the spec of a norm of ``width`` features with scale and shift."""
    return specs.Norm(label, width, shift=True)


def square_attention(
    fields: Fields,
    width: int,
    heads: int,
    *,
    bias: bool = True,
    kv_heads: int | None = None,
    dim: int | None = None,
) -> specs.AttentionSpec:
    """Return attention whose heads share the model's width, or have a width of their own.

    bias: True if all four projections have biases. kv_heads: as many as ``heads`` if None.
    dim: the width of a head; None for its share of the model's.
    """
    dim = dim or fields.divided(width, heads)
    kv_heads = fields.grouped(heads, kv_heads or heads)
    return specs.AttentionSpec(width, heads, kv_heads, dim, dim, *(bias, bias, bias, bias))


def plain_feed_forward(width: int, inner: int, bias: bool = True) -> specs.FeedForwardSpec:
    """Return the spec of two matrices between outer and inner width, which have biases or none."""
    return specs.FeedForwardSpec(width, inner, up_bias=bias, down_bias=bias)


def block(
    *attentions: specs.AttentionSpec,
    feed_forward: specs.FeedForwardSpec,
    norms: int,
    shift: bool = True,
    parts: tuple[specs.Part, ...] = (),
) -> specs.LayerSpec:
    """Return the spec of a layer with ``norms`` norms of the model's width, with a shift or not."""
    labels = ("attention norm", "feed-forward norm", "cross attention norm")[:norms]
    made = tuple(specs.Norm(label, attentions[0].d_model, shift=shift) for label in labels)
    return specs.LayerSpec(attentions, feed_forward, made, parts)


def tables(vocab: int, width: int, positions: int | None = None) -> tuple[specs.LookupTable, ...]:
    """Return a token table of ``vocab`` rows and, unless None, a table of ``positions`` rows."""
    rows = {"token embedding": vocab, "position embedding": positions}
    return tuple(specs.LookupTable(label, n, width) for label, n in rows.items() if n is not None)


def head(fields: Fields, width: int, bias: bool | str = False) -> specs.Dense:
    """Return the spec of the LM head, a matrix onto the vocabulary, tied if the config says so.

    width: of the model. bias: whether it has a bias, or the name of the field that says so.
    """
    vocab, tied = fields.whole("vocab_size"), fields.flag("tie_word_embeddings")
    return specs.Dense("head", width, vocab, bias=fields.flag(bias), tied=tied)


def model(
    fields: Fields, *stacks: specs.StackSpec, embeddings: tuple[specs.Part, ...] = ()
) -> specs.ModelSpec:
    """Return the spec of a model of these stacks; ``embeddings`` are the tables that they share."""
    return specs.ModelSpec(fields.name, "", stacks, embeddings)
