"""Signals during work that must not end in the middle."""

from __future__ import annotations

import signal

import pytest

from attnviz.cli.terminal import as_interrupt


def test_a_request_to_end_interrupts_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
