"""Which heads are removed, and which of them together."""

import pytest

from attnviz.engine.effects import Variant
from attnviz.errors import UsageError
from attnviz.inspect.interventions.ablate.plan import choose_ablations
from attnviz.inspect.interventions.ablate.request import AblateRequest
from attnviz.records import ModelInfo

INFO = ModelInfo("made", None, "None", "float32", 3, 6, 2, 5)
LAYER = tuple((2, head) for head in range(6))


def asked(*heads, layers=None, **options):
    return AblateRequest(head=heads, layer=layers, **options)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(), [((layer, head),) for layer in range(3) for head in range(6)]),
        (asked("L2H5"), [((2, 5),)]),
        (asked("1", layers="2"), [((2, 1),)]),
        (asked("2.*"), [(place,) for place in LAYER]),
        (asked("L0H1", "2.4", together=True), [((0, 1), (2, 4))]),
        (asked(unit="kv-head", layers="1"), [((1, 0), (1, 1), (1, 2)), ((1, 3), (1, 4), (1, 5))]),
        (asked("L0H4", unit="kv-head"), [((0, 3), (0, 4), (0, 5))]),
        (asked("L0H4,5", unit="kv-head"), [((0, 3), (0, 4), (0, 5))]),
        (asked(unit="attention", layers="2"), [LAYER]),
    ],
)
def test_what_is_removed_one_after_the_other(request_, expected):
    assert [variant.heads for variant in choose_ablations(request_, INFO)] == expected


def test_a_feed_forward_block_is_removed_alone_or_with_the_heads_of_its_layer():
    blocks = choose_ablations(asked(unit="ffn"), INFO)
    assert blocks == tuple(Variant((), feed_forward=(layer,)) for layer in range(3))
    whole = choose_ablations(asked(unit="layer", layers="2"), INFO)
    assert whole == (Variant(LAYER, feed_forward=(2,)),)
    both = choose_ablations(asked(unit="ffn", layers="0,2", together=True), INFO)
    assert both == (Variant((), feed_forward=(0, 2)),)
    with pytest.raises(UsageError, match="blocks attention, not an MLP"):
        asked(unit="ffn", edge="it->cat")


def test_a_bare_number_is_also_removed_from_all_its_layers_at_once():
    *singles, joint = choose_ablations(asked("3"), INFO)
    assert [single.heads for single in singles] == [((0, 3),), ((1, 3),), ((2, 3),)]
    assert joint == Variant(((0, 3), (1, 3), (2, 3)), "head 3 of every layer")
    first, *_, joint = choose_ablations(asked("3", index_base=1), INFO)
    assert (first.heads, joint.name) == (((0, 2),), "head 3 of every layer")
    *_, joint = choose_ablations(asked("1", layers="0-1"), INFO)
    assert joint == Variant(((0, 1), (1, 1)), "head 1 of layers 0-1")
    several = [each.heads for each in choose_ablations(asked("1,4"), INFO) if len(each.heads) > 1]
    assert several == [((0, 1), (1, 1), (2, 1)), ((0, 4), (1, 4), (2, 4))]


def test_what_cannot_be_chosen():
    with pytest.raises(UsageError, match="add --head or --layer"):
        choose_ablations(asked(together=True), INFO)
    with pytest.raises(UsageError, match="no head 6: this model has heads 0 to 5"):
        choose_ablations(asked("6"), INFO)
    odd = ModelInfo("made", None, "None", "float32", 1, 5, 2, 3)
    with pytest.raises(UsageError, match="--unit kv-head: 5 heads"):
        choose_ablations(asked(unit="kv-head"), odd)
