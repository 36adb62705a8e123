"""Listeners of committed batches: any number of them, in order, none at the cost of another."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.log.mutations import Mutation
from tests.unit.log.bench import Bench, with_bench


class Calls:
    """Makes listeners that note their name when they are called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def listener(self, name: str, *, fails: bool = False) -> Listener:
        return Listener(self.names, name, fails=fails)


class Listener:
    def __init__(self, names: list[str], name: str, *, fails: bool) -> None:
        self._names = names
        self._name = name
        self._fails = fails

    def committed(self, batch: Sequence[Mutation]) -> None:
        self._names.append(self._name)
        if self._fails:
            raise RuntimeError(f"{self._name} is broken")


@with_bench()
async def test_all_listeners_are_called_in_the_order_of_their_registration(bench: Bench) -> None:
    calls = Calls()
    for name in ("first", "second", "third"):
        bench.engine.listen(calls.listener(name).committed)
    await bench.create("a")
    assert calls.names == ["first", "second", "third"]


@with_bench()
async def test_a_listener_is_called_once_however_often_it_is_registered(bench: Bench) -> None:
    calls = Calls()
    first, second = calls.listener("first"), calls.listener("second")
    for each in (first, second, first):
        bench.engine.listen(each.committed)
    await bench.create("a")
    assert calls.names == ["first", "second"]
    bench.engine.unlisten(first.committed)
    bench.engine.unlisten(first.committed)
    await bench.create("b")
    assert calls.names == ["first", "second", "second"]


class Records(logging.Handler):
    """A log handler that remembers."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@with_bench()
async def test_a_listener_that_fails_stops_neither_the_others_nor_the_writer(bench: Bench) -> None:
    calls, logged = Calls(), Records()
    bench.engine.listen(calls.listener("broken", fails=True).committed)
    bench.engine.listen(calls.listener("sound").committed)
    logging.getLogger("penstock.log").addHandler(logged)
    try:
        await bench.create("a")
    finally:
        logging.getLogger("penstock.log").removeHandler(logged)
    assert calls.names == ["broken", "sound"]
    (record,) = logged.records
    assert record.exc_info is not None
    assert "broken is broken" in str(record.exc_info[1])
