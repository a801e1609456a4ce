"""Which heads are removed, and which of them together."""

from __future__ import annotations

from typing import Any

import pytest

from attnviz.engine.effects import Variant
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.job import choose_ablations
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.records import ModelInfo

INFO = ModelInfo("made", None, "None", "float32", 3, 6, 2, 5)


def asked(*heads: str, layers: str | None = None, **options: Any) -> AblateRequest:
    return AblateRequest(head=heads, layer=layers, **options)


def chosen(*heads: str, **options: Any) -> list[tuple[tuple[int, int], ...]]:
    return [variant.heads for variant in choose_ablations(asked(*heads, **options), INFO)]


def test_all_heads_one_at_a_time() -> None:
    assert chosen() == [((layer, head),) for layer in range(3) for head in range(6)]


def test_a_named_head() -> None:
    assert chosen("L2H5") == [((2, 5),)]


def test_a_bare_number_is_also_removed_from_all_layers_at_once() -> None:
    *singles, joint = choose_ablations(asked("3"), INFO)
    assert [single.heads for single in singles] == [((0, 3),), ((1, 3),), ((2, 3),)]
    assert joint == Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")


def test_names_from_one() -> None:
    removals = choose_ablations(asked("3", index_base=1), INFO)
    assert removals[0].heads == ((0, 2),)
    assert removals[-1].name == "head 3 of every layer"


def test_a_bare_number_of_some_layers() -> None:
    *_, joint = choose_ablations(asked("1", layers="0-1"), INFO)
    assert joint == Variant(((0, 1), (1, 1)), "head 1 of layers 0-1")


def test_a_bare_number_of_one_layer_is_one_head() -> None:
    assert chosen("1", layers="2") == [((2, 1),)]


def test_several_bare_numbers_are_each_removed_from_all_layers() -> None:
    joint = [heads for heads in chosen("1,4") if len(heads) > 1]
    assert joint == [((0, 1), (1, 1), (2, 1)), ((0, 4), (1, 4), (2, 4))]


def test_a_dotted_choice_names_heads_one_by_one() -> None:
    assert chosen("2.*") == [((2, head),) for head in range(6)]


def test_together() -> None:
    assert chosen("L0H1", "2.4", together=True) == [((0, 1), (2, 4))]


def test_key_value_heads_take_all_that_share_them() -> None:
    assert chosen(unit="kv-head", layers="1") == [
        ((1, 0), (1, 1), (1, 2)),
        ((1, 3), (1, 4), (1, 5)),
    ]
    assert chosen("L0H4", unit="kv-head") == [((0, 3), (0, 4), (0, 5))]
    assert chosen("L0H4,5", unit="kv-head") == [((0, 3), (0, 4), (0, 5))]


def test_layers() -> None:
    assert chosen(unit="layer", layers="2") == [tuple((2, head) for head in range(6))]
    assert len(chosen(unit="layer")) == 3


def test_together_needs_a_choice() -> None:
    with pytest.raises(UsageError, match="add --head or --layer"):
        choose_ablations(asked(together=True), INFO)


def test_a_head_that_is_not_there_names_the_range() -> None:
    with pytest.raises(UsageError, match="no head 6: this model has heads 0 to 5"):
        choose_ablations(asked("6"), INFO)


def test_a_group_that_does_not_divide() -> None:
    odd = ModelInfo("made", None, "None", "float32", 1, 5, 2, 3)
    with pytest.raises(UsageError, match="--unit kv-head: 5 heads"):
        choose_ablations(asked(unit="kv-head"), odd)
