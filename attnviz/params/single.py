"""The sheet of one design."""

from __future__ import annotations

from attnviz.params.accounts.account import CostReport
from attnviz.params.fit import fit_words
from attnviz.params.metrics import Case
from attnviz.params.numbers import bytes_text, count, share
from attnviz.params.parameters import parameter_grid
from attnviz.params.per_layer import layer_grid
from attnviz.params.running import running
from attnviz.params.sheet import Sheet
from attnviz.params.specs import AttentionSpec, ExpertsSpec
from attnviz.params.subject import attention_only, main_attention, main_stack
from attnviz.params.title import origin_lines, title_words

__all__ = ["cost_sheet", "readings"]


def readings(cost: CostReport) -> list[str]:
    """What is worth knowing about this design."""
    spec = main_attention(cost).spec
    parts = any(
        attention.spec.parts
        for group in main_stack(cost).groups
        for attention in group.layer.attentions
    )
    sentences = [*_width_sentences(spec, parts), *_sharing(cost, spec)]
    if not attention_only(cost):
        sentences += [*_experts(cost), *_tied(cost)]
    return sentences


def _width_sentences(spec: AttentionSpec, parts: bool) -> list[str]:
    """Whether the count depends on the number of heads; ``parts``: there is more than matrices."""
    if spec.latent is not None or spec.linear:
        return []
    inner = spec.heads * spec.head_dim
    product = f"{count(spec.heads)} × {count(spec.head_dim)} = {count(inner)}"
    if inner == spec.d_model and spec.kv_heads == spec.heads:
        other = _other_cut(spec)
        counted = "projections do" if parts else "count does"
        return [
            f"The {counted} not depend on the number of heads: heads × head_dim = "
            f"{product} = d_model{other}. The width of a head and the number of maps do."
        ]
    if inner == spec.d_model:
        return [
            "Query and output do not depend on the number of heads: heads × head_dim = "
            f"{product} = d_model. Key and value do: they have "
            f"{count(spec.kv_heads)} × {count(spec.head_dim)} = "
            f"{count(spec.kv_heads * spec.head_dim)} columns."
        ]
    return [
        f"The count depends on the number of heads: heads × head_dim = {product} is not d_model "
        f"= {count(spec.d_model)}."
    ]


def _other_cut(spec: AttentionSpec) -> str:
    """Another number of heads with the same count, where there is a simple one."""
    if spec.head_dim % 2 or spec.heads < 1:
        return ""
    more, narrower = 2 * spec.heads, spec.head_dim // 2
    return f", and {count(more)} heads of {count(narrower)} make the same matrices"


def _sharing(cost: CostReport, spec: AttentionSpec) -> list[str]:
    """What shared or squeezed keys and values save in the cache."""
    kept = cost.cache.bytes_per_token
    if not kept:
        return []
    if spec.latent is not None:
        held = spec.latent.kv_lora + spec.latent.rope_dim
        full = spec.heads * (spec.head_dim + spec.value_dim)
        return [
            f"A token is kept as one vector of {count(held)} numbers a layer instead of "
            f"{count(full)} for all heads: {share(full - held, full)} of the cache is saved."
        ]
    if spec.kv_heads == spec.heads:
        return []
    group = spec.heads // spec.kv_heads
    saved = share(spec.heads - spec.kv_heads, spec.heads)
    return [
        f"{count(group)} query heads share one key/value head: the cache keeps "
        f"{count(spec.kv_heads)} heads instead of {count(spec.heads)}, {saved} less."
    ]


def _experts(cost: CostReport) -> list[str]:
    parameters = cost.parameters
    mixtures = [
        group.layer.spec.feed_forward
        for stack in parameters.stacks
        for group in stack.groups
        if isinstance(group.layer.spec.feed_forward, ExpertsSpec)
    ]
    if not mixtures:
        return []
    experts = mixtures[0]
    assert isinstance(experts, ExpertsSpec)
    shared = " and the shared one" if experts.shared is not None else ""
    return [
        f"A token passes through {count(experts.active)} of {count(experts.experts)} experts"
        f"{shared} in a layer: {count(parameters.active)} of {count(parameters.total)} parameters "
        f"({share(parameters.active, parameters.total)}) work on it, but all take up memory."
    ]


def _tied(cost: CostReport) -> list[str]:
    heads = [stack.head for stack in cost.spec.stacks if stack.head is not None]
    if not any(head.tied for head in heads):
        return []
    tables = sum(head.inputs * head.outputs for head in heads if head.tied)
    size = bytes_text(-(-tables * cost.bits // 8))
    return [
        "The head is the token table itself, counted once; untied it would add "
        f"{count(tables)} parameters ({size} in {cost.dtype})."
    ]


def cost_sheet(case: Case, *, formulas: bool = False, layers: bool = False) -> Sheet:
    """Parameters, cost of running, what fits, and what it means; of a case that was counted.

    formulas: with the arithmetic of each line. layers: with every kind of layer.
    """
    cost = case.cost
    assert cost is not None
    grids = [parameter_grid(cost, formulas)]
    if layers:
        grids.append(layer_grid(cost))
    sentences = readings(cost)
    if case.fit is not None:
        sentences.insert(0, fit_words(case.fit, cost))
    revision = (f"revision: {case.revision}",) if case.revision else ()
    return Sheet(
        title_words(cost),
        (*revision, *origin_lines(cost)),
        tuple(grids),
        running(cost, formulas),
        tuple(sentences),
    )
