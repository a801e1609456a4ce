"""The sheet of one design."""

from __future__ import annotations

from attnviz.params.accounts.account import Account
from attnviz.params.fit import fit_words
from attnviz.params.metrics import Case
from attnviz.params.numbers import bytes_text, count, share
from attnviz.params.parameters import parameter_grid
from attnviz.params.per_layer import layer_grid
from attnviz.params.running import running
from attnviz.params.sheet import Sheet
from attnviz.params.specs import AttentionDesign, ExpertsDesign
from attnviz.params.subject import attention_only, main_attention, main_stack
from attnviz.params.title import origin_lines, title_words

__all__ = ["account_sheet", "readings"]


def readings(account: Account) -> list[str]:
    """What is worth knowing about this design."""
    design = main_attention(account).design
    parts = any(
        attention.design.parts
        for group in main_stack(account).groups
        for attention in group.layer.attentions
    )
    sentences = [*_width_sentences(design, parts), *_sharing(account, design)]
    if not attention_only(account):
        sentences += [*_experts(account), *_tied(account)]
    return sentences


def _width_sentences(design: AttentionDesign, parts: bool) -> list[str]:
    """Whether the count depends on the number of heads; ``parts``: there is more than matrices."""
    if design.latent is not None or design.linear:
        return []
    inner = design.heads * design.head_dim
    product = f"{count(design.heads)} × {count(design.head_dim)} = {count(inner)}"
    if inner == design.d_model and design.kv_heads == design.heads:
        other = _other_cut(design)
        counted = "projections do" if parts else "count does"
        return [
            f"The {counted} not depend on the number of heads: heads × head_dim = "
            f"{product} = d_model{other}. The width of a head and the number of maps do."
        ]
    if inner == design.d_model:
        return [
            "Query and output do not depend on the number of heads: heads × head_dim = "
            f"{product} = d_model. Key and value do: they have "
            f"{count(design.kv_heads)} × {count(design.head_dim)} = "
            f"{count(design.kv_heads * design.head_dim)} columns."
        ]
    return [
        f"The count depends on the number of heads: heads × head_dim = {product} is not d_model "
        f"= {count(design.d_model)}."
    ]


def _other_cut(design: AttentionDesign) -> str:
    """Another number of heads with the same count, where there is a simple one."""
    if design.head_dim % 2 or design.heads < 1:
        return ""
    more, narrower = 2 * design.heads, design.head_dim // 2
    return f", and {count(more)} heads of {count(narrower)} make the same matrices"


def _sharing(account: Account, design: AttentionDesign) -> list[str]:
    """What shared or squeezed keys and values save in the cache."""
    kept = account.cache.bytes_per_token
    if not kept:
        return []
    if design.latent is not None:
        held = design.latent.kv_lora + design.latent.rope_dim
        full = design.heads * (design.head_dim + design.value_dim)
        return [
            f"A token is kept as one vector of {count(held)} numbers a layer instead of "
            f"{count(full)} for all heads: {share(full - held, full)} of the cache is saved."
        ]
    if design.kv_heads == design.heads:
        return []
    group = design.heads // design.kv_heads
    saved = share(design.heads - design.kv_heads, design.heads)
    return [
        f"{count(group)} query heads share one key/value head: the cache keeps "
        f"{count(design.kv_heads)} heads instead of {count(design.heads)}, {saved} less."
    ]


def _experts(account: Account) -> list[str]:
    parameters = account.parameters
    mixtures = [
        group.layer.design.feed_forward
        for stack in parameters.stacks
        for group in stack.groups
        if isinstance(group.layer.design.feed_forward, ExpertsDesign)
    ]
    if not mixtures:
        return []
    experts = mixtures[0]
    assert isinstance(experts, ExpertsDesign)
    shared = " and the shared one" if experts.shared is not None else ""
    return [
        f"A token passes through {count(experts.active)} of {count(experts.experts)} experts"
        f"{shared} in a layer: {count(parameters.active)} of {count(parameters.total)} parameters "
        f"({share(parameters.active, parameters.total)}) work on it, but all take up memory."
    ]


def _tied(account: Account) -> list[str]:
    heads = [stack.head for stack in account.design.stacks if stack.head is not None]
    if not any(head.tied for head in heads):
        return []
    tables = sum(head.inputs * head.outputs for head in heads if head.tied)
    size = bytes_text(-(-tables * account.bits // 8))
    return [
        "The head is the token table itself, counted once; untied it would add "
        f"{count(tables)} parameters ({size} in {account.dtype})."
    ]


def account_sheet(case: Case, *, formulas: bool = False, layers: bool = False) -> Sheet:
    """Parameters, cost of running, what fits, and what it means; of a case that was counted.

    formulas: with the arithmetic of each line. layers: with every kind of layer.
    """
    account = case.account
    assert account is not None
    grids = [parameter_grid(account, formulas)]
    if layers:
        grids.append(layer_grid(account))
    sentences = readings(account)
    if case.fit is not None:
        sentences.insert(0, fit_words(case.fit, account))
    revision = (f"revision: {case.revision}",) if case.revision else ()
    return Sheet(
        title_words(account),
        (*revision, *origin_lines(account)),
        tuple(grids),
        running(account, formulas),
        tuple(sentences),
    )
