"""The baseline of a model: a few numbers per head, saved so that a later model is compared with it.

For each head: its pattern scores, and its mean attention by distance, a distribution over steps of
distance from the query, with the sink as a step of its own. The Jensen–Shannon divergence of two
such distributions is at most the mean divergence of the rows that ``diff`` measures: it is jointly
convex and falls when outcomes are merged (Lin 1991). Heads beyond a bound here are beyond it there.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnviz.draw.files import check_writable, whole_file
from attnviz.draw.labels import short_name, visible
from attnviz.draw.values import model_facts, write_object
from attnviz.engine.head_run import Head
from attnviz.errors import LoadError, UsageError
from attnviz.measures.divergence import js_divergence
from attnviz.measures.registry import read_score
from attnviz.models.model import broken_words
from attnviz.reading import SETTINGS_BYTES, damaged, optional, parse_json, read_bytes, typed
from attnviz.records import Floats, Kind, ModelInfo

SCHEMA = "attnviz.baseline/1"

DISTANCES = (0, 1, 2, 4, 8, 16)
"""The furthest key of each step of distance; keys further away are one more step."""

_FACTS = ("name", "revision", "architecture", "layers", "heads", "dtype")
_DECIMALS = 6
_OPENING = 200  # the first bytes of a baseline, damaged or not, which contain its schema
_OFF = 1e-3  # how far the sum of rounded shares may be from one


def by_distance(weights: Floats, sink: NDArray[np.bool_], causal: bool) -> NDArray[np.float64]:
    """Return attention weights (head, query, key) summed over queries by distance: (head, bin).

    Bin 0 is the sink. Then come distances back from the query, in bins with the edges of
    ``DISTANCES``, and if not causal as many bins of distances ahead. sink: (key,), whether a key
    belongs to it. causal: no later key is seen; query 0, which sees only itself, is left out.
    """
    tokens = weights.shape[-1]
    apart = np.arange(tokens)[:, None] - np.arange(tokens)
    steps = 1 + np.searchsorted(DISTANCES, np.abs(apart))
    count = len(DISTANCES) + 2
    if not causal:
        steps = np.where(apart < 0, steps + len(DISTANCES), steps)
        count += len(DISTANCES)
    steps[:, sink] = 0
    first = 1 if causal and weights.shape[1] > 1 else 0
    flat = steps[first:].ravel()
    rows = weights[:, first:].reshape(len(weights), -1)
    return np.stack([np.bincount(flat, row, count) for row in rows.astype(np.float64)])


@dataclass(frozen=True, eq=False)
class Baseline:
    """The baseline of a model: a few numbers for each head, with which a later model is compared.

    tokenizer: a digest of the model's tokens of the built-in texts.
    shares: by (layer, head), the mean attention by distance, (bin,), which sums to one.
    scores: by (layer, head), the pattern scores by name; None if one was not measured.
    """

    info: ModelInfo
    kind: Kind
    tokenizer: str
    shares: Mapping[Head, Floats]
    scores: Mapping[Head, Mapping[str, float | None]]

    @property
    def origin(self) -> str:
        """Return the name of the baseline's model, with seven digits of its revision."""
        return f"{short_name(self.info.name)} {(self.info.revision or '')[:7]}".rstrip()

    def js_divergence(self, other: Baseline) -> dict[Head, float]:
        """Return how far each head's attention by distance is from that of another baseline.

        The value for each (layer, head) is the Jensen–Shannon divergence in bits; NaN if a number
        of either is not finite.
        """
        pairs = {head: (shares, other.shares[head]) for head, shares in self.shares.items()}
        return {
            head: float(js_divergence(*pair)) if np.isfinite(pair).all() else math.nan
            for head, pair in pairs.items()
        }

    def score_change(self, other: Baseline) -> dict[Head, float]:
        """Return the largest change of any pattern score of each (layer, head) between baselines.

        It is NaN for a head without scores, and for one that lost or gained a score. A score that
        only one side knows, of another version of attnviz, is left out.
        """
        changes = {}
        for head, scores in self.scores.items():
            others = other.scores[head]
            pairs = [(scores[name], others[name]) for name in scores if name in others]
            apart = [
                math.nan if a is None or b is None else abs(a - b)
                for a, b in pairs
                if a is not None or b is not None
            ]
            changes[head] = float(np.max(apart)) if apart else math.nan  # of a NaN it is NaN
        return changes


def check_finite(baseline: Baseline) -> None:
    """Raise an error if a head's attention is not finite, so that it cannot be compared.

    The error is a LoadError if parameters of the model are not finite; else a UsageError.
    """
    lost = [
        f"L{layer}H{head}"
        for (layer, head), shares in baseline.shares.items()
        if not np.isfinite(shares).all() or set(baseline.scores[layer, head].values()) <= {None}
    ]
    if lost:
        told = (
            f"no baseline: the attention of {len(lost)} of {len(baseline.shares)} heads "
            f"({lost[0]} first) is not a number, so nothing can be compared with it"
        )
        if broken := broken_words(baseline.info.not_finite):
            raise LoadError(f"{told}: {broken[0]}")
        raise UsageError(f"{told}{baseline.info.overflow_advice}")


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline as JSON; LoadError if that fails, and as ``check_finite``."""
    check_finite(baseline)
    info = model_facts(baseline.info)
    facts = {
        "schema": SCHEMA,
        "model": {name: info[name] for name in _FACTS},
        "kind": baseline.kind,
        "tokenizer": baseline.tokenizer,
        "distances": ["sink", *DISTANCES, "further"],
        "heads": [
            {
                "layer": head[0],
                "head": head[1],
                "by_distance": [round(float(share), _DECIMALS) for share in shares],
                "scores": {
                    name: None if value is None else round(float(value), _DECIMALS)
                    for name, value in baseline.scores[head].items()
                },
            }
            for head, shares in baseline.shares.items()
        ],
    }
    content = io.StringIO()
    write_object(facts, content, ("heads",))
    with whole_file(path) as stream:
        stream.write(content.getvalue().encode("ascii"))


def check_beside(path: Path, rules: Path) -> None:
    """Raise an error unless ``path`` is writable and in the directory of the rules or below.

    rules: the file of rules, which may be a stranger's: neither a name in it nor a link may lead a
    baseline elsewhere.
    """
    folder = os.path.realpath(rules.parent)
    if not Path(os.path.realpath(path)).is_relative_to(folder):
        raise UsageError(
            f"{visible(str(path))!r} does not lie in the directory of {visible(str(rules))!r} or "
            "below it: no baseline is written elsewhere; name one there"
        )
    check_writable(path)


def check_renewable(path: Path, rules: Path) -> None:
    """Raise UsageError if ``path`` is a file other than a baseline, which must not be overwritten.

    rules: the file of rules that names it. Raises what ``check_beside`` raises, too.
    """
    check_beside(path, rules)
    content = read_bytes(path, most=SETTINGS_BYTES) if path.exists() else b""
    if content and b'"attnviz.baseline/' not in content[:_OPENING]:
        raise UsageError(
            f"{visible(str(path))!r} is not a baseline: --update does not overwrite it; name "
            "another file in the rule"
        )


def read_baseline(path: Path, now: Baseline) -> Baseline:
    """Return a saved baseline, checked to be comparable with that of the present model.

    Raises LoadError for a file that cannot be read or is damaged, UsageError for one of another
    schema, or of a model of another architecture, another size or another tokenizer.
    """
    shown = repr(visible(str(path)))
    renew = "renew it with attnviz check --update"
    try:
        data = parse_json(read_bytes(path, name=shown, most=SETTINGS_BYTES), shown)
    except LoadError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        raise LoadError(f"there is no baseline {shown}: write it with --update") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        got = f"the schema {visible(str(schema))[:40]!r}" if schema else "no schema"
        raise UsageError(f"{shown} holds {got}, expected {SCHEMA!r}: {renew}")
    with damaged(shown, renew):
        saved, model = _read(data, now), data["model"]
        ties = {
            "architecture": (model["architecture"], now.info.architecture),
            "number of layers": (model["layers"], now.info.layers),
            "number of heads": (len(saved.shares), len(now.shares)),
            "attention": (saved.kind, now.kind),
            "tokenizer": (saved.tokenizer, now.tokenizer),
        }
    for fact, pair in ties.items():
        if pair[0] != pair[1]:
            was, here = (visible(str(value))[:60] for value in pair)
            raise UsageError(
                f"{shown} is the baseline of another model: its {fact} is {was}, here {here}; "
                f"{renew}"
            )
    return saved


def _read(data: dict[str, Any], now: Baseline) -> Baseline:
    model = data["model"]
    name, dtype = typed(model["name"], str), typed(model["dtype"], str)
    revision = optional(model["revision"], str)
    info = replace(now.info, name=name, dtype=dtype, revision=revision)
    steps = len(next(iter(now.shares.values())))
    shares, scores = dict[Head, Floats](), dict[Head, dict[str, float | None]]()
    for entry in data["heads"]:
        head = typed(entry["layer"], int), typed(entry["head"], int)
        own = shares[head] = np.array(entry["by_distance"], float)
        if own.shape != (steps,) and data["tokenizer"] == now.tokenizer:
            raise ValueError(f"expected {steps} numbers by distance")
        if not (own >= 0).all() or not abs(own.sum() - 1) <= _OFF:
            raise ValueError("expected numbers by distance that sum to one")
        scores[head] = {
            str(name): read_score(name, score) for name, score in entry["scores"].items()
        }
    if len(shares) < len(data["heads"]):
        raise ValueError("a head is listed twice")
    if shares.keys() != now.shares.keys() and len(shares) == len(now.shares):
        raise ValueError("its heads are others")
    return Baseline(info, data["kind"], str(data["tokenizer"]), shares, scores)
