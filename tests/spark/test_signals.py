"""Signals to a pipeline: the first asks for an end, the second ends."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from penstock.spark.pipeline.signals import stopped_by_signals


@pytest.fixture(autouse=True)
def _in_the_main_thread() -> None:
    assert threading.current_thread() is threading.main_thread(), "only it gets signals"


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    notes: list[str] = []
    called: list[bool] = []
    with stopped_by_signals(notes.append) as stop:
        signal.signal(number, lambda *_: pytest.fail("Spark's own handler"))  # as it does
        stop.on_request(lambda: called.append(True))
        send(number)
        assert (stop.requested, called, len(notes)) == (True, [True], 1)
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert (called, len(notes)) == ([True], 1)
    assert signal.getsignal(number) is before


def test_a_signal_while_spark_starts_waits_until_it_has() -> None:
    with stopped_by_signals(lambda _: None) as stop:
        send(signal.SIGINT)
        assert stop.requested, "and whatever was being started goes on"
        with pytest.raises(KeyboardInterrupt):
            stop.on_request(lambda: None)


def test_other_threads_have_no_signals() -> None:
    found: list[object] = []

    def enter() -> None:
        with stopped_by_signals(lambda _: None):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
