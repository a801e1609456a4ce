"""Draws a document on a terminal: each part as a block, groups below or next to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeGuard

from rich.segment import Segment

from attnviz.draw import document as doc
from attnviz.draw.blocks import (
    BOLD,
    DIM,
    GAP,
    LEAST_COLUMNS,
    SIDES,
    Block,
    Line,
    Panel,
    beside,
    flow,
    framed_column,
    shared_widths,
    stack,
    text_line,
    trimmed,
    widest,
)
from attnviz.draw.grid import full_width, grid_block
from attnviz.draw.labels import at_blanks, cut, fit, short_name, visible, width
from attnviz.draw.plot import histogram_blocks, plot_block
from attnviz.draw.prose import paragraph, said_about, words_block, words_lines
from attnviz.draw.table import table_block
from attnviz.draw.theme import Theme

_LEAST_QUOTE = 8
_EVERYTHING = "--full: everything"
_LEAST_BARRED = 8  # the columns of the shortest bar, and of the blanks before it
_LEAST_TEXT = 2  # the fewest lines of a coloured text
_PAGE = 100  # the columns of what stands for a page
_FRAME = 60  # about how many columns of a screen have a frame of their own
_LEAST_WORDS, _HISTOGRAM = 44, 32
"""The columns that sentences, coloured texts, curves and a histogram need beside other parts."""

_LEAST_ROWS, _BETWEEN, _MOST_ACROSS = 4, 4, 3
"""The least rows of each piece of a table that continues beside itself, the columns between two
pieces, and the most of them."""


def terminal_block(
    document: doc.Document, theme: Theme, max_width: int, *, everything: bool = False
) -> Block:
    """Return the whole document as lines; ``everything``: with the groups that pages alone show."""
    groups = [group._replace(full=group.full and not everything) for group in document.whole]
    shown = _stacked(groups, theme, max_width)
    hints = _group(doc.Group(document.hints), theme, max_width)
    return trimmed(_joined([shown, _reading(document, shown, theme, max_width), hints]))


def page_reading(document: doc.Document) -> Sequence[doc.Say]:
    """Return the sentences of a page's glossary: on the terms that a terminal would show."""
    if not (explanation := document.explain or document.glossary):
        return ()
    shown = _stacked(document.whole, Theme(colour=False), _PAGE).plain
    return [*said_about(explanation, shown)]


def _reading(document: doc.Document, shown: Block, theme: Theme, max_width: int) -> Block:
    """Return the glossary of the terms in the block ``shown``, at most ``max_width`` wide."""
    if not document.explain:
        return Block((), max_width)
    terms = [*said_about(document.explain, shown.plain, theme.spell)]
    return _group(doc.Group(terms), theme, max_width)


def _joined(blocks: Iterable[Block], gap: int = 1) -> Block:
    return stack((block for block in blocks if block.lines), gap)


def _stacked(groups: Sequence[doc.Group], theme: Theme, max_width: int, gap: int = 1) -> Block:
    if theme.framed:
        return _framed_rows(groups, theme, max_width)
    return _joined((_group(group, theme, max_width) for group in groups), gap)


# The first screen ----------------------------------------------------------------------------


def first_screen(document: doc.Document, theme: Theme, max_width: int, lines: int) -> Block:
    """Return the short form of a document: what was measured, the finding, groups that fit, hints.

    max_width, lines: the available width in characters and lines. An explanation, if there is one,
        stands below these lines. From ``LEAST_COLUMNS`` on its parts have frames.
    """
    if document.first is None:
        return terminal_block(document, theme, max_width)
    framed = max_width >= LEAST_COLUMNS
    theme = replace(theme, framed=framed)
    pieces = at_blanks(theme.spell(document.finding), max_width, "", theme.ellipsis)
    steps, finding = _steps(document, theme, max_width), [text_line((p, BOLD)) for p in pieces if p]
    if len(finding) + 3 > lines:  # the smallest screens show the finding alone, cut if necessary
        steps = Block((), max_width)
        if len(finding) >= lines:
            finding = [*finding[: lines - 2], [Segment(theme.ellipsis)]]
    top = Block((_heading(document, theme, max_width), *finding), max_width)
    gap = int(not framed)  # frames need no empty lines around them
    left = lines - len(top.lines) - (1 + gap if steps.lines else 0) - gap
    # Every frame takes two columns at either side, and a line more than a title and an empty line.
    room = max_width - framed * SIDES * (max_width // _FRAME)
    shown = _first(document.first(room, left - 2 * framed), theme, max_width, left)
    screen = _joined([top, shown, steps], gap)
    return trimmed(_joined([screen, _reading(document, screen, theme, max_width)]))


def _first(
    first: Sequence[doc.Group] | doc.Ways, theme: Theme, max_width: int, lines: int
) -> Block:
    """Return the groups of a first screen, or the first way that stands, fitted to the lines."""
    if not isinstance(first, doc.Ways):
        return _fitted(first, theme, max_width, lines)
    for way in first.ways[:-1]:
        if all(_stands(group, theme, max_width) for group in way):
            least = [_changed(group, _least) for group in way if not group.yields]
            if len(_stacked(least, theme, max_width).lines) <= lines:
                return _fitted(way, theme, max_width, lines, shorten_texts=True)
    return _fitted(first.ways[-1], theme, max_width, lines, shorten_texts=True)


def _stands(part: doc.Part | doc.Group, theme: Theme, max_width: int) -> bool:
    """Return whether a part has its natural width, and if it is a group all of its members."""
    if not isinstance(part, doc.Group):
        return _natural(part, theme) + theme.framed * SIDES <= max_width
    return all(_stands(member, theme, _inner(part, max_width)) for member in part.parts)


def _inner(group: doc.Group, max_width: int) -> int:
    """Return the width that each member of a group gets: less than the group's if in halves."""
    if group.beside is None or not group.beside.halves:
        return max_width
    return (max_width - group.beside.gap) // len(group.parts)


def _natural(part: doc.Part, theme: Theme) -> int:
    """Return the width that a part needs to be shown whole; 0 for words, which are wrapped."""
    if isinstance(part, doc.Table):
        part = part._replace(title=(), rows=[row._replace(bar=None) for row in part.rows])
        return _LEAST_BARRED + widest(part_block(part, theme, 10_000).lines)
    if isinstance(part, doc.HeadGrid):
        return full_width(part)
    return widest(part_block(part, theme, 10_000).lines) if _has_map(part) else 0


def _changed(
    group: doc.Group, change: Callable[[doc.Part, int], doc.Part], max_width: int = 0
) -> doc.Group:
    """Return the group with what ``change`` makes of each part, and of the parts of its groups.

    change: is given a part and the width that it gets of ``max_width``.
    """
    inner = _inner(group, max_width)
    parts = [
        _changed(part, change, inner) if isinstance(part, doc.Group) else change(part, inner)
        for part in group.parts
    ]
    return group._replace(parts=parts)


def _if_changed(
    group: doc.Group, change: Callable[[doc.Part, int], doc.Part], max_width: int = 0
) -> doc.Group | None:
    """Return what ``_changed`` returns, or None if all parts stay the same."""
    changed = _changed(group, change, max_width)
    pairs = zip(doc.leaves(group), doc.leaves(changed), strict=True)
    return None if all(old is new for old, new in pairs) else changed


def _least(part: doc.Part, _: int) -> doc.Part:
    """Return the part with as few rows and lines as a first screen may leave of it."""
    if isinstance(part, doc.Table) and part.least:
        more = len(part.rows) > part.least
        return part._replace(rows=part.rows[: part.least], hidden=int(more))
    return part._replace(lines=_LEAST_TEXT) if _is_text(part) else part


def _is_text(part: doc.Part) -> TypeGuard[doc.Maps]:
    return isinstance(part, doc.Maps) and part.texts


def _heading(document: doc.Document, theme: Theme, max_width: int) -> Line:
    """Return the heading of the document in one line, with as much of the quoted text as fits."""
    name, *more = document.heading
    spelled = theme.spell(short_name(name[0]))
    words = [(spelled, name[1]), *((theme.spell(text), tone) for text, tone in more)]
    text = visible(" ".join(document.quoted.split()), theme.encoding)
    while len(words) > 1 and width(theme.dot.join(word for word, _ in words)) > max_width:
        last, tone = words.pop()
        left = max_width - width(theme.dot.join(word for word, _ in words) + theme.dot)
        if left >= _LEAST_QUOTE:
            words.append((fit(last, left, theme.ellipsis), tone))
    words[0] = fit(words[0][0], min(width(words[0][0]), max_width), theme.ellipsis), words[0][1]
    left = max_width - width(theme.dot.join(word for word, _ in words) + theme.dot)
    if text and left >= _LEAST_QUOTE:
        words.append((cut(text, left, theme.ellipsis), False))
    line = [Segment(text, theme.tone(tone or "faint")) for text, tone in words]
    return [segment for word in line for segment in (Segment(theme.dot, DIM), word)][1:]


def _steps(document: doc.Document, theme: Theme, max_width: int) -> Block:
    """Return the hints that fit into one line; the last ones explain and show everything."""
    hints = [text for part in document.hints for text, _ in part.words]
    if not hints:
        return Block((), max_width)
    kept = [*hints, _EVERYTHING]
    while len(kept) > 1 and width(theme.dot.join(kept)) > max_width:
        others = [hint for hint in kept[:-1] if not hint.startswith("--explain")]
        kept.remove(others[-1] if others else kept[0])
    return _facts(doc.Facts([(hint, False) for hint in kept], tone="faint"), theme, max_width)


def _fitted(
    groups: Sequence[doc.Group],
    theme: Theme,
    max_width: int,
    lines: int,
    *,
    shorten_texts: bool = False,
) -> Block:
    """Return the groups of a screen in at most ``lines`` lines. max_width: the available width.

    Until they fit, coloured texts lose lines (if ``shorten_texts``), tables rows; pictures become
    smaller; groups are left out, those with the highest ``yields`` first, and pictures have their
    size again; grids of colours get two rows a line; grids lose rows and maps are left out; empty
    lines go. A rest that is still too long is cut.
    """
    kept, whole = list(groups), list(groups)

    def less(change: Callable[[doc.Group], doc.Group | None]) -> bool:
        """Change the first group that can be; return False if ``change`` returns None for all."""
        for index in order:
            if (changed := change(kept[index])) is not None:
                kept[index] = changed
                return True
        return False

    while True:
        drawn = _stacked(kept, theme, max_width)
        over = len(drawn.lines) - lines
        if over <= 0:
            return drawn
        order = sorted(range(len(kept)), key=lambda index: (-kept[index].yields, -index))
        fewer = [partial(_shortened, kind=kind, over=over) for kind in _SHORTENED]
        smaller = partial(_smaller, theme=theme, max_width=max_width, over=over)
        if shorten_texts and less(partial(smaller, kind=doc.Maps)):
            continue
        if less(fewer[0]) or less(partial(smaller, kind=doc.Pictures)):
            continue
        if order and kept[order[0]].yields:
            del kept[order[0]], whole[order[0]]
            for index, group in enumerate(whole):
                if any(isinstance(part, doc.Pictures) for part in doc.leaves(group)):
                    kept[index] = group
        elif not ((theme.half_blocks and less(_halved)) or less(fewer[1]) or less(fewer[2])):
            break
    drawn = _stacked(kept, theme, max_width, gap=0)
    return Block(drawn.lines[: max(lines, 0)], drawn.width)


def _smaller(
    group: doc.Group, theme: Theme, max_width: int, over: int, kind: type[doc.Maps | doc.Pictures]
) -> doc.Group | None:
    """Return the group with its texts or pictures ``over`` lines shorter; None if none can be."""

    def smaller(part: doc.Part, room: int) -> doc.Part:
        if isinstance(part, doc.Pictures) and kind is doc.Pictures:
            from attnviz.draw.picture import shortened

            return shortened(part, theme, room, over)
        if not _is_text(part) or part.lines or kind is not doc.Maps:
            return part
        tall = len(part_block(part, theme, room).lines)
        return part._replace(lines=max(tall - over - 1, _LEAST_TEXT))

    return _if_changed(group, smaller, max_width)


_Kind = type[doc.Table] | type[doc.HeadGrid] | type[doc.Maps]
_SHORTENED: tuple[_Kind, ...] = (doc.Table, doc.HeadGrid, doc.Maps)


def _shortened(group: doc.Group, kind: _Kind, over: int) -> doc.Group | None:
    """Return the group with up to ``over`` fewer rows, or one map less, in a part of this kind.

    Of several parts, the one that can lose most is shortened; None if none can lose any.
    """
    if not _spare(group, kind):
        return None
    parts = list(group.parts)
    index = max(range(len(parts)), key=lambda index: _spare(parts[index], kind))
    part = parts[index]
    if isinstance(part, doc.Group):
        parts[index] = _shortened(part, kind, over) or part
    elif isinstance(part, doc.Maps):
        parts[index] = part._replace(maps=part.maps[:-1], hidden=part.hidden + 1)
    elif isinstance(part, doc.Table):
        lost = min(over + (not part.left_out), _spare(part, kind))
        parts[index] = part._replace(rows=part.rows[:-lost], hidden=part.hidden + lost)
    elif isinstance(part, doc.HeadGrid):
        lost = min(over + (not part.hidden), _spare(part, kind))
        parts[index] = part._replace(rows=part.rows[:-lost], hidden=part.hidden + lost)
    return group._replace(parts=parts)


def _spare(part: doc.Part | doc.Group, kind: _Kind) -> int:
    """Return how many rows or maps a part can lose, if it is of a kind; of a group its most."""
    if isinstance(part, doc.Group):
        return max((_spare(member, kind) for member in part.parts), default=0)
    if not isinstance(part, kind):
        return 0
    if isinstance(part, doc.Table):
        return max(len(part.rows) - part.least, 0) if part.least else 0
    if isinstance(part, doc.Maps):
        return max(len(part.maps) - 1, 0)
    return len(part.rows) - 1 if isinstance(part, doc.HeadGrid) else 0


def _halved(group: doc.Group) -> doc.Group | None:
    """Return the group with its grids of colours drawn two rows a line; None if there are none.

    At most one column of a grid may lose its name by that.
    """

    def halved(part: doc.Part, _: int) -> doc.Part:
        if not isinstance(part, doc.HeadGrid) or part.halved or len(part.rows) < 2:
            return part
        lettered = any(cell.letter for cell in part.cells.values())
        named = sum(not name.removeprefix("H").isdigit() for name in part.columns)
        return part if lettered or named > 1 else part._replace(halved=True)

    return _if_changed(group, halved)


# Groups and parts ----------------------------------------------------------------------------


def _group(group: doc.Group, theme: Theme, max_width: int) -> Block:
    if group.full:
        return Block((), 0)
    if theme.framed:
        return _framed_rows([group], theme, max_width)
    if group.beside is None:
        members = (part_block(part, theme, max_width) for part in group.parts)
        return _joined(members, int(group.spaced))
    if group.beside.halves:
        inner = _inner(group, max_width)
        blocks = [part_block(part, theme, inner) for part in group.parts]
        return beside([block for block in blocks if block.lines], group.beside.gap)
    if group.beside.yields:
        return _yielding(group.parts, group.beside, theme, max_width)
    columns, gap, most, *_ = group.beside
    if not columns:
        drawn = [part_block(part, theme, max_width).lines for part in group.parts]
        return flow([Block(lines, widest(lines)) for lines in drawn if lines], max_width, gap)
    across = max((max_width + gap) // (columns + gap), 1)
    across = min(across, most) if most else across
    width = (max_width + gap) // across - gap
    blocks = [part_block(part, theme, width) for part in group.parts]
    return flow([block for block in blocks if block.lines], max_width, gap)


def _yielding(
    parts: Sequence[doc.Part | doc.Group], how: doc.Beside, theme: Theme, max_width: int
) -> Block:
    """Return two parts side by side, or one above the other if the first has too little width."""
    first, second = parts
    grids = [full_width(part) for part in doc.leaves(first) if isinstance(part, doc.HeadGrid)]
    least = max([how.columns, *grids])
    whole = part_block(second, theme, max_width)
    rooms = (max_width, max(max_width - least - how.gap, 1)) if _has_map(second) else (max_width,)
    for room in rooms:
        right = whole if room == max_width else part_block(second, theme, room)
        left = max_width - widest(right.lines) - how.gap
        if right.lines and left >= least:
            drawn = part_block(first, theme, left)
            if drawn.lines:
                return beside([Block(drawn.lines, widest(drawn.lines)), right], how.gap)
    return _joined([part_block(first, theme, max_width), whole])


def _has_map(part: doc.Part | doc.Group) -> bool:
    """Return whether a part is maps that have tokens on both axes, or pictures, or has some."""
    return any(
        leaf.labelled if isinstance(leaf, doc.Maps) else not leaf.small
        for leaf in doc.leaves(part)
        if isinstance(leaf, doc.Maps | doc.Pictures)
    )


# Frames --------------------------------------------------------------------------------------

_WORDS = (doc.Facts, doc.Quote, doc.Note, doc.Say)
_Row = list["doc.Part | doc.Group"]


def _framed_rows(groups: Sequence[doc.Group], theme: Theme, max_width: int) -> Block:
    """Return groups in frames, each beside the one before it where both have enough width."""
    rows: list[_Row] = []
    open_row = False
    for group in groups:
        if group.full:
            continue
        if group.beside is not None:
            rows += _beside_rows(group.parts, group.beside, theme, max_width)
            open_row = False
            continue
        words = all(isinstance(leaf, _WORDS) for leaf in doc.leaves(group))
        if open_row and not words and _fits([*rows[-1], group], theme, max_width):
            rows[-1].append(group)
        else:
            rows.append([group])
        open_row = not words
    return _joined((_across(row, theme, max_width) for row in rows), gap=0)


def _beside_rows(
    parts: Sequence[doc.Part | doc.Group], how: doc.Beside, theme: Theme, max_width: int
) -> list[_Row]:
    """Return the rows in which parts that a question puts side by side stand in frames."""
    if how.halves:
        across = max(len(parts), 1)
    elif how.columns and not how.yields:
        across = max((max_width + GAP) // (how.columns + GAP), 1)
        across = min(across, how.most or across)
    else:
        rows: list[_Row] = []
        for part in parts:
            if rows and _fits([*rows[-1], part], theme, max_width):
                rows[-1].append(part)
            else:
                rows.append([part])
        return rows
    return [[*parts[start : start + across]] for start in range(0, len(parts), across)]


def _fits(row: _Row, theme: Theme, max_width: int) -> bool:
    return sum(_need(part, theme) for part in row) + GAP * (len(row) - 1) <= max_width


def _need(part: doc.Part | doc.Group, theme: Theme) -> int:
    """Return the columns that a part in a frame needs; of maps those of one, or of two small."""
    if isinstance(part, doc.Group):
        needs = [_need(member, theme) for member in part.parts]
        return max(needs, default=0) if part.beside is None else sum(needs)
    if isinstance(part, doc.Plot):
        return max(_LEAST_WORDS, _HISTOGRAM * len(part.histograms)) + SIDES
    if isinstance(part, doc.Maps) and part.small is not None:
        return (part.across or 2) * (part.small[1] + 2) - 2 + SIDES
    if isinstance(part, doc.Maps) and not part.texts:
        part = part._replace(maps=part.maps[:1])
    elif isinstance(part, doc.Pictures):
        part = part._replace(title=(), pictures=part.pictures[: 1 + part.small], scale=None)
        return widest(part_block(part, theme, _PAGE).lines) + SIDES
    barless = isinstance(part, doc.Table) and not any(row.bar for row in part.rows)
    return (_natural(part, theme) or _LEAST_WORDS) + SIDES - _LEAST_BARRED * barless


def _across(row: _Row, theme: Theme, max_width: int) -> Block:
    """Return the parts of a row in frames of one height that fill the width."""

    def columns(widths: Sequence[int]) -> list[list[Panel]]:
        wide = zip(row, widths, strict=True)
        return [_panels(part, theme, width, framed=several) for part, width in wide]

    several = len(row) > 1
    widths = [(max_width + GAP) // len(row) - GAP] * len(row)
    if _fits(row, theme, max_width):
        widths = shared_widths([_need(part, theme) for part in row], max_width)
    drawn = columns(widths)
    row = [part for part, panels in zip(row, drawn, strict=True) if panels]
    if not row:
        return Block((), max_width)
    needs = [max(panel.wide for panel in panels) for panels in drawn if panels]
    widths = shared_widths(needs, max_width)  # by what is drawn now
    drawn = columns(widths)
    tall = max(sum(panel.tall for panel in panels) for panels in drawn)
    shown = zip(drawn, widths, strict=True)
    return beside([framed_column(panels, wide, tall, theme.ascii) for panels, wide in shown], GAP)


def _panels(part: doc.Part | doc.Group, theme: Theme, wide: int, *, framed: bool) -> list[Panel]:
    """Return the panels of a column. framed: whether words that stand alone have a frame too."""
    if isinstance(part, doc.Group):
        if part.full:
            return []
        if part.beside is not None:
            block = _framed_rows([part], theme, wide)
            return [Panel(block)] if block.lines else []
        panels = list[Panel]()
        for member in part.parts:
            if isinstance(member, _WORDS) and panels and panels[-1].title is not None:
                words = part_block(member, theme, wide - SIDES)
                panels[-1] = panels[-1]._replace(block=_joined([panels[-1].block, words], gap=0))
            else:
                panels += _panels(member, theme, wide, framed=framed)
        return panels
    if isinstance(part, _WORDS):
        block = part_block(part, theme, wide - SIDES * framed)
        return [Panel(block, [] if framed else None)] if block.lines else []
    if isinstance(part, doc.Maps) and not part.maps:
        return [Panel(part_block(part, theme, wide))]
    title, rest = _edge(part, theme, wide - SIDES)
    block = _filled(rest, theme, wide - SIDES)
    return [Panel(block, title)] if block.lines else []


def _edge(part: doc.Part, theme: Theme, max_width: int) -> tuple[Line, doc.Part]:
    """Return the title of a part or of its only map, for the edge of its frame, and the rest."""
    assert not isinstance(part, _WORDS)
    only = part.maps[0] if isinstance(part, doc.Maps) and len(part.maps) == 1 else None
    words = part.title or (only.words or [(only.name, True)] if only is not None else ())
    if not words or width(theme.spell(words[0][0])) > max_width - 2:
        return [], part
    kept = len(words)
    while width(theme.dot.join(theme.spell(text) for text, _ in words[:kept])) > max_width - 2:
        kept -= 1
    line: Line = []
    for text, tone in words[:kept]:
        heading = theme.accent() if theme.colour else BOLD
        style = theme.tone(tone or "faint") if line else heading
        line += [*[Segment(theme.dot, DIM)] * bool(line), Segment(theme.spell(text), style)]
    left = [(text, tone or "faint") for text, tone in words[kept:]]
    if part.title or only is None or not isinstance(part, doc.Maps):
        return line, part._replace(title=left)
    return line, part._replace(maps=[only._replace(words=left or [("", False)])])


def _filled(part: doc.Part, theme: Theme, max_width: int) -> Block:
    """Return a part as wide as it is clearer: maps with their weights, narrow tables in columns."""
    if isinstance(part, doc.Maps) and part.labelled:
        drawn = [part_block(part._replace(values=on), theme, max_width) for on in (True, False)]
        return drawn[0] if part.values else min(drawn, key=lambda block: len(block.lines))
    if not isinstance(part, doc.Table) or part.title or not all(map(_is_plain, part.rows)):
        return part_block(part, theme, max_width)
    need, rows = _natural(part, theme) + _BETWEEN, part.rows
    across = min((max_width + _BETWEEN) // need, len(rows) // _LEAST_ROWS, _MOST_ACROSS)
    tall = -(-len(rows) // max(across, 1))
    starts = range(0, len(rows), tall or 1)
    wide = (max_width + _BETWEEN) // max(len(starts), 1) - _BETWEEN
    bare = part._replace(more="", hidden=0)
    pieces = [bare._replace(rows=rows[start : start + tall]) for start in starts] or [part]
    pieces[-1] = part._replace(rows=pieces[-1].rows)
    return beside([part_block(piece, theme, wide) for piece in pieces], _BETWEEN)


def _is_plain(row: doc.Row) -> bool:
    """Return whether a row has one line, which may stand at the top of a table."""
    return len(row.cells) > 1 and not (row.below or row.ruled or row.spaced or row.depth)


# Parts ---------------------------------------------------------------------------------------


def part_block(part: doc.Part | doc.Group, theme: Theme, max_width: int) -> Block:
    match part:
        case doc.Group():
            return _group(part, theme, max_width)
        case doc.Facts():
            return _facts(part, theme, max_width)
        case doc.Quote(name, content, lead):
            quoted = visible(" ".join(content.split()), theme.encoding)
            quoted = cut(quoted, max_width - lead, theme.ellipsis)
            return Block((text_line((name.ljust(lead), DIM), quoted),), max_width)
        case doc.Note(text, longest) | doc.Say(text, longest):
            style = DIM if isinstance(part, doc.Note) else None
            return paragraph(theme.spell(text), min(longest or max_width, max_width), theme, style)
        case doc.Table():
            return table_block(part, theme, max_width)
        case doc.HeadGrid():
            return grid_block(part, theme, max_width)
        case doc.Maps():
            from attnviz.draw.panels import maps_block  # only maps need NumPy

            return maps_block(part, theme, max_width)
        case doc.Pictures():
            from attnviz.draw.picture import pictures_block  # they need NumPy too

            return pictures_block(part, theme, max_width)
        case doc.Arcs():
            from attnviz.draw.arcs import arcs_block  # it needs NumPy too

            return arcs_block(part, theme, max_width)
        case doc.Plot(histograms=[_, *_]):
            title = words_block(part.title, theme, max_width)
            bars = histogram_blocks(part.histograms, theme, max_width, part.rows)
            return stack([title, bars], gap=0)
        case doc.Plot():
            return plot_block(part, theme, max_width)


def _facts(part: doc.Facts, theme: Theme, max_width: int) -> Block:
    words: doc.Words = [(text, tone or part.tone) for text, tone in part.words]
    inner = max(max_width - part.lead, 1)
    lines = words_lines(words, theme, inner)
    if part.lead:
        name = fit(theme.spell(part.name), part.lead, theme.ellipsis)
        leads = [name, *[" " * part.lead] * (len(lines) - 1)]
        style = DIM if part.name else None
        lines = [[Segment(lead, style), *line] for lead, line in zip(leads, lines, strict=True)]
    return Block(tuple(lines), max_width)
