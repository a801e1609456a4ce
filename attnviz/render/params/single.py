"""The sheet of one design."""

from __future__ import annotations

from attnviz.render.params.fit import fit_words
from attnviz.render.params.metrics import Case
from attnviz.render.params.parameters import parameter_grid
from attnviz.render.params.per_layer import layer_grid
from attnviz.render.params.reading import readings
from attnviz.render.params.running import running
from attnviz.render.params.sheet import Sheet
from attnviz.render.params.title import origin_lines, title_words

__all__ = ["account_sheet"]


def account_sheet(case: Case, *, formulas: bool = False, layers: bool = False) -> Sheet:
    """Parameters, cost of running, what fits, and what it means; of a case that was counted.

    formulas: with the arithmetic of each line. layers: with every kind of layer.
    """
    account = case.account
    assert account is not None
    grids = [parameter_grid(account, formulas)]
    if layers:
        grids.append(layer_grid(account))
    sentences = readings(account)
    if case.fit is not None:
        sentences.insert(0, fit_words(case.fit, account))
    revision = (f"revision: {case.revision}",) if case.revision else ()
    return Sheet(
        title_words(account),
        (*revision, *origin_lines(account)),
        tuple(grids),
        running(account, formulas),
        tuple(sentences),
    )
