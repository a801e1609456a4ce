"""A model of the same architecture with fewer heads, if its config can describe it.

It is built without memory for its tensors, which shows their shapes and how many parameters they
have; only its outputs show whether it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import LoadError
from attnviz.inspect.prune.plan import RELATIVE
from attnviz.models.architecture import resized
from attnviz.models.cut_tensors import OutputProjection, UncutError, cut_tensors
from attnviz.models.head_plan import CutPlan, Removed, cut_plans
from attnviz.models.huggingface import public_class
from attnviz.models.third_party import third_party
from attnviz.records import ModelInfo

_FIELDS = {"sliding_window": None}
"""Fields of the relative's config: its attention reaches as far as the model's own."""


@dataclass(frozen=True, eq=False)
class Smaller:
    """One way of storing a model with fewer heads.

    shell: the smaller model, without memory for its tensors. tensors: the values for them.
    plan: which heads it has; None for all, some of them zero.
    """

    shell: Any
    plan: CutPlan | None
    tensors: dict[str, Tensor]


def smaller_models(
    model: Any,
    state: Mapping[str, Tensor],
    removed: Removed,
    projections: Mapping[int, OutputProjection],
    info: ModelInfo,
) -> Iterator[Smaller]:
    """Yield the ways of storing the pruned model with fewer parameters, the smallest first.

    state: the tensors of ``model``, in which the removed heads are already zero. removed: by layer,
    the numbers of these heads. projections: by layer, where heads are joined. info: how many heads
    of which width the model has.
    """
    for plan in cut_plans(removed, projections, info.heads, info.kv_heads):
        for config, model_class in _descriptions(model, plan, info.head_dim):
            shell = _tried(partial(_empty, model_class, config, model))
            if shell is None or count_parameters(shell) >= count_parameters(model):
                continue
            shapes = {name: tensor.shape for name, tensor in shell.state_dict().items()}
            seen: list[dict[str, Tensor]] = []
            for fused in (False, True):
                try:
                    tensors = cut_tensors(state, shapes, plan, info, projections, fused=fused)
                except UncutError:
                    continue
                if not any(_equal(tensors, other) for other in seen):
                    seen.append(tensors)
                    yield Smaller(shell, plan, tensors)


def shell_of(model: Any) -> Any:
    """Return a copy of a model without memory for its tensors."""
    with third_party(f"{type(model).__name__} cannot be built again"):
        return _empty(type(model), deepcopy(model.config), model)


def count_parameters(model: Any) -> int:
    """Return how many parameters a model has, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _descriptions(model: Any, plan: CutPlan, head_dim: int) -> Iterator[tuple[Any, Any]]:
    """Yield configs that can describe ``plan``, each with the class of the model to load."""
    own = type(model)
    config = _resized(model.config, plan, head_dim)
    if config is not None:
        yield config, own
        return
    family, other = RELATIVE
    if type(model.config).__name__ != f"{family}Config":
        return
    config_class = public_class(f"{other}Config")
    model_class = public_class(own.__name__.replace(family, other))
    if config_class is None or model_class is None:
        return
    known = model.config.to_dict()
    for name in ("model_type", "architectures"):
        known.pop(name, None)
    config = _resized(config_class.from_dict(known | _FIELDS), plan, head_dim)
    if config is not None:
        yield config, model_class


def _resized(config: Any, plan: CutPlan, head_dim: int) -> Any:
    return _tried(lambda: resized(config, plan.heads, plan.kv_heads, head_dim))


def _tried(make: Callable[[], Any]) -> Any:
    """Return the result of ``make``, a call into transformers; None if it fails."""
    try:
        with third_party("it cannot be made smaller"):
            return make()
    except LoadError:
        return None


def _empty(model_class: Any, config: Any, model: Any) -> Any:
    with torch.device("meta"):
        shell = model_class(config).to(model.dtype)
    if getattr(model, "generation_config", None) is not None:
        shell.generation_config = deepcopy(model.generation_config)
    return shell.eval()


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)
