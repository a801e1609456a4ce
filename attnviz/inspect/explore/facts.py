"""The view in words: the model, the finding, the head, its links, the prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.coloured_text import marks_line, pieces_line, pieces_of, rows_of
from attnviz.draw.document import Map
from attnviz.draw.labels import at_blanks, fit, token_labels, visible, width
from attnviz.draw.numbers import NumberScale
from attnviz.draw.provenance import (
    label_source,
    label_words,
    named,
    shape_words,
    share,
    size_words,
)
from attnviz.draw.signed import ranked_table
from attnviz.draw.terminal import part_block
from attnviz.draw.theme import Theme, Tone
from attnviz.engine.head_run import Head
from attnviz.engine.likely import Likely
from attnviz.engine.removals import Effects
from attnviz.inspect.explore.grid import moved_attention
from attnviz.inspect.explore.scene import Scene, View, Written
from attnviz.inspect.explore.session import Floats, Frame, model_name, same_tokens, two_models
from attnviz.inspect.heads.finding import described, finding, scored
from attnviz.inspect.heads.report import HeadsView, compare_heads
from attnviz.measures.registry import MEASURES
from attnviz.records import Tokens

MODES = {"raw": "", "no-sink": "sink left out", "value-weighted": "value-weighted"}
"""The words for each mode of the weights."""

_MOST_TOLD, _LEAST_TOLD, _ROUNDED = 7, 0.015, 0.005
"""How many weights are named, the smallest named, and the smallest if it is the largest of all."""


# Lines ---------------------------------------------------------------------------------------


def parts(words: Iterable[tuple[str, Tone | bool]], theme: Theme, room: int) -> Line:
    """Join words by dots, as many as one line holds; only the first may be cut."""
    line: Line = []
    used, dot = 0, theme.dot
    for text, tone in words:
        spelled, style = theme.spell(text), theme.tone(tone)
        if not line:
            if width(spelled) > room:
                return [Segment(_at_word(spelled, room, theme), style)]
        elif used + width(dot) + width(spelled) > room:
            break
        elif style == line[-1].style:
            spelled = dot + spelled
        else:
            line.append(Segment(dot))
            used += width(dot)
        line.append(Segment(spelled, style))
        used += width(spelled)
    return line


def heading(view: View, theme: Theme, room: int) -> Line:
    """Return the model, the size of the text, how well it is predicted, then the text itself."""
    report = view.shown.report
    info, record = report.record.model, view.record
    short = replace(info, name=model_name(info))
    words: list[tuple[str, Tone | bool]] = [*named(short), (shape_words(info), False)]
    prompt = ""
    if view.written is not None and view.written.at:
        prompt = "prompt "
        size = len(report.record.queries)
        words.append((f"{size} + {len(record.queries) - size} tokens", False))
    else:
        words.append((size_words(record), False))
    if record.kind != "self":
        words.append((f"{record.kind} attention", False))
    if view.shown.loss is not None:
        words.append((f"{prompt}loss {view.shown.loss:.3f} nats/token", False))
    line = parts(words, theme, room)
    left = room - Segment.get_line_length(line) - width(theme.dot)
    text = visible(" ".join(view.shown.text.split()), theme.encoding)
    if left >= 16 and text:
        shown = text if width(text) <= left else _at_word(text, left, theme)
        line += [Segment(theme.dot, DIM), Segment(shown, DIM)]
    return line


def _at_word(text: str, room: int, theme: Theme) -> str:
    """Return the words of a text that fit, then an ellipsis."""
    kept = fit(text, room, theme.ellipsis)
    whole = kept.removesuffix(theme.ellipsis).rstrip()
    if " " in whole and not text.startswith(f"{whole} "):
        whole = whole.rpartition(" ")[0]
    return f"{whole} {theme.ellipsis}" if width(whole) + 2 <= room else kept


def finding_lines(view: View, theme: Theme, room: int, rows: int) -> list[Line]:
    """Return the finding in at most so many lines: as many whole sentences as they hold."""
    sentences = [theme.spell(sentence) for sentence in _answer(view)]
    while sentences:
        lines = at_blanks(f"{'. '.join(sentences)}.", room, "", theme.ellipsis)
        if len(lines) <= rows or len(sentences) == 1:
            return [[Segment(line, BOLD)] for line in lines[:rows]]
        sentences.pop()
    return []


def _answer(view: View) -> list[str]:
    """Return the sentences of the finding, the most important first, without full stops."""
    if view.written is not None:
        return [_progress(view, view.written)]
    if view.scene.removed:
        return _of_removed(view)
    if view.other is not None:
        return _of_two(view, view.other)
    return _of_heads(view.shown).removesuffix(".").split(". ")


def _of_removed(view: View) -> list[str]:
    scene, frame, whole, effects = view.scene, view.frame, view.whole, view.effects
    said = f"Without {_names(scene)}"
    if frame.loss is not None and whole.loss is not None:
        change = frame.loss - whole.loss
        said += f": loss {whole.loss:.3f} → {frame.loss:.3f} ({change:+.3f} nats/token)"
    elif effects is not None and len(scene.removed) == 1:
        (head,) = scene.removed
        said += f": {_effect(effects, head)}" if head in effects.values else ""
    both = [each.likely[0] for each in (whole, frame) if each.likely]
    if len(both) < 2 or all(each.probability < _ROUNDED for each in both):
        return [said]
    return [said, f"Next {_likely(both[0])} → {_likely(both[1])}"]


def _names(scene: Scene) -> str:
    return ", ".join(map(scene.name, sorted(scene.removed)))


@lru_cache(maxsize=4)
def _of_heads(frame: Frame) -> str:
    return finding(compare_heads([frame.report]), HeadsView())


def _of_two(view: View, other: Frame) -> list[str]:
    models = [frame.report.record.model for frame in (view.frame, other)]
    where = [f" in {model_name(info)}" if two_models(view.frame, other) else "" for info in models]
    losses = [frame.loss for frame in (view.frame, other) if frame.loss is not None]
    said = [f"N{view.unlike[1:]}"] if view.unlike else []
    if len(losses) == 2:
        said.append(f"Loss {losses[0]:.3f}{where[0]} and {losses[1]:.3f}{where[1]} nats/token")
    moved = moved_attention(view.frame, other)
    if moved:
        most = max(moved, key=lambda head: moved[head])
        mean = sum(moved.values()) / len(moved)
        said.append(
            f"{share(mean)} of a head's attention moves on average, most in "
            f"{view.scene.name(most)} ({share(moved[most])})"
        )
    return said or ["Two texts of as many tokens, compared by position"]


def _progress(view: View, written: Written) -> str:
    sampling, removed = written.sampling, view.frame.removed
    state = (
        "writes"
        if written.running and not written.paused
        else "paused"
        if written.running
        else "done"
    )
    chosen = (
        f"temperature {sampling.temperature:g}, seed {sampling.seed}"
        if sampling.temperature
        else "greedy"
    )
    without = f" without {_names(view.scene)}" if removed else ""
    return f"Generating{without}, {state}: token {written.at} of {len(written.steps)}, {chosen}"


def _likely(likely: Likely) -> str:
    chance = "<.005" if likely.probability < _ROUNDED else share(likely.probability)
    return f"{_quoted(likely.text)} {chance}"


def _quoted(text: str) -> str:
    return f"“{token_label_of(text)}”"


def token_label_of(text: str) -> str:
    return token_labels(Tokens((0,), (text,), (False,)))[0]


def head_line(view: View, theme: Theme, room: int, strong: bool) -> Line:
    """Return the chosen head's name, label, score and base rate, and the mode of its weights."""
    scene, report = view.scene, view.shown.report
    entry = report.scores(*scene.head)
    what = described(entry)
    words = _states(view)
    of_prompt = " (prompt)" if view.written is not None and view.written.at else ""
    words.append((scored(what.said, what.score) + of_prompt, False))
    words += [(said, "faint") for said in label_words(entry.label)[1:]]
    source = label_source([entry.label], "{source}, {date}")
    words += [(source, "faint")] if source else []
    name = Segment(f" {scene.name(scene.head)} ", theme.accent(ground=True) if strong else BOLD)
    return [name, Segment(" "), *parts(words, theme, room - width(name.text) - 1)]


_SIDES = {"a": "first", "b": "second", "difference": "second less first"}
_REMOVED = {"b": "whole model", "difference": "change by ablation"}


def _states(view: View) -> list[tuple[str, Tone | bool]]:
    """Return what was done to the shown weights, which a title must always say."""
    scene, words = view.scene, list[tuple[str, Tone | bool]]()
    if view.other is not None:
        by_position = scene.side == "difference" and not same_tokens(view.frame, view.other)
        words.append((_SIDES[scene.side] + ", by position" * by_position, "strong"))
    elif scene.side in _REMOVED and scene.removed:
        words.append((_REMOVED[scene.side], "strong"))
    if view.dark:
        words.append(("ablated", "bad"))
    elif scene.removed and scene.side == "a" and view.other is None:
        words.append((f"without {_names(scene)}", "bad"))
    return [*words, (MODES[scene.mode], "strong")] if MODES[scene.mode] else words


def score_line(view: View, theme: Theme, room: int) -> Line:
    """Return the scores of the head and the effect of its removal."""
    scene, report = view.scene, view.shown.report
    entry = report.scores(*scene.head)
    words: list[tuple[str, Tone | bool]] = []
    if view.effects is not None and scene.head in view.effects.values:
        words.append((f"ablated: {_effect(view.effects, scene.head)}", True))
    elif view.scanned is not None:
        words.append((f"ablating every head {view.scanned:.0%}, Esc stops", "faint"))
    sink = report.sinks.get(scene.head)
    if sink is not None:
        words.append((f"sink weight {share(sink)}", "faint"))
    known = {name: value for name, value in entry.scores.items() if value is not None}
    if "entropy" in known:
        words.append((f"entropy {known['entropy']:.2f} nats", "faint"))
    if view.written is not None and view.written.at:
        words[:0] = [("of the prompt", "faint")]
    ranked = sorted(
        (name for name in known if MEASURES[name].family != "statistic" and name != "first"),
        key=lambda name: -known[name],
    )
    words += [(f"{MEASURES[name].said or name} {share(known[name])}", "faint") for name in ranked]
    return parts(words, theme, room)


def _effect(effects: Effects, head: Head) -> str:
    rank = effects.ranking().index(head) + 1
    unit = "nats/token" if effects.metric == "loss_delta" else "output MSE"
    return f"{effects.values[head]:+.3f} {unit}, {rank} of {len(effects.values)}"


def word_lines(view: View, theme: Theme, room: int, rows: int) -> list[Line]:
    """Return the cursor's cell, its row and its column in words, and the next tokens."""
    if view.written is not None and view.written.at:
        return _written_lines(view, view.written, theme, room)[:rows]
    scene = view.scene
    queries, keys = view.names(theme.encoding)
    weights = view.weights
    query, key = scene.query, scene.key
    arrow = " -> " if theme.ascii else " → "
    value = float(weights[query, key])
    signed = view.limit > 0
    number = "not yet" if np.isnan(value) else f"{value:+.3f}" if signed else f"{value:.3f}"
    if view.record.causal and key > query:
        number = "later, hidden"
    cell = [
        Segment(f"{queries[query]}{arrow}{keys[key]}", theme.accent()),
        Segment(f"  {number}", BOLD),
        Segment(f"  {MODES[scene.mode]}", DIM),
    ]
    lead = max(width(f"from {queries[query]}"), width(f"to {keys[key]}"), width("next token")) + 2
    lead = min(lead, room // 2)
    row, column = weights[query], weights[:, key]
    lines = [
        cell,
        _ranked(
            f"from {queries[query]}",
            lead,
            weights=row,
            names=keys,
            theme=theme,
            room=room,
            signed=signed,
        ),
        _ranked(
            f"to {keys[key]}",
            lead,
            weights=column,
            names=queries,
            theme=theme,
            room=room,
            signed=signed,
        ),
    ]
    likely = _predicted(view)
    if likely:
        words = [(_likely(each), False) for each in likely]
        lines.append([_lead("next token", lead, theme), *parts(words, theme, room - lead)])
    return lines[:rows]


def _written_lines(view: View, written: Written, theme: Theme, room: int) -> list[Line]:
    """Return the end of the text, shaded by weight, and the token that the model chose."""
    step = written.steps[written.at - 1]
    queries, keys = view.names(theme.encoding)
    layer, head = view.scene.head
    row = np.full(len(view.record.keys), np.nan)
    weights = step.rows[layer][head]
    row[: len(weights)] = weights
    lead = width("next token") + 2
    chosen = Likely(step.text, step.id, step.probability)
    words: list[tuple[str, Tone | bool]] = [(_likely(chosen), True)]
    words += [(_likely(each), False) for each in step.likely if each.id != step.id]
    return [
        *_tail(view, row, theme, room),
        _ranked(
            f"from {queries[step.place]}",
            lead,
            weights=row,
            names=keys,
            theme=theme,
            room=room,
            signed=False,
        ),
        [_lead("wrote", lead, theme), *parts(words, theme, room - lead)],
    ]


def _tail(view: View, row: Floats, theme: Theme, room: int) -> list[Line]:
    """Return the last lines of the text, shaded by the weights of the newest token."""
    keys = view.record.keys
    shown = Map("", row[None, :], keys, keys)
    lines = rows_of(pieces_of(shown, theme, room - 2), room - 2)
    drawn: list[Line] = []
    for pieces in lines[-2:] if theme.colour else lines[-1:]:
        drawn.append(pieces_line(pieces, shown, theme))
        if pieces[-1].place == len(keys) - 1:
            drawn[-1][-1] = Segment(pieces[-1].label, BOLD)
        if not theme.colour:
            drawn.append([Segment(marks_line(pieces, shown, theme))])
    return drawn


def _predicted(view: View) -> Sequence[Likely]:
    """Return the likeliest next tokens; while a text is written, those of the shown step."""
    if view.written is not None and view.written.at:
        return view.written.steps[view.written.at - 1].likely
    return view.shown.likely


def _lead(text: str, lead: int, theme: Theme) -> Segment:
    return Segment(fit(theme.spell(text), lead - 1, theme.ellipsis).ljust(lead), DIM)


def _ranked(
    title: str,
    lead: int,
    weights: Floats,
    names: Sequence[str],
    theme: Theme,
    room: int,
    signed: bool,
) -> Line:
    """Return the largest weights of a row or a column in words."""
    sizes = np.abs(np.nan_to_num(weights))
    order = np.argsort(-sizes, kind="stable")[:_MOST_TOLD].tolist()
    words: list[tuple[str, Tone | bool]] = [
        (f"{names[place]} {_weight(float(weights[place]), signed)}", not rank)
        for rank, place in enumerate(order)
        if sizes[place] >= (_LEAST_TOLD if rank else _ROUNDED)
    ]
    return [_lead(title, lead, theme), *parts(words or [("nothing", "faint")], theme, room - lead)]


def _weight(value: float, signed: bool) -> str:
    return f"{value:+.2f}" if signed else share(value)


def effect_lines(view: View, theme: Theme, room: int, rows: int) -> list[Line]:
    """Return the effects of removing single heads in so many lines, the most important first.

    Each has a bar, as in ``attnviz ablate``; the chosen head stands out.
    """
    effects, name = view.effects, view.scene.name
    if effects is None:
        return []
    scale = NumberScale.over(effects.values.values())
    heads = effects.ranking()[:rows]
    values = [effects.values[head] for head in heads]
    texts = [("", list(map(scale.text, values)))]
    by_loss = effects.metric == "loss_delta"
    title = "loss without it" if by_loss else "change without it"
    unit = "nats/token" if by_loss else "output MSE"
    table = ranked_table(title, list(map(name, heads)), values, scale, texts)
    table = table._replace(title=[(title, True), (unit + scale.times, False)])
    lines = list(part_block(table, theme, room).lines[:rows])
    for place, line in enumerate(lines):
        if line and line[0].text.strip() == name(view.scene.head):
            lines[place] = [Segment(line[0].text, theme.accent()), *line[1:]]
    return lines
