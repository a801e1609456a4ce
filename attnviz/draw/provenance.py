"""What is said of a run and of a head in words: provenance, titles, labels, scores."""

from __future__ import annotations

from attnviz.records import NO_LABEL, AttentionRecord, HeadLabel, HeadScores, ModelInfo


def counted(number: int, noun: str) -> str:
    """Such as ``1 text`` or ``1,024 tokens``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def share(value: float) -> str:
    """A number in [0, 1] in three characters, such as ``.07``."""
    return "1.0" if value >= 0.995 else f"{max(value, 0.0):.2f}"[1:]


def label_text(label: HeadLabel, room: int) -> str:
    """A label and its score, the label by its letter where the name does not fit."""
    if label is NO_LABEL:
        return label.name if len(label.name) <= room else label.letter
    full = f"{label.name} {share(label.score)}"
    return full if len(full) <= room else f"{label.letter} {share(label.score)}"


def sinks(scores: HeadScores) -> bool:
    """Whether an induction head looks more at the first token than at what it is named for."""
    first = scores.scores.get("first") or 0.0
    return scores.label.name == "induction" and first > scores.label.score


def label_words(scores: HeadScores) -> list[str]:
    """A head's label, what it compares with, where else it looks, and its entropy."""
    label, entropy = scores.label, scores.scores.get("entropy")
    if label is NO_LABEL:
        return [label.name]
    words = [f"{label.name} {share(label.score)}"]
    words += [f"uniform {share(label.base_rate)}"] * (label.name != "spread")
    if sinks(scores):
        words.append(f"first token {share(scores.scores['first'] or 0.0)}")
    return [*words, *([] if entropy is None else [f"entropy {entropy:.2f} nats"])]


def brief_name(info: ModelInfo, most: int = 28) -> str:
    """A model's name for a heading of one line: of a long path the end."""
    return info.name if len(info.name) <= most else "…" + info.name[1 - most :]


def _shape(info: ModelInfo) -> str:
    shape = f"{info.layers} layer{'s' * (info.layers > 1)} × {info.heads} heads"
    return shape if info.kv_heads == info.heads else f"{shape} on {info.kv_heads} key/value heads"


def size_words(record: AttentionRecord) -> str:
    """How much text there is on the axes."""
    queries, keys = len(record.queries), len(record.keys)
    return f"{queries} tokens" if record.kind != "cross" else f"{queries} queries, {keys} keys"


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
