"""What is said of a run and of a head in words: provenance, titles, traits, scores."""

from __future__ import annotations

from attnviz.draw.blocks import Block, Line
from attnviz.draw.kind_words import kind_words
from attnviz.draw.prose import quoted_line, wrapped
from attnviz.draw.theme import Theme
from attnviz.records import NO_TRAIT, AttentionRecord, HeadScores, HeadsReport, ModelInfo, Trait

__all__ = [
    "counted",
    "head_title",
    "model_parts",
    "model_words",
    "name_parts",
    "provenance",
    "quoted_line",
    "rests",
    "score_parts",
    "share",
    "size_words",
    "trait_text",
    "trait_words",
]


def counted(number: int, noun: str) -> str:
    """Such as ``1 text`` or ``1,024 tokens``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def share(value: float) -> str:
    """A number in [0, 1] in three characters, such as ``.07``."""
    return "1.0" if value >= 0.995 else f"{max(value, 0.0):.2f}"[1:]


def trait_text(trait: Trait, room: int) -> str:
    """A trait and its score, the trait by its letter where the name does not fit."""
    if trait is NO_TRAIT:
        return trait.name if len(trait.name) <= room else trait.letter
    full = f"{trait.name} {share(trait.score)}"
    return full if len(full) <= room else f"{trait.letter} {share(trait.score)}"


def rests(scores: HeadScores) -> bool:
    """Whether an induction head looks more at the first token than at what it is named for."""
    return scores.trait.name == "induction" and (
        (scores.scores.get("first") or 0.0) > scores.trait.score
    )


def trait_words(scores: HeadScores) -> list[str]:
    """A head's trait, what it compares with, where else it looks, and its entropy."""
    trait, entropy = scores.trait, scores.scores.get("entropy")
    if trait is NO_TRAIT:
        return [trait.name]
    words = [f"{trait.name} {share(trait.score)}"]
    if trait.name != "spread":
        words.append(f"even spread {share(trait.base_rate)}")
    if rests(scores):
        words.append(f"rests on the first token {share(scores.scores['first'] or 0.0)}")
    if entropy is not None:
        words.append(f"entropy {entropy:.2f} nats")
    return words


def _shape(info: ModelInfo) -> str:
    shape = f"{info.layers} layer{'s' * (info.layers > 1)} × {info.heads} heads"
    return shape if info.kv_heads == info.heads else f"{shape} on {info.kv_heads} key/value heads"


def provenance(
    report: HeadsReport, text: str, target: str | None, room: int, theme: Theme
) -> Block:
    """Which model, which weights, which text: what a reader needs to repeat the run."""
    record, info = report.record, report.record.model
    seed = "no seed used" if info.seed is None else f"seed {info.seed}"
    parts = [
        *model_parts(info, theme),
        *((word, False) for word in kind_words(record, theme.ascii)),
        (size_words(record), False),
        *([] if info.is_array else [(seed, False)]),
    ]
    lines = wrapped(parts, room, theme)
    unread = info.is_array and not text  # a map without tokens
    for name, content in (("text", None if unread else text), ("target", target)):
        if content is not None:
            lines.append(quoted_line(name, content, room, theme))
    return Block(tuple(lines), room)


def size_words(record: AttentionRecord) -> str:
    """How much text there is on the axes."""
    queries, keys = len(record.queries), len(record.keys)
    return f"{queries} tokens" if record.kind != "cross" else f"{queries} queries, {keys} keys"


def model_parts(info: ModelInfo, theme: Theme) -> list[tuple[str, bool]]:
    """``model_words`` in signs that the console has."""
    return [(theme.spell(text), bold) for text, bold in model_words(info)]


def model_words(info: ModelInfo) -> list[tuple[str, bool]]:
    """Which model and which weights, as parts (text, bold) of a line."""
    if info.is_array:
        return [
            (info.name, True),
            (f"given as a {info.dtype} array", False),
            (f"{info.heads} head{'s' * (info.heads > 1)}", False),
        ]
    return [
        (info.name, True),
        (f"revision {info.revision[:12]}" if info.revision else "no revision", False),
        (f"{info.weights} weights", False),
        (info.dtype if info.device == "cpu" else f"{info.dtype} on {info.device}", False),
        (_shape(info), False),
    ]


def head_title(report: HeadsReport, scores: HeadScores, room: int, theme: Theme) -> list[Line]:
    """A head's name and its scores, above its map."""
    return wrapped([*name_parts(report, scores), *score_parts(report, scores)], room, theme)


def name_parts(report: HeadsReport, scores: HeadScores) -> list[tuple[str, bool]]:
    """A head's name and the key/value head that it shares, as parts (text, bold) of a line."""
    parts = [(report.name(scores.layer, scores.head), True)]
    group = report.record.model.group(scores.head)
    if group is not None:
        parts.append((f"key/value head {group + report.index_base}", False))
    return parts


def score_parts(report: HeadsReport, scores: HeadScores) -> list[tuple[str, bool]]:
    """A head's trait, what it compares with, and its entropy, as parts (text, bold) of a line."""
    values = scores.scores
    name, *rest = trait_words(scores)
    parts = [(name, True), *((words, False) for words in rest)]
    measure = report.sorted_by
    if measure and measure not in ("entropy", scores.trait.name):
        value = values[measure]
        shown = "not measured" if value is None else f"{value:.2f}"
        parts.append((f"{measure.replace('_', ' ')} {shown}", False))
    return parts
