"""The GPUs that ``--gpu`` names: their memory, bandwidth and rates, and the sources of these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from attnviz.count.params.counting.cache import BITS, bits
from attnviz.errors import UsageError
from attnviz.models.shapes import configs_directory, nearest
from attnviz.reading import read_toml


class Gpu(NamedTuple):
    """One GPU model, as a file in ``configs/gpus`` describes it.

    name, aliases: the names that a user may type. vendor: the maker. year: of its launch.
    memory_mib: the memory in MiB. bandwidth: of the memory, in bytes a second. flops: the most
        floating-point operations a second, by dtype. source: where these numbers are from.
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
        """Return the size of the GPU's memory in bytes."""
        return 2**20 * self.memory_mib

    def rate(self, dtype: str) -> float:
        """Return the most operations a second on parameters of a dtype, such as ``bfloat16``.

        This is the fastest rate of an equal or a wider dtype, as parameters may be widened before
        they are multiplied, and whole numbers be turned into floats.
        """
        whole, least = dtype.startswith("int"), bits(dtype)
        rates = (
            rate
            for name, rate in self.flops.items()
            if BITS[name] >= least and (whole or not name.startswith("int"))
        )
        return max(rates, default=self.flops["float32"])


def all_cards() -> tuple[Gpu, ...]:
    """Return every known GPU, by ascending memory; GPUs of equal memory by ascending speed."""
    cards = []
    for path in (configs_directory() / "gpus").glob("*.toml"):
        table = read_toml(path, "a table of cards")
        for entry in table["card"]:
            aliases = tuple(entry.pop("aliases"))
            cards.append(Gpu(vendor=table["vendor"], aliases=aliases, **entry))
    return tuple(sorted(cards, key=lambda card: (card.memory, card.bandwidth, card.name)))


def find_cards(typed: Sequence[str]) -> tuple[Gpu, ...]:
    """Return the GPUs of these names, each once, in the order in which they were typed.

    typed: names or aliases, several of them separated by commas; ``all`` is every GPU.
    Raises UsageError for an unknown name, with the nearest known one.
    """
    cards = all_cards()
    found: dict[str, Gpu] = {}
    for name in ",".join(typed).strip(", ").split(","):
        wanted = _plain(name)
        named = [
            card for card in cards if wanted in ("all", *map(_plain, (card.name, *card.aliases)))
        ]
        if not named:
            known = (name for card in cards for name in (card.name, *card.aliases))
            near = nearest(name.strip().upper(), known) or "; --gpu all lists those that are known"
            raise UsageError(f"no card {name.strip()!r}{near}")
        found |= {card.name: card for card in named}
    return tuple(found.values())


def _plain(name: str) -> str:
    """Return a GPU's name without what people type in several ways: case, vendor, dashes."""
    return re.sub(r"nvidia|amd|[^a-z0-9]", "", name.lower())
