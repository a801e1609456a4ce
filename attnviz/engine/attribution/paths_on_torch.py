"""Direct path patching of a running torch model, whose pass is linear in all that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from attnviz.engine.attribution.followed_run import calls_of, lost
from attnviz.engine.attribution.own_scores import wide_array
from attnviz.engine.attribution.residual_pass import Jacobian, Leaf, ResidualPass, head_alone
from attnviz.engine.patchable import PatchableModel, Untouched, run_pass
from attnviz.engine.patching import PathRead
from attnviz.engine.replacing import LostTrackError
from attnviz.records import HeadKey, Input


def torch_path_reads(
    model: PatchableModel, clean: Input, corrupt: Input, senders: Sequence[HeadKey]
) -> list[PathRead]:
    """Return how queries, keys and values differ in two texts, by layer, in all and by sender."""
    calls = calls_of(model, senders)
    with model.hook_points.borrowed():
        pair = _CleanAndCorrupt(model, _follow(model, clean), _follow(model, corrupt))
    return pair.reads(calls)


def _follow(model: PatchableModel, given: Input) -> ResidualPass:
    flow = ResidualPass(model, Untouched(), reading=True)
    try:
        with flow.following():
            run_pass(model, given, None)
    except LostTrackError as error:
        raise lost(model) from error
    return flow


class _CleanAndCorrupt:
    """The tracked passes over the clean and the corrupt text, whose inputs of heads are compared.

    The queries, keys and values q of the corrupt pass are linear in the outputs z of all parts: q =
    J z.
    """

    def __init__(self, model: PatchableModel, clean: ResidualPass, corrupt: ResidualPass) -> None:
        self._model, self._clean = model, clean
        self._leaves = corrupt.leaves
        if list(map(_kind_of, clean.leaves)) != list(map(_kind_of, corrupt.leaves)):
            raise lost(model)  # the two runs have different parts
        self._change = [
            (one.value - other.value).detach()
            for one, other in zip(clean.leaves, corrupt.leaves, strict=True)
        ]
        self._read = {place: q for place, q in corrupt.read.items() if q.requires_grad}
        leaves = [leaf.value for leaf in self._leaves]
        self._jacobian = Jacobian(list(self._read.values()), leaves)

    def reads(self, calls: Mapping[HeadKey, int]) -> list[PathRead]:
        """Return every layer's queries, keys and values, and how heads in ``calls`` change them."""
        whole = self._jacobian.moved(dict(enumerate(self._change)))
        alone = {sender: self._alone(sender[2], call) for sender, call in calls.items()}
        found = []
        for at, ((number, what), corrupt) in enumerate(self._read.items()):
            moved = whole[at]
            if moved is None:
                continue
            point = self._model.hook_points.found[number]
            clean = wide_array(self._clean.read[number, what][0])
            parts = {
                sender: wide_array(changed[0])
                for sender, part in alone.items()
                if (changed := part[at]) is not None
            }
            found.append(
                PathRead(
                    kind=point.kind,
                    layer=point.layer,
                    what=what,
                    clean=clean,
                    difference=clean - wide_array(corrupt[0]),
                    whole=wide_array(moved[0]),
                    alone=parts,
                )
            )
        return found

    def _alone(self, head: int, call: int) -> Sequence[Tensor | None]:
        """Return the change of all queries, keys and values if only one head's output changes.

        None stands for a tensor that does not depend on the head.
        """
        at = next(at for at, leaf in enumerate(self._leaves) if leaf.point == call)
        return self._jacobian.moved({at: head_alone(self._change[at], head)})


def _kind_of(leaf: Leaf) -> tuple[object, ...]:
    return leaf.kind, leaf.layer, leaf.point, leaf.value.shape
