"""The document of ``attnviz path HEAD --weights``: layer 0 by distance, later heads by token."""

from __future__ import annotations

from attnviz.draw import document as doc
from attnviz.draw.grid import full_width
from attnviz.draw.numbers import NumberScale, counted, listed, percent, whole_percent
from attnviz.draw.provenance import model_words, named, share
from attnviz.draw.signed import layer_grid, ranked_table, signed_scale
from attnviz.engine.attribution.in_weights import APART
from attnviz.inspect.interventions.path.weights import WeightsReport

_GAP = 3
_RANKING = 36
"""The columns of the ranking next to the grid."""

_LEAST_ROWS = 3
_CELL = 5
"""The most characters of a mean score."""

_SHOWN = 8
"""The distances whose mean scores are shown."""

_SHARES = NumberScale(0.999, signed=False)
"""The number format of shares: a full bar is all; under one, so that they have no leading zero."""

_BY_DISTANCE = 0.5
"""The least share of the variance at which the finding says that a head looks at one distance."""

_OVER_CHANCE = 10
"""How many times the chance, or the share by other heads, a share must be to be a finding."""

_NAMED = 3
"""The most heads that the finding names; none finds less than half as many as the first."""

_METHOD = (
    "layer 0 reads embeddings alone: its scores are exact. Later heads by the direct path: a query "
    f"is what a token's embedding adds; a key, {APART} tokens before it, is what the earlier head "
    "writes of a token. What other parts write, and biases, are left out. The order of keys is "
    "exact up to the scale that a norm gives to each"
)


def weights_document(report: WeightsReport) -> doc.Document:
    """Return the document of a report, with its first screen."""
    info, tokens = report.model, _tokens(report)
    bar = signed_scale(_SHARES, "found", "share")
    advice = ["attnviz link measures it in a prompt", "--explain"]
    return doc.Document(
        f"what stands in the weights of {info.name}",
        f"What stands in the weights of {report.head_name(report.sender)} of {info.name}",
        [
            doc.Group(
                [doc.Facts([*model_words(info), (tokens, False), (f"seed {report.seed}", False)])]
            ),
            *[doc.Group([doc.Note(note)]) for note in info.notes],
            doc.Group([doc.Note(_METHOD, 100)]),
            *([doc.Group([first_table(report)])] if report.first else []),
            doc.Group([finder_grid(report)._replace(scale=bar)]),
            doc.Group([finder_table(report, report.top)]),
            doc.Group([finder_table(report, len(report.finders))], full=True),
        ],
        doc.Explanation("path", f"measured on {tokens}."),
        doc.next_steps(advice),
        heading=[
            *named(info),
            (f"{report.head_name(report.sender)} in the weights alone", False),
            (tokens, False),
        ],
        finding=finding(report),
        first=lambda columns, lines: first_groups(report, columns),
    )


def first_groups(report: WeightsReport, columns: int) -> list[doc.Group]:
    """Return the first screen: layer 0 by distance, then the later heads as grid and ranking.

    columns: the width of the screen in characters.
    """
    grid = finder_grid(report)
    table = finder_table(report, len(report.finders))._replace(least=_LEAST_ROWS)
    limits = doc.Note("layer 0 exact · later heads by the direct path, up to the norm of each key")
    groups = []
    if report.first:
        groups.append(doc.Group([first_table(report)._replace(least=_LEAST_ROWS)]))
    width = full_width(grid)
    if width + _GAP + _RANKING <= columns:
        widths = (width, columns - width - _GAP)
        groups.append(doc.Group([grid, table], beside=doc.Beside(0, _GAP, widths=widths)))
    else:
        groups += [doc.Group([grid], yields=1), doc.Group([table])]
    return [*groups, doc.Group([limits], yields=2)]


# Words ---------------------------------------------------------------------------------------


def _tokens(report: WeightsReport) -> str:
    every = "all " if report.all_tokens else ""
    return f"{every}{counted(report.tokens, 'token')} of the vocabulary"


def finding(report: WeightsReport) -> str:
    """Return the finding: how far back the sender looks, and which heads find what it writes."""
    sender = report.head_name(report.sender)
    if report.model.weights == "random":
        return f"Untrained random weights: what stands in those of {sender} is arbitrary."
    said = f"{_by_distance(report)} " if report.first else ""
    writes = f"what {'it' if said else sender} writes of the same token"
    best = report.finders[0].share
    usual = max(best.base_rate or 0.0, report.chance)
    if best.value < _OVER_CHANCE * usual:
        most = percent(best.value, whole=True)
        return f"{said}No later head matches a token with {writes} (at most {most} of them)."
    found = [one for one in report.finders if one.share.value >= best.value / 2][:_NAMED]
    match = "matches" if len(found) == 1 else "match"
    others = percent(best.base_rate or 0.0, whole=True)
    names = listed([report.head_name(one.place) for one in found])
    return (
        f"{said}{names} {match} {percent(found[-1].share.value, whole=True)}"
        f"{' or more' if len(found) > 1 else ''} of all tokens with {writes} "
        f"(other heads {others}, chance {report.chance:.1%})."
    )


def _by_distance(report: WeightsReport) -> str:
    own = report.first[0]
    sender, explained = report.head_name(own.place), whole_percent(own.explained)
    if own.explained < _BY_DISTANCE:
        return f"Distance explains {explained} of {sender}'s scores."
    where = "at its own token" if own.back == 0 else f"{counted(own.back, 'token')} back"
    return f"{sender} looks {where} (distance explains {explained})."


# Tables and grid -----------------------------------------------------------------------------


def first_table(report: WeightsReport) -> doc.Table:
    """Return a table of the heads of layer 0: how much distance explains, the mean scores by it."""
    rows, scale = report.first, NumberScale.over(x for one in report.first for x in one.means)
    columns = [
        ("by distance", [share(one.explained) for one in rows]),
        ("most", [f"{one.back} back" for one in rows]),
        *(
            (str(back), [scale.fitted(one.means[back], _CELL) or "" for one in rows])
            for back in range(min(_SHOWN, len(rows[0].means)))
        ),
    ]
    names, values = [report.head_name(one.place) for one in rows], [one.explained for one in rows]
    return ranked_table(
        f"layer 0: mean score by tokens back{scale.times}", names, values, _SHARES, columns
    )


def finder_grid(report: WeightsReport) -> doc.HeadGrid:
    """Return a grid of how often each later head finds a token by what the sender wrote of it."""
    base = report.index_base
    return layer_grid(
        {one.place: one.share.value for one in report.finders},
        _SHARES,
        "finds a token again",
        lambda column: f"H{column + base}",
        base=base,
    )


def finder_table(report: WeightsReport, most: int) -> doc.Table:
    """Return a table with a row for each later head: its share, and the share by other heads.

    most: the number of rows.
    """
    shown = report.finders[:most]
    return ranked_table(
        "",
        [report.head_name(one.place) for one in shown],
        [one.share.value for one in shown],
        _SHARES,
        [
            ("found", [_SHARES.fitted(one.share.value, 4) or "" for one in shown]),
            (
                "other heads",
                [
                    "" if (usual := one.share.base_rate) is None else _SHARES.fitted(usual, 4) or ""
                    for one in shown
                ],
            ),
        ],
    )
