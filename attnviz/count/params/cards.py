"""The graphics cards that ``--gpu`` names: their memory, bandwidth and rates, and their sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from attnviz.count.params.counting.cache import BITS, bits
from attnviz.errors import UsageError
from attnviz.models.shapes import configs_directory
from attnviz.reading import read_toml


class Gpu(NamedTuple):
    """One kind of card, as its table in ``configs/gpus`` describes it.

    name, aliases: what it is called; several cards may share an alias, such as ``H100``.
    vendor, year: who makes it, and since when.
    memory_mib: MiB that its driver reports to a program as the whole memory.
    bandwidth: bytes a second between this memory and the processor, at most.
    flops: operations a second by dtype, at most, without sparsity.
    source: the document with these numbers.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    year: int
    memory_mib: int
    bandwidth: float
    flops: dict[str, float]
    source: str

    @property
    def memory(self) -> int:
        """Return the bytes of the memory."""
        return 2**20 * self.memory_mib

    def rate(self, dtype: str) -> float:
        """Return the most operations a second on weights of a dtype.

        Weights may be widened before they are multiplied, and whole numbers be turned into floats,
        so that this is the fastest rate of an equal or a wider dtype.
        """
        whole = dtype.startswith("int")
        wide = (
            rate
            for name, rate in self.flops.items()
            if BITS[name] >= bits(dtype) and (whole or name.startswith(("float", "bfloat")))
        )
        return max(wide, default=self.flops["float32"])


def all_cards() -> tuple[Gpu, ...]:
    """Return every card, the smallest first; of equal memories the slowest first."""
    cards = []
    for path in (configs_directory() / "gpus").glob("*.toml"):
        table = read_toml(path, "a table of cards")
        for entry in table["card"]:
            aliases = tuple(entry.pop("aliases"))
            cards.append(Gpu(vendor=table["vendor"], aliases=aliases, **entry))
    return tuple(sorted(cards, key=lambda card: (card.memory, card.bandwidth, card.name)))


def find_cards(typed: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the cards of these names, each once, in the order in which they were typed.

    typed: names or aliases, several of them separated by commas; ``all`` is every card.
    Raises UsageError for an unknown name, with the nearest known one.
    """
    known = all_cards()
    found: dict[str, Gpu] = {}
    for name in ",".join(typed).split(","):
        wanted = _plain(name)
        named = [
            card
            for card in known
            if wanted in ("all", *map(_plain, (card.name, *card.aliases, card.vendor + card.name)))
        ]
        if not named:
            raise UsageError(f"no card {name.strip()!r}{_nearest(wanted, known)}")
        found |= {card.name: card for card in named}
    return tuple(found.values())


def _plain(name: str) -> str:
    """Return a name without the differences that people do not type alike: case, dashes, spaces."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("amd")


def _nearest(wanted: str, known: Sequence[Gpu]) -> str:
    import difflib  # needed only for mistyped names

    names = {_plain(name): card.name for card in known for name in (*card.aliases, card.name)}
    close = [names[one] for one in difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)]
    listed = " or ".join(map(repr, dict.fromkeys(close)))
    return f"; did you mean {listed}?" if listed else "; --gpu all lists those that are known"
