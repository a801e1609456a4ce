"""The sheet of one design."""

from __future__ import annotations

from attnviz.accounts.account import Account
from attnviz.accounts.running import Fit
from attnviz.render.params.fit import fit_words
from attnviz.render.params.parameters import parameter_grid
from attnviz.render.params.per_layer import layer_grid
from attnviz.render.params.reading import readings
from attnviz.render.params.running import running
from attnviz.render.params.sheet import Sheet
from attnviz.render.params.title import origin_lines, title_words

__all__ = ["account_sheet"]


def account_sheet(
    account: Account, fit: Fit | None = None, *, formulas: bool = False, layers: bool = False
) -> Sheet:
    """Parameters, cost of running, what fits, and what it means.

    formulas: with the arithmetic of each line. layers: with every kind of layer.
    """
    grids = [parameter_grid(account, formulas)]
    if layers:
        grids.append(layer_grid(account))
    sentences = readings(account)
    if fit is not None:
        sentences.insert(0, fit_words(fit, account))
    return Sheet(
        title_words(account),
        origin_lines(account),
        tuple(grids),
        running(account, formulas),
        tuple(sentences),
    )
