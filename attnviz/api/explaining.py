"""The functions that explain why a model attends as it does; each has the name of its command."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attnviz.api.opening import in_own_modes, open_given
from attnviz.options import spelled_heads
from attnviz.texts import texts_of

__all__ = ["link"]

if TYPE_CHECKING:
    from attnviz.api.opening import AnyModel
    from attnviz.inspect.link.records import LinkReport
    from attnviz.records import Kind


@in_own_modes
def link(
    model: AnyModel,
    prompts: str | Iterable[str],
    *,
    tokenizer: Any = None,
    head: str | int | tuple[int, int] | None = None,
    query: str | int | None = None,
    key: str | int | None = None,
    than: str | int | None = None,
    controls: int | None = None,
    kind: Kind | None = None,
    target: str | None = None,
    truncate: bool = False,
    no_known_labels: bool = False,
    index_base: int = 0,
    seed: int = 0,
) -> LinkReport:
    """Split a head's attention to one key exactly by who wrote the query and who wrote the key.

    model, tokenizer: see ``capture``. prompts: one, or several for means with intervals.
    head: such as ``"L1H2"`` or ``(1, 2)``. query, key, than: the token that attends, the one that
        is attended to, and a key to compare it with, each a word or an index. controls: the number
        of changed prompts, with other words around query and key.
    The other options are those of ``attnviz link``; see ``LinkRequest``, which has the defaults.

    Raises UsageError (also a ValueError) for options, heads or prompts that do not fit, LoadError
    for a model that cannot be read, UnsupportedError if the parts do not give its own weights.
    """
    given = locals()
    from attnviz.inspect.link import link as question
    from attnviz.inspect.link.request import LinkRequest
    from attnviz.models.resolve import LoadOptions

    typed = {name: given[name] for name in ("query", "key", "than")}
    given |= {name: None if value is None else str(value) for name, value in typed.items()}
    given["head"] = spelled_heads(head)[0] if head is not None else None
    request = LinkRequest.of(given)
    read, source = question.read_prompts(request, texts=texts_of(prompts))
    loaded = open_given(
        model, tokenizer, lambda name: question.open_model(name, LoadOptions(), read, request)
    )
    report = question.link(loaded, read, request, source=source)
    report.require_tally()
    return report
