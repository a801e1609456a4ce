"""What changes do to the answer of a question-answering model: its loss, its divergence, flips."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.engine.answers import likeliest_answer
from attnviz.engine.likely import log_softmax
from attnviz.engine.scan.runner import Comparison


def compared_answers(
    clean: NDArray[np.float64], changed: NDArray[np.float64], label: int | None
) -> Comparison:
    """Compare answers of changed runs with the unchanged run's: ``position`` is start and end.

    clean, changed: logits (token, 2) and (change, token, 2) of the tokens that may be the answer.
    The loss is -ln p of the start and of the end that the unchanged run predicts.
    label: 0 compares the start alone, 1 the end alone, None both.
    """
    some = [0, 1] if label is None else [label]
    before, after = (log_softmax(each.swapaxes(-1, -2)) for each in (clean, changed))
    span = likeliest_answer(before.T)
    wanted = [span.start, span.end]
    loss = -before[[0, 1], wanted]
    flips = after.argmax(-1) != before.argmax(-1)
    return Comparison(
        loss[some],
        (-after[:, [0, 1], wanted] - loss)[:, some],
        (np.exp(before) * (before - after)).sum(-1).clip(min=0)[:, some],
        flips[:, some],
    )
