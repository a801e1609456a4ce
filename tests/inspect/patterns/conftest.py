"""Reports of made-up scores, small enough to read back whole."""

from dataclasses import replace

import numpy as np

from attnviz.inspect.patterns.report import Control, PatternReport, PatternScores, Probe
from attnviz.models.model import Vocabulary
from attnviz.records import ModelInfo, Tokens

from ...small_models import ShowsWeights

NAMES = ("previous", "first", "self", "duplicate", "induction", "delimiter", "rare", "subject")
THRESHOLD = 0.25
WORDS = 128
"""Vocabulary and context of the models below; token 0 begins every text."""


def make_head(place, names, rng, control, missing):
    """Made-up scores; every third head has a clear label."""
    layer, head = place
    base = dict(zip(names, rng.uniform(0.01, 0.2, len(names)).round(4).tolist(), strict=True))
    raw = rng.uniform(0.0, 0.3, len(names)).round(4).tolist()
    scores = dict(zip(names, raw, strict=True))
    if (2 * layer + head) % 3 == 0:
        scores[names[(layer + head) % len(names)]] = round(float(rng.uniform(0.4, 1.0)), 4)
    rates = dict(base)
    scores |= dict.fromkeys(missing)
    rates |= dict.fromkeys(missing)
    known = {name: value for name, value in scores.items() if value is not None}
    strength = {name: (value - base[name]) / (1 - base[name]) for name, value in known.items()}
    best = max(strength, key=lambda name: strength[name])
    label = best if strength[best] >= THRESHOLD else None
    limits = {"entropy": 3, "normalised_entropy": 1, "distance": 140, "confidence": 1}
    statistics = {name: float(rng.uniform(0, most)) for name, most in limits.items()}
    return PatternScores(
        layer,
        head,
        label,
        scores,
        rates,
        strength,
        margin=known[best] - base[best] if label else None,
        agreement=float(rng.uniform(0.5, 1)) if label else None,
        measured=dict.fromkeys(known, 7),
        statistics={**statistics, "first": scores.get("first")},
        control=dict.fromkeys(names, 0.01) if control else {},
        intervals={n: (round(v - 0.03, 4), round(v + 0.05, 4)) for n, v in known.items()},
    )


def pattern_reports(*, layers=3, heads=5, names=NAMES, control=False, missing=(), **fields):
    """A report; the other names are fields of the record."""
    rng = np.random.default_rng(11)
    info = ModelInfo("made", "0123456789abcdef", "None", "float32", layers, heads, heads, 8)
    entries = tuple(
        make_head((layer, head), names, rng, control, missing)
        for layer in range(layers)
        for head in range(heads)
    )
    report = PatternReport(
        info,
        "self",
        True,
        "raw",
        entries,
        tuple(names),
        (
            Probe("natural text", 12, 71, 128, ("previous", "first", "self", "delimiter", "rare")),
            Probe("random repeats", 6, 33, 129, ("duplicate", "induction"), seeds=(0, 1, 2)),
            Probe("annotated sentences", 67, 6, 17, ("subject",), pairs={"subject": 67}),
        ),
        not_measured=dict.fromkeys(missing, "no token comes twice"),
        control=Control(0, {"previous": 0, "first": 1}) if control else None,
    )
    return replace(report, **fields)


class WordModel(ShowsWeights):
    """Words become tokens in order of their first appearance, behind a first special token."""

    kinds = ("self",)
    context = WORDS

    def encode(self, text, limit=None):
        words = text.split()
        numbers = {word: 1 + n for n, word in enumerate(dict.fromkeys(words))}
        ids = (0, *(numbers[word] for word in words))[:limit]
        texts = ("<s>", *(f" {word}" for word in words))[:limit]
        return Tokens(ids, texts, tuple(number == 0 for number in ids))

    def vocabulary(self):
        return Vocabulary(
            np.arange(1, WORDS),
            Tokens((0,), ("<s>",), (True,)),
            Tokens((), (), ()),
            ranked=False,
            texts=lambda ids: tuple(f" w{number}" for number in ids),
        )

    def notes_for(self, tokens):
        return ()


class ScriptedModel(WordModel):
    """Each head is a function from the tokens to its (query, key) matrix."""

    def __init__(self, layers):
        self._layers = layers
        self._numbers = {"<s>": 0}
        heads = len(layers[0])
        self.info = ModelInfo("made", None, "None", "float64", len(layers), heads, heads, 2)

    def encode(self, text, limit=None):
        """Words have one number in all texts, so that ids tell them."""
        tokens = super().encode(text, limit)
        ids = tuple(self._numbers.setdefault(word, len(self._numbers)) for word in tokens.texts)
        return replace(tokens, ids=ids)

    def run_rows(self, ids, rows, wants, observe, *, norms=False):
        words = {number: word for word, number in self._numbers.items()}
        texts = [Tokens.bare(text) for text in ids]
        texts = [replace(one, texts=tuple(words.get(n, "") for n in one.ids)) for one in texts]
        for layer, heads in enumerate(self._layers):
            if wants(layer):
                whole = np.stack([[head(text) for head in heads] for text in texts])
                for start in range(0, len(ids[0]), rows):
                    observe(layer, start, whole[:, :, start : start + rows], None)


def at(offset):
    """All weight on the key ``offset`` away, at the edges on the nearest there is."""

    def head(tokens):
        n = len(tokens)
        weights = np.zeros((n, n))
        weights[np.arange(n), np.clip(np.arange(n) + offset, 0, n - 1)] = 1
        return weights

    return head


def first(tokens):
    weights = np.zeros((len(tokens),) * 2)
    weights[:, 0] = 1
    return weights


def even(tokens):
    weights = np.tril(np.ones((len(tokens),) * 2))
    return weights / weights.sum(1, keepdims=True)


def latest_equal(behind):
    """All weight ``behind`` tokens after the latest equal earlier token; else all on the first."""

    def head(tokens):
        weights = np.zeros((len(tokens),) * 2)
        for i, token in enumerate(tokens.ids):
            found = [j for j in range(i) if tokens.ids[j] == token and j + behind < i]
            weights[i, found[-1] + behind if found else 0] = 1
        return weights

    return head


def marks(tokens):
    """Evenly on the words that end a phrase, on itself before the first one."""
    ends = [place for place, text in enumerate(tokens.texts) if text.strip() in (".", ",")]
    weights = np.zeros((len(tokens),) * 2)
    for i in range(len(tokens)):
        seen = [j for j in ends if j <= i] or [i]
        weights[i, seen] = 1 / len(seen)
    return weights


HEADS = {
    "previous": at(-1),
    "first": first,
    "self": at(0),
    "duplicate": latest_equal(0),
    "induction": latest_equal(1),
    "delimiter": marks,
}


NEXT_HEAD = at(1)
