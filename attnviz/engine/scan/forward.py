"""One forward pass of a scan: the final hidden states and what the vocabulary projection reads.

The projection itself runs on no position; it takes almost half of a small model's time, and its
logits over all removals would fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from attnviz.engine.patchable import Passage, Subject
from attnviz.engine.sites import HeadEditor, LostTrackError

__all__ = ["Answer", "replaced_head_input", "run_pass"]


@dataclass(frozen=True)
class Answer:
    """What a pass ended in.

    hidden: final hidden states (row, token, width).
    projected: the vocabulary projection's input (row, token, width), None without a head.
    logits: what the model made of the positions that were projected: all, or none.
    """

    hidden: Tensor
    projected: Tensor | None
    logits: Tensor | None


def run_pass(
    subject: Subject,
    passage: Passage,
    editor: HeadEditor | None,
    *more: Passage,
    project_all: bool = False,
    order: Sequence[int] | None = None,
) -> Answer:
    """Run the borrowed ``subject`` once.

    editor: None runs it plainly, watched by nobody.
    more: other texts of the same length, in rows of their own.
    project_all: let the projection see every position.
    order: in which the sites run, as ``Sites.editing`` takes it.
    """
    seen: dict[str, Tensor] = {}

    def keep_hidden(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen["hidden"] = output if isinstance(output, Tensor) else output[0]

    def shorten(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        seen["projected"] = args[0]
        return None if project_all else (args[0][:1, :0], *args[1:])

    with ExitStack() as hooks:
        hooks.callback(subject.stack.register_forward_hook(keep_hidden).remove)
        if subject.head is not None:
            hooks.callback(subject.head.register_forward_pre_hook(shorten).remove)
        with nullcontext() if editor is None else subject.sites.editing(editor, order):
            logits = subject.run(passage, *more)
    if "hidden" not in seen or seen["hidden"].ndim != 3:
        raise LostTrackError("the final hidden states were not found")
    return Answer(seen["hidden"], seen.get("projected"), logits)


@contextmanager
def replaced_head_input(head: nn.Linear, rows: Tensor) -> Iterator[None]:
    """While this is open, ``head`` projects ``rows`` (row, width) as if they were one text."""

    def replace(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (rows[None].to(args[0].dtype), *args[1:])

    hook = head.register_forward_pre_hook(replace)
    try:
        yield
    finally:
        hook.remove()
