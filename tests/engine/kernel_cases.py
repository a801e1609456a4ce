"""Random attention whose sums are compared with those over whole matrices in float64."""

import numpy as np
import torch

from attnviz.measures.reduced import Equals

MASKS = ("causal", "full", "window", "prefix", "chunk", "random")
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def ranges_of(mask, queries, keys, draw):
    """The first key that each query sees, and the one after the last."""
    own = np.arange(queries)
    until = np.minimum(own + 1, keys)
    first = np.zeros(queries, int)
    if mask == "full":
        return first, np.full(queries, keys)
    if mask == "window":
        return np.minimum(np.maximum(own - queries // 5, 0), keys - 1), until
    if mask == "prefix":
        return first, np.minimum(np.maximum(own + 1, queries // 3), keys)
    if mask == "chunk":
        return np.minimum(own // 9 * 9, keys - 1), until
    if mask == "random":
        first = draw.integers(0, keys, queries)
        return first, np.minimum(first + draw.integers(1, keys + 1, queries), keys)
    return first, until


def sums_of(weights, columns, bucket, orders=None):
    """What ``Reduced`` has, from whole matrices. weights: (head, query, key), in float64."""
    heads, queries, keys = weights.shape
    own, at = np.arange(queries)[:, None], np.arange(keys)
    found = {
        "mixed": weights @ columns,
        "total": weights.sum(-1),
        "entropy": -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1),
        "largest": weights.max(-1),
        "signed": (weights * (at - own)).sum(-1),
        "far": (weights * abs(at - own)).sum(-1),
    }
    if bucket is not None:
        by_rows = np.add.reduceat(weights, np.arange(0, queries, bucket), 1)
        found["pooled"] = np.add.reduceat(by_rows, np.arange(0, keys, bucket), 2)
    if orders is not None:
        found["equal"] = np.zeros((heads, 2, len(orders), queries))
        for after in range(2):
            for order, tokens in enumerate(orders):
                same = tokens[:, None] == np.roll(tokens, after)
                same &= (at >= after) & (at < own)
                found["equal"][:, after, order] = (weights * same).sum(-1)
    return found


def errors(
    make,
    mask="causal",
    dtype="float32",
    *,
    queries=37,
    keys=None,
    heads=2,
    shared=1,
    dim=16,
    bucket=16,
    sink=False,
    cap=None,
    bias=False,
    strength=3.0,
    seed=0,
    device="cpu",
):
    """The sums of the layer that ``make`` makes, and by name the largest error of all it says.

    An error is a share of the largest number of its kind, or of one.
    """
    draw = np.random.default_rng(seed)
    keys = queries if keys is None else keys
    first, past = ranges_of(mask, queries, keys, draw)

    def numbers(*shape):
        return torch.from_numpy(draw.standard_normal(shape)).to(device)

    query = (strength * numbers(heads, queries, dim)).to(TYPES[dtype])
    key = numbers(shared, keys, dim).to(TYPES[dtype])
    sinks, biases = numbers(heads) if sink else None, numbers(heads, keys) if bias else None
    scale, at = dim**-0.5, np.arange(keys)
    layer = make(query, key, scale, ranges=(first, past), sink=sinks, cap=cap, bias=biases)

    scores = query.double() @ key.double().repeat_interleave(heads // shared, 0).mT * scale
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores.cpu().numpy() + (0 if biases is None else biases.cpu().numpy()[:, None])
    raised = np.where((at >= first[:, None]) & (at < past[:, None]), np.exp(scores), 0)
    every = raised.sum(-1, keepdims=True)
    edge = 0 if sinks is None else sinks.exp().cpu().numpy()[:, None, None]
    weights = raised / (every + edge)

    columns = np.stack([draw.random(keys) < 0.1, draw.random(keys) < 0.5, at], 1).astype(float)
    columns[:, 2] = draw.standard_normal(keys)
    ids = np.stack([draw.integers(0, 9, queries), draw.integers(0, 3, queries)])
    equals = Equals(ids, first, past) if keys == queries else None
    far = mask not in ("causal", "window", "chunk")
    found = layer.reduced(columns, bucket, equals, far=far)

    asked = np.clip(draw.integers(0, keys, queries), first, past - 1)
    wanted = sums_of(weights, columns, bucket, None if equals is None else ids)
    wanted["single"] = np.take_along_axis(weights, asked[None, :, None], 2)[..., 0]
    wanted["rows"] = weights  # from blocks
    if not far:
        del wanted["far"]
    given = {**found._asdict(), "single": layer.single(asked), "rows": layer.rows(0, queries)}
    apart = {}
    for name, expected in wanted.items():
        ours = torch.as_tensor(given[name]).cpu().numpy()
        assert ours.shape == expected.shape, name
        apart[name] = np.abs(ours - expected).max() / max(1, np.abs(expected).max())
    hidden, apart["strongest"] = at == 0, 0.0
    shown = np.where(hidden, 0, weights)
    for pairs, of_head in zip(layer.strongest(4, hidden), shown, strict=True):
        truth = np.sort(of_head[of_head > 0])[::-1][:4]
        assert len(pairs) == len(truth)
        for (weight, row, column), most in zip(pairs, truth, strict=True):
            error = max(abs(of_head[row, column] - weight), abs(weight - most))
            apart["strongest"] = max(apart["strongest"], error)
    return found, apart
