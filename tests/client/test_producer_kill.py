"""Producers lose and double nothing while servers are killed and connections are broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock import Retry
from tests.client.producers import Connect, connecting
from tests.helpers.faults import Fault, Kind, fault_proxy, seeded
from tests.helpers.server import Server, running_server

PATIENT = Retry(attempts_max=None, first_s=0.01, max_s=0.05)


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with connecting(request.param) as function:
        yield function


class Mortal:
    """A server that comes back on the same port, with the same data."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self._folder = folder
        self._cleanup = cleanup
        self.server = self._start(0)

    def _start(self, port: int) -> Server:
        return self._cleanup.enter_context(
            running_server(data_dir=self._folder, args=["--port", str(port)])
        )

    def kill(self) -> None:
        self.server.kill()

    def revive(self) -> None:
        self.server = self._start(self.server.port)


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("batch_items_max", "messages"), [(1, 60), (50, 500)])
def test_a_server_killed_under_load_has_everything_once_and_in_order(
    connect: Connect, tmp_path: Path, batch_items_max: int, messages: int, kills: int
) -> None:
    """Each time as many messages before the kill as while the server is away."""
    with ExitStack() as cleanup:
        mortal = Mortal(tmp_path / "data", cleanup)
        stream = connect(mortal.server.url).stream("killed")
        stream.create()
        producer = stream.producer("p", batch_items_max=batch_items_max, linger_ms=0, retry=PATIENT)
        count = 0
        in_flight = []
        for _ in range(kills):
            for _ in range(2):
                for _ in range(messages):
                    producer.append({"n": count})
                    count += 1
                if mortal.server.running:
                    in_flight.append(producer.in_flight_count)
                    mortal.kill()
            mortal.revive()
        producer.close()
        assert stream.read_json() == [{"n": number} for number in range(count)]
        assert producer.epoch == 0
        assert sum(in_flight) > 0  # at least one was killed while it had something to answer


KINDS: tuple[Kind, ...] = ("refuse", "reset", "truncate", "half-close", "stall", "delay")


@pytest.mark.parametrize("seed", [1, 2])
def test_broken_connections_lose_and_double_nothing(connect: Connect, seed: int) -> None:
    plan = seeded(seed, faults=25, kinds=KINDS, bytes_max=3000)
    with running_server(memory=True) as server, fault_proxy(server.url, plan) as proxy:
        stream = connect(server.url).stream("broken")
        stream.create()
        broken = connect(proxy.url, timeout_s=0.3).stream("broken")
        with broken.producer("p", batch_items_max=3, linger_ms=0, retry=PATIENT) as producer:
            for number in range(600):
                producer.append(number)
        assert stream.read_json() == list(range(600))
        assert len(proxy.injected) >= 4


@pytest.mark.parametrize("kind", ["reset", "truncate", "half-close", "stall"])
def test_an_answer_that_breaks_off_is_asked_for_again(connect: Connect, kind: Kind) -> None:
    """Whatever is stored though its answer broke off is recognised when it comes again."""
    faults = iter([Fault(kind, 20), Fault(kind, 100), Fault(kind, 0)])
    with (
        running_server(memory=True) as server,
        fault_proxy(server.url, lambda: next(faults, Fault())) as proxy,
    ):
        stream = connect(server.url).stream("cut")
        stream.create("text/plain")
        cut = connect(proxy.url, timeout_s=0.3, retry=PATIENT).stream("cut")
        cut.ensure("text/plain")
        with cut.producer("p", retry=PATIENT) as producer:
            producer.append("one ")
            producer.flush()
            producer.append("two")
        assert stream.read_text() == "one two"
        assert proxy.injected == {kind: 3}
