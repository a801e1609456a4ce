"""The callback of a download, driven the way the hub's client drives its progress bar."""

from __future__ import annotations

import pytest

from attnviz.models.download import progress_bar


def test_bytes_add_up() -> None:
    said: list[tuple[str, int, int | None]] = []
    bar = progress_bar("a.bin", lambda *step: said.append(step))
    with bar(total=7, initial=0, desc="other", unit="B") as counting:
        counting.update(3)
        counting.set_postfix_str("fast", refresh=False)
        counting.update(4)
    assert said == [("a.bin", 0, 7), ("a.bin", 3, 7), ("a.bin", 7, 7)]


def test_nobody_has_to_listen() -> None:
    bar = progress_bar("a.bin", None)(total=None)
    bar.update(5)
    assert bar.n == 5


@pytest.mark.parametrize("rolled_back", [True, False])
def test_a_transfer_that_never_ends_is_given_up(rolled_back: bool) -> None:
    # A server that cannot resume: the client starts anew, and older ones do not count back.
    bar = progress_bar("a.bin", None)(total=10)

    def transfer() -> None:
        for _ in range(9):
            bar.update(6)
            if rolled_back:
                bar.update(-6)

    with pytest.raises(ConnectionAbortedError, match="again and again"):
        transfer()
