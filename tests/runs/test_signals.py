"""Signals that stop a run."""

from __future__ import annotations

import os
import signal

import pytest

from electra.runs.signals import stop_signals


def test_a_signal_to_one_of_several_nested_runs_stops_all():
    before = signal.getsignal(signal.SIGTERM)
    with stop_signals() as outer:
        with stop_signals() as first:
            os.kill(os.getpid(), signal.SIGTERM)
            assert first()
        with stop_signals() as second:
            assert second()
        assert outer()
    assert signal.getsignal(signal.SIGTERM) is before
    with stop_signals() as later:
        assert not later()


def test_a_second_ctrl_c_raises_keyboard_interrupt():
    with stop_signals() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_terminal_that_is_closed_stops_a_run_as_sigterm_does():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with stop_signals() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_under_nohup_goes_on_when_the_terminal_is_closed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as asked:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not asked()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
