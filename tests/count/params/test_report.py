"""The lines of the table add up, in every architecture."""

from attnviz.count.params.parts import part_lines
from attnviz.count.params.specs import shares_of
from attnviz.count.params.tables import layer_table
from attnviz.draw.numbers import spans


def lines_of(case):
    return case.cost, tuple(part_lines(case.cost.spec))


def test_lines_roles_and_terms_add_up(any_case):
    cost, lines = lines_of(any_case)
    assert sum(line.number for line in lines if not line.detail) == cost.total
    shares = shares_of(cost.spec.placed)
    for role in ("attention", "feed_forward", "norm", "head"):
        counted = sum(line.number for line in lines if line.role == role and not line.detail)
        assert counted == shares[role], role
    for line in lines:
        if line.one_layer is not None:
            assert line.number == line.one_layer * line.layers
            assert sum(term.number for term in line.terms) == line.one_layer


def test_one_head_and_the_kinds_of_layers(case):
    _, lines = lines_of(case("biased"))
    heads = {line.label: line.per_head for line in lines if line.detail}
    assert heads == {"query": 28, "key": 28, "value": 28, "output": 28, "biases": None}
    cells = [tuple(row.cells[:2]) for row in layer_table(lines_of(case("decoder"))[0]).rows]
    assert cells == [("0, 2", "full"), ("1, 3–4", "sliding 3, 2 of 5 experts")]


def test_spans():
    assert spans((0,)) == "0"
    assert spans((0, 1, 2)) == "0–2"
    assert spans((0, 2, 4, 6)) == "0, 2 … 6"
    assert spans((1, 2, 5, 7, 8)) == "1–2, 5, 7–8"
