"""The fields of one config, by any of their spellings, with the family's defaults."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from attnviz.errors import LoadError

__all__ = ["MOST", "Fields", "UnclaimedError"]

MOST = 10**15
"""The largest size that is believed; the same as of the options."""

_SIMILAR = 0.85


class UnclaimedError(Exception):
    """This config asks for something that the arithmetic does not cover."""


class Fields:
    """A config's fields; every question is noted, so that a misspelt field can be found."""

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        defaults: Mapping[str, Any],
        spellings: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = name
        self._config = config
        self._defaults = defaults
        self._spellings = spellings or {}
        self._asked: set[str] = set()

    def get(self, key: str) -> Any:
        """The field, or the default where it is not there; a null is a null."""
        for spelling in (*self._spellings.get(key, ()), key):
            self._asked.add(spelling)
            if spelling in self._config:
                return self._config[spelling]
        return self._defaults.get(key)

    def whole(self, key: str, least: int = 1) -> int:
        """A field that is a whole number; LoadError where it is none, or less than ``least``."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
            raise LoadError(
                f"the config of {self.name!r} has {key} = {value!r}: expected a whole number of "
                f"{least} or more, {MOST:,} at most"
            )
        return value

    def optional(self, key: str, least: int = 1) -> int | None:
        """A whole number, or None where the field is null or missing."""
        return None if self.get(key) is None else self.whole(key, least)

    def flag(self, key: bool | str) -> bool:
        """A switch: itself where it is fixed in the family, else the field of that name."""
        return key if isinstance(key, bool) else bool(self.get(key))

    def listed(self, key: str, length: int) -> list[Any] | None:
        """A list with an entry per layer, or None where there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise LoadError(
                f"the config of {self.name!r} has {key} = {value!r}: expected a list of {length}"
            )
        return value[:length]

    def divided(self, width: int, heads: int) -> int:
        """The width of a head; LoadError where heads do not divide the model's width."""
        if width % heads:
            raise LoadError(
                f"the config of {self.name!r} has {heads} heads, which do not divide its width "
                f"{width}"
            )
        return width // heads

    def grouped(self, heads: int, kv_heads: int) -> int:
        """The key/value heads; LoadError where they do not divide the query heads."""
        if heads % kv_heads:
            raise LoadError(
                f"the config of {self.name!r} has {kv_heads} key/value heads, which do not divide "
                f"its {heads} heads"
            )
        return kv_heads

    def misspelt(self) -> tuple[str, str] | None:
        """A field that was not asked for, with the one that it resembles; None without one."""
        for key in self._config:
            if key not in self._asked:
                close = difflib.get_close_matches(key, self._asked, n=1, cutoff=_SIMILAR)
                if close and close[0] not in self._config:
                    return key, close[0]
        return None
