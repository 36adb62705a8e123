"""What a node shows of its shards in `/metrics`, without a database."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.http.cluster.node_app import NodeApp
from penstock.http.forwarding import merging
from penstock.http.message import Request, Response
from penstock.http.traffic import Traffic
from tests.helpers.app import make_request


class Shard:
    """A shard with some appends and streams; its App shows nothing else."""

    def __init__(self, appends: int) -> None:
        self.appends = appends
        self._traffic = Traffic()
        self.app = self

    def collect(self) -> list[Any]:
        return [
            CounterMetricFamily("penstock_appends", "Appends.", value=self.appends),
            GaugeMetricFamily("penstock_streams", "Streams.", value=1),
        ]

    def refuse(self, request: Request) -> None:
        """It lets everybody in."""

    @property
    def traffic(self) -> Traffic:
        return self._traffic


def node_of(*shards: Shard) -> tuple[NodeApp, dict[int, Any]]:
    hosts: dict[int, Any] = dict(enumerate(shards))
    parts: Any = SimpleNamespace(hosts=hosts)
    other: Any = None
    return NodeApp(other, parts, other, other, list), hosts


async def shown(node: NodeApp) -> dict[str, float]:
    answer = node.handle(make_request("GET", "/metrics"))
    assert not isinstance(answer, Response)
    body = (await answer).body
    assert isinstance(body, bytes)
    lines = [line.split() for line in body.decode().splitlines() if line[0] != "#"]
    return {line[0]: float(line[1]) for line in lines}


def test_what_a_shard_has_counted_stays_when_it_leaves_and_what_it_has_goes() -> None:
    async def run() -> None:
        staying, leaving = Shard(3), Shard(4)
        node, hosts = node_of(staying, leaving)
        assert (await shown(node))["penstock_appends_total"] == 7
        del hosts[1]
        node.leaves(leaving)  # type: ignore[arg-type]  # a shard as far as this goes
        leaving.appends += 1  # what was under way is counted, too
        figures = await shown(node)
        assert (figures["penstock_appends_total"], figures["penstock_streams"]) == (8, 1)
        node.has_left(leaving)  # type: ignore[arg-type]
        hosts[1] = Shard(2)
        figures = await shown(node)
        assert (figures["penstock_appends_total"], figures["penstock_streams"]) == (10, 2)

    asyncio.run(run())


def test_the_event_loop_goes_on_while_they_are_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = []
    merged = merging.families

    def noted(*args: Any, **options: Any) -> list[Metric]:
        threads.append(threading.current_thread())
        return merged(*args, **options)

    monkeypatch.setattr(merging, "families", noted)
    asyncio.run(shown(node_of(Shard(1), Shard(2))[0]))
    assert threads
    assert threading.main_thread() not in threads
