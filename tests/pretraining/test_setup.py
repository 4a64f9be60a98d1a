"""How a run hears that it should end."""

from __future__ import annotations

import os
import signal

import pytest

from electra.runs.signals import interrupts


def test_what_one_of_several_runs_hears_is_meant_for_all():
    before = signal.getsignal(signal.SIGTERM)
    with interrupts() as outer:
        with interrupts() as first:
            os.kill(os.getpid(), signal.SIGTERM)
            assert first()
        with interrupts() as second:
            assert second()
        assert outer()
    assert signal.getsignal(signal.SIGTERM) is before
    with interrupts() as later:
        assert not later()


def test_a_second_ctrl_c_ends_at_once():
    with interrupts() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
