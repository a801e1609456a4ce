"""What single heads do to what follows them: to later heads, and to the logits over one token.

Direct path patching: what later heads' queries, keys and values receive directly from one head.
Between two texts, clean and corrupt, a head's output differs, and so do the queries of later heads.
Along the residual stream alone, with the norms scaled as in the corrupt run, a query is linear in
everything written before it. The sender's part in its difference is Δq_s, and

    share = Σ_t ⟨Δq_s(t), Δq(t)⟩ / Σ_t ‖Δq(t)‖²

adds up to 1 over everything that writes, except for the change of the norms. Wang et al. 2022,
"Interpretability in the Wild", section 3.1 and Goldowsky-Dill et al. 2023, "Localizing Model
Behavior with Path Patching". Shares are those patches to first order, without a pass for each pair.
In NumPy two plain passes record each norm's input, each head's output and what each feed-forward
block added. Then the difference of the two runs is followed along the residual stream of the
corrupt run, together with what single heads wrote: each norm is a linear map there, and so is each
projection.

OV circuits: over a text of one token attention sees only that token, so a head's output is what its
value and output projections make of it, in any model: no weight is sliced. Its effect on the
logits, through norms scaled as in this run, is its OV circuit applied to that token (Elhage et al.
2021, "A Mathematical Framework for Transformer Circuits"). How often a head copies is the copy
score of Wang et al., section 3.1, over random tokens instead of names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnviz.attention.functional import Array, Floats, merge_heads, namespace, project
from attnviz.attention.numpy_stack import NumpyStack
from attnviz.engine.attribution.scores_on_numpy import RecordedRun
from attnviz.engine.backend import NumpyBackend, backend_of
from attnviz.engine.patching import ATTENDED, PathEffects, PathRead, What
from attnviz.errors import UsageError
from attnviz.models.model import Model
from attnviz.records import HeadKey, Input, Kind, Tokens


def path_effects(
    model: Model, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
) -> tuple[PathEffects, ...]:
    """Return the direct effects of some heads on later heads, from one pass over each of two texts.

    clean, corrupt: the texts, whose runs are compared. senders: the heads, one result for each.
    Raises UsageError for texts of different length or a head that does not exist, UnsupportedError
    if the model does not show its queries, or if the outputs of its heads cannot be traced to them.
    """
    lengths = [(len(given.ids), len(given.target_ids or ())) for given in (clean, corrupt)]
    if lengths[0] != lengths[1]:
        raise UsageError(
            f"the two texts have {len(clean.predicted)} and {len(corrupt.predicted)} tokens: "
            "expected the same number in both"
        )
    kind: Kind = "decoder" if "decoder" in model.kinds else model.kinds[0]
    with np.errstate(over="ignore", invalid="ignore"):
        backend = backend_of(model)
        reads: Sequence[PathRead]
        if (stack := backend.stack) is not None:
            reads = numpy_path_reads(stack, clean.text, corrupt.text, senders)
        else:
            from attnviz.engine.attribution.followed_run import torch_path_reads

            opened = backend.open_patchable(kind, clean)
            reads = torch_path_reads(opened, clean, corrupt, senders)
        return tuple(_effects(sender, reads) for sender in senders)


def _effects(sender: HeadKey, reads: Sequence[PathRead]) -> PathEffects:
    shares: dict[What, dict[HeadKey, NDArray[np.floating]]] = {}
    explained: dict[What, dict[HeadKey, float]] = {}
    moved: dict[What, dict[HeadKey, float]] = {}
    for read in reads:
        if sender not in read.alone:
            continue
        square = np.square(read.difference).sum((0, 2))
        differs = np.flatnonzero(square)
        along = (read.alone[sender] * read.difference).sum(-1)  # (token, head)
        whole = (read.whole * read.difference).sum((0, 2))
        clean = np.square(read.clean).sum((0, 2))
        for head in differs.tolist():
            key = read.kind, read.layer, head
            shares.setdefault(read.sort, {})[key] = along[:, head] / square[head]
            explained.setdefault(read.sort, {})[key] = float(whole[head] / square[head])
            moved.setdefault(read.sort, {})[key] = float(np.sqrt(square[head] / clean[head]))
    return PathEffects(sender, shares, explained, moved)


# In NumPy ---------------------------------------------------------------------------------------


def numpy_path_reads(
    stack: NumpyStack, clean: Tokens, corrupt: Tokens, senders: Sequence[HeadKey]
) -> list[PathRead]:
    """Return how queries, keys and values differ in two texts, by layer, in all and by sender."""
    for kind, layer, head in senders:
        known = 0 <= layer < stack.shape.layers and 0 <= head < stack.shape.heads
        if kind != "self" or not known:
            raise UsageError(f"no {kind} head {head} in layer {layer} that writes to a logit")
    runs = RecordedRun(stack, clean.ids), RecordedRun(stack, corrupt.ids)
    stack.finite = stack.finite and all(run.finite for run in runs)
    return list(_reads(*runs, senders))


def _reads(
    clean: RecordedRun, corrupt: RecordedRun, senders: Sequence[HeadKey]
) -> Iterator[PathRead]:
    """Yield for each layer the queries, keys and values of both runs, and their differences."""
    after = corrupt.shape.order == "after"
    if (name := "embedding_norm") in corrupt.given:
        embedded = corrupt.embedding_of(clean.given[name] - corrupt.given[name])
    else:
        embedded = clean.embedded - corrupt.embedded
    change = np.zeros((1 + len(senders), *embedded.shape), embedded.dtype)
    change[0] = embedded
    for layer in range(corrupt.shape.layers):
        name, attention = f"layers.{layer}", corrupt.attention(layer)
        entering = change if after else corrupt.moved(f"{name}.attention_norm", change)
        before = {key: row for row, key in enumerate(senders, 1) if key[1] < layer}
        for sort, own, other, moved in zip(
            ATTENDED,
            attention.inputs(clean.reads[layer]),
            attention.inputs(corrupt.reads[layer]),
            attention.moved_inputs(corrupt.reads[layer], entering),
            strict=True,
        ):
            vectors, parts = _by_token(own), _by_token(moved)
            yield PathRead(
                kind="self",
                layer=layer,
                sort=sort,
                clean=vectors,
                difference=vectors - _by_token(other),
                whole=parts[0],
                alone={key: parts[row] for key, row in before.items()},
            )
        written = clean.outputs[layer] - corrupt.outputs[layer]
        put_out = np.zeros((len(change), *written.shape), written.dtype)
        put_out[0] = written
        for row, (_, at, head) in enumerate(senders, 1):
            if at == layer:
                put_out[row, head] = written[head]
        change = change + project(merge_heads(put_out), attention.output_weight)
        if after:
            change = corrupt.moved(f"{name}.attention_norm", change)
        change[0] += clean.fed[layer] - corrupt.fed[layer]
        if after:
            change = corrupt.moved(f"{name}.feed_norm", change)


def _by_token(heads: Floats) -> NDArray[np.float64]:
    return np.moveaxis(heads, -3, -2).astype(np.float64)


# Over texts of one token --------------------------------------------------------------------------


COPIED = 5
"""A token counts as copied if it is among this many tokens that a head raises most."""

TRIED = 256
"""The most tokens that are tried; a larger vocabulary is sampled."""


class OneTokenWrite(NamedTuple):
    """How much a head raises the logit of token ``written`` if the text is the one token ``read``.

    read, written: token ids. logits: the change minus the mean change over the whole vocabulary.
    """

    read: int
    written: int
    logits: float


class OneTokenWrites(NamedTuple):
    """The effect of one head on the logits over many texts of one token each.

    tokens: how many tokens were tried. copying: the share of them, in [0, 1], that are among the
        ``COPIED`` tokens whose logits the head raises most. chance: that share in a random order.
    strongest: for some texts the token whose logit is raised most, the largest change first.
    """

    tokens: int
    copying: float
    chance: float
    strongest: tuple[OneTokenWrite, ...]


def tried_tokens(model: Model, tokens: int = TRIED, seed: int = 0) -> list[int]:
    """Return the plain tokens of a vocabulary or a sample; UsageError for other models."""
    if tokens < 1:
        raise UsageError(f"expected at least 1 token to try, got {tokens}")
    if model.kinds != ("self",):
        raise UsageError(
            f"{model.info.name!r} is not a single-stack language model: whether its heads copy "
            "cannot be told"
        )
    plain = model.vocabulary().plain
    if len(plain) > tokens:
        plain = np.random.default_rng(seed).choice(plain, tokens, replace=False)
    return plain.tolist()


def one_token_writes(
    model: Model, heads: Collection[HeadKey], *, tokens: int = TRIED, seed: int = 0, most: int = 8
) -> dict[HeadKey, OneTokenWrites]:
    """Return the effect of each of the heads on the logits over texts of one token.

    tokens: the largest number of tokens to try. seed: of the random sample, if there are more.
    most: the length of ``strongest``. Raises UsageError for a model that does not predict the next
    token, UnsupportedError if the outputs of its heads cannot be traced to the logits.
    """
    tried, chance = tried_tokens(model, tokens, seed), 0.0
    copied: dict[HeadKey, list[bool]] = {}
    pairs: dict[HeadKey, list[OneTokenWrite]] = {}
    for head, batch, logits in _logits(model, tried, heads):
        xp = namespace(logits)
        own = xp.take_along_axis(logits, xp.asarray(batch, device=logits.device)[:, None], axis=1)
        above = xp.sum(xp.astype(logits >= own, xp.int32), axis=1) - 1
        best, mean = logits.argmax(1)[:, None], xp.sum(logits, axis=1, dtype=xp.float64)
        raised = xp.take_along_axis(logits, best, axis=1)[:, 0] - mean / logits.shape[1]
        known = (xp.astype(counts, xp.float64) for counts in (above, best[:, 0]))
        above, words, values = xp.stack([*known, raised]).tolist()  # a GPU is asked once
        copied.setdefault(head, []).extend(number < COPIED for number in above)
        pairs.setdefault(head, []).extend(
            OneTokenWrite(read, int(word), value)
            for read, word, value in zip(batch, words, values, strict=True)
        )
        chance = COPIED / logits.shape[1]
    return {
        head: OneTokenWrites(
            tokens=len(tried),
            copying=float(np.mean(copied[head])),
            chance=chance,
            strongest=tuple(sorted(pairs[head], key=lambda pair: -pair.logits)[:most]),
        )
        for head in pairs
    }


def _logits(
    model: Model, tokens: Sequence[int], heads: Collection[HeadKey]
) -> Iterator[tuple[HeadKey, Sequence[int], Array]]:
    """Yield (head, token ids, logits (token, vocab) that it alone adds) by batch of texts."""
    backend, given = backend_of(model), Input.of_ids(tokens[:1])
    if isinstance(backend, NumpyBackend):
        from attnviz.engine.attribution.on_numpy import numpy_one_token_logits

        backend.open_attributor(given)  # refuses what is no sum
        return numpy_one_token_logits(backend.stack, tokens, heads)
    from attnviz.engine.attribution.lens_on_torch import torch_one_token_logits

    return torch_one_token_logits(backend.open_patchable("self", given), model, tokens, heads)
