"""Signals that come while a process is started."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from penstock.cli.commands.cluster import interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    interrupts.install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_until_the_process_is_known(number: signal.Signals) -> None:
    known = []

    def start() -> None:
        with interrupts.held():
            signal.raise_signal(number)
            known.append(number)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert known == [number]
    with interrupts.held():  # it was told once
        pass


def test_a_signal_at_any_other_time_ends_the_command_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
