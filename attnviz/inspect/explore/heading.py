"""The top of the screen in words: the model, the text, and what was found about its heads."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from rich.segment import Segment

from attnviz.draw.blocks import BOLD, DIM, Line
from attnviz.draw.labels import at_blanks, token_labels, visible, width
from attnviz.draw.prose import cut_at_word, one_line
from attnviz.draw.provenance import named, shape_words, share, size_words
from attnviz.draw.theme import Theme, Tone
from attnviz.engine.head_run import Head
from attnviz.engine.likely import Likely
from attnviz.engine.removals import Effects
from attnviz.inspect.explore.grid import moved_attention
from attnviz.inspect.explore.scene import Scene
from attnviz.inspect.explore.session import Frame, model_name, two_models
from attnviz.inspect.explore.view import View, Written
from attnviz.inspect.heads.look import named_links
from attnviz.inspect.heads.sentences import finding
from attnviz.records import Tokens

ROUNDED = 0.005
"""The smallest share that does not round to zero."""


def heading(view: View, theme: Theme, max_width: int) -> Line:
    """Return the line with the model, the size of the text, its loss, then the text itself.

    theme: colours and characters. max_width: in characters.
    """
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
        part = view.shown.long
        words.append((size_words(record) if part is None else f"{part.size:,} tokens", False))
    if record.kind != "self":
        words.append((f"{record.kind} attention", False))
    if view.shown.loss is not None:
        words.append((f"{prompt}loss {view.shown.loss:.3f} nats/token", False))
    line = one_line(words, theme, max_width)
    left = max_width - Segment.get_line_length(line) - width(theme.dot)
    text = visible(" ".join(view.shown.text.split()), theme.encoding)
    if left >= 16 and text:
        shown = text if width(text) <= left else cut_at_word(text, left, theme)
        line += [Segment(theme.dot, DIM), Segment(shown, DIM)]
    return line


def finding_lines(view: View, theme: Theme, max_width: int, rows: int) -> list[Line]:
    """Return the finding in at most ``rows`` lines: as many whole sentences as fit.

    theme: colours and characters. max_width: in characters.
    """
    sentences = [theme.spell(sentence) for sentence in _answer(view)]
    while sentences:
        lines = at_blanks(f"{'. '.join(sentences)}.", max_width, "", theme.ellipsis)
        if len(lines) > rows and len(sentences) == 1:
            line = cut_at_word(" ".join(lines[rows - 1 :]), max_width, theme)
            lines = [*lines[: rows - 1], line]
        if len(lines) <= rows:
            return [[Segment(line, BOLD)] for line in lines]
        sentences.pop()
    return []


def at_finding(view: View) -> View:
    """Return the screen state at the head and the cell that its finding names, if it names one."""
    scene, frame = view.scene, view.shown
    if view.other is not None:
        moved = moved_attention(view.frame, view.other)
        scene = scene.with_head(max(moved, key=lambda head: moved[head])) if moved else scene
    elif frame.long is None:
        for link, _ in named_links(frame.alone):
            return replace(view, scene=scene.with_head(link[:2]).at(link.query, link.key))
    return replace(view, scene=scene)


def _answer(view: View) -> list[str]:
    """Return the sentences of the finding on the maps in view, without full stops."""
    if view.written is not None:
        return [_progress(view, view.written)]
    if view.scene.removed:
        return _of_removed(view)
    if view.other is not None:
        return _of_two(view, view.other)
    if view.shown.long is not None:
        said = view.shown.long.text.finding.removesuffix(".").split("; ")
        return [each[:1].upper() + each[1:] for each in said]
    return _of_heads(view.shown).removesuffix(".").split(". ")


def _of_removed(view: View) -> list[str]:
    scene, frame, whole, effects = view.scene, view.frame, view.whole, view.effects
    said = f"Without {removed_names(scene)}"
    if frame.loss is not None and whole.loss is not None:
        change = frame.loss - whole.loss
        said += f": loss {whole.loss:.3f} → {frame.loss:.3f} ({change:+.3f} nats/token)"
    elif effects is not None and len(scene.removed) == 1:
        (head,) = scene.removed
        said += f": {effect_words(effects, head)}" if head in effects.values else ""
    both = [each.likely[0] for each in (whole, frame) if each.likely]
    if len(both) < 2 or all(each.probability < ROUNDED for each in both):
        return [said]
    return [said, f"Next {likely_words(both[0])} → {likely_words(both[1])}"]


def removed_names(scene: Scene) -> str:
    """Return the names of the heads that are ablated, with commas between."""
    return ", ".join(map(scene.name, sorted(scene.removed)))


@lru_cache(maxsize=4)
def _of_heads(frame: Frame) -> str:
    return finding(frame.alone)


def _of_two(view: View, other: Frame) -> list[str]:
    """Return the finding on two sides: the head that moved most, the new prediction, both losses.

    other: the result of the second side.
    """
    frames = view.frame, other
    said = [f"N{view.unlike[1:]}"] if view.unlike else []
    moved = moved_attention(*frames)
    if moved:
        most = max(moved, key=lambda head: moved[head])
        mean = sum(moved.values()) / len(moved)
        said.append(
            f"{view.scene.name(most)} moved most: {share(moved[most])} of its attention "
            f"(mean of {len(moved)} heads {share(mean)})"
        )
    tops = [frame.likely[0] for frame in frames if frame.likely]
    if len(tops) == 2 and any(each.probability >= ROUNDED for each in tops):
        said.append(f"Next {likely_words(tops[0])} → {likely_words(tops[1])}")
    losses = [frame.loss for frame in frames if frame.loss is not None]
    if len(losses) == 2:
        models = [model_name(frame.report.record.model) for frame in frames]
        between = f" ({' → '.join(models)})" if two_models(*frames) else ""
        said.append(f"Loss {losses[0]:.3f} → {losses[1]:.3f} nats/token{between}")
    return said or ["Two texts of as many tokens, compared by position"]


def _progress(view: View, written: Written) -> str:
    sampling, removed = written.sampling, view.frame.removed
    state = "done"
    if written.running:
        state = "paused" if written.paused else "writes"
    chosen = (
        f"temperature {sampling.temperature:g}, seed {sampling.seed}"
        if sampling.temperature
        else "greedy"
    )
    without = f" without {removed_names(view.scene)}" if removed else ""
    return f"Generating{without}, {state}: token {written.at} of {len(written.steps)}, {chosen}"


def likely_words(likely: Likely) -> str:
    """Return a token and its probability, such as ``“The” .07``."""
    chance = "<.005" if likely.probability < ROUNDED else share(likely.probability)
    (label,) = token_labels(Tokens((0,), (likely.text,), (False,)))
    return f"“{label}” {chance}"


def effect_words(effects: Effects, head: Head) -> str:
    """Return the effect of removing a head as a string, with its rank among all heads.

    effects: of all heads.
    """
    rank = effects.ranking().index(head) + 1
    unit = "nats/token" if effects.metric == "loss_delta" else "output MSE"
    return f"{effects.values[head]:+.3f} {unit}, {rank} of {len(effects.values)}"
