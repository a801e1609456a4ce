"""The table of cards: whole, with a source, consistent; found by the names that people type."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from attnviz.count.params.cards import all_cards, find_cards
from attnviz.count.params.request import complete_gpu
from attnviz.errors import UsageError
from attnviz.models.shapes import configs_directory, shape_names

FILES = sorted((configs_directory() / "gpus").glob("*.toml"))
ENTRIES = [
    (path.stem, entry)
    for path in FILES
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["card"]
]
FIELDS = {"name", "aliases", "year", "memory_mib", "bandwidth", "flops", "source"}


@pytest.mark.parametrize(("file", "entry"), ENTRIES, ids=[entry["name"] for _, entry in ENTRIES])
def test_an_entry_is_complete(file: str, entry: dict[str, Any]) -> None:
    assert set(entry) == FIELDS
    assert 2017 <= entry["year"] <= 2026
    assert entry["source"].startswith({"nvidia": "NVIDIA ", "amd": "AMD "}[file])
    assert re.search("datasheet|data sheet|whitepaper", entry["source"])
    flops = entry["flops"]
    assert {"float32", "float16"} <= set(flops)
    assert set(flops) <= {"float32", "bfloat16", "float16", "float8", "int8"}
    assert 1e12 < flops["float32"] < flops["float16"] < 1e16
    assert flops.get("bfloat16", flops["float16"]) == flops["float16"]
    for narrow in ("float8", "int8"):  # dense rates double with each halving, at least nearly
        assert flops.get(narrow, flops["float16"]) >= flops["float16"]
    assert 1e11 < entry["bandwidth"] < 1e13


@pytest.mark.parametrize(("file", "entry"), ENTRIES, ids=[entry["name"] for _, entry in ENTRIES])
def test_the_memory_is_the_advertised_one_in_gib_less_at_most_a_tenth(
    file: str, entry: dict[str, Any]
) -> None:
    """The source names the advertised size; a program gets a little less of as many GiB."""
    advertised = int(re.findall(r"(\d+) GB", entry["source"])[-1])
    assert 0.9 * advertised <= entry["memory_mib"] / 1024 <= advertised


def test_names_are_unlike_each_other_and_shapes() -> None:
    names = [card.name for card in all_cards()]
    assert len(names) == len(set(names)) == len(ENTRIES) >= 15
    assert not {path.stem for path in FILES} & set(shape_names())
    assert "gpus" not in shape_names()


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (["RTX 4090"], ["RTX 4090"]),
        (["rtx4090"], ["RTX 4090"]),
        (["nvidia-l4"], ["L4"]),
        (["4090, a10g"], ["RTX 4090", "A10G"]),
        (["T4", "L4", "t4"], ["T4", "L4"]),
        (["V100"], ["V100-16", "V100-32"]),
        (["A100-80"], ["A100-80 PCIe", "A100-80 SXM"]),
        (["mi250x"], ["MI250X die"]),
    ],
)
def test_the_names_that_people_type(typed: list[str], found: list[str]) -> None:
    assert [card.name for card in find_cards(typed)] == found


def test_all_are_sorted_by_memory() -> None:
    memories = [card.memory for card in find_cards(["ALL"])]
    assert memories == sorted(memories)
    assert len(memories) == len(ENTRIES)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("rtx 4091", "no card 'rtx 4091'; did you mean 'RTX 4090'?"),
        ("abacus", "no card 'abacus'; --gpu all lists those that are known"),
    ],
)
def test_an_unknown_name(typed: str, line: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(line)}$"):
        find_cards([typed])


def test_completion() -> None:
    assert complete_gpu("h1") == ["H100 PCIe", "H100 SXM", "H100 NVL"]
    assert complete_gpu("al") == ["all"]


@pytest.mark.parametrize(
    ("card", "dtype", "rate"),
    [
        ("L4", "bfloat16", 121e12),
        ("L4", "float32", 30.3e12),
        ("L4", "float8", 242.5e12),
        ("RTX 4090", "float8", 330.3e12),  # floats are not multiplied as whole numbers
        ("RTX 4090", "int8", 660.6e12),
        ("RTX 4090", "int4", 660.6e12),
        ("A100-40", "float8", 312e12),  # widened
        ("V100-16", "bfloat16", 125e12),
        ("V100-16", "int8", 125e12),
        ("T4", "float64", 8.1e12),
    ],
)
def test_the_rate_is_the_fastest_of_equal_or_wider_dtypes(
    card: str, dtype: str, rate: float
) -> None:
    assert find_cards([card])[0].rate(dtype) == rate
