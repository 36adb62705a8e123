"""The stream dialect: streams themselves, their listing, and what stands behind their paths."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import AppendCheck, Dialect, Routes, Services
from penstock.http.endpoint import audited, on_path, readable, somewhere
from penstock.http.openapi.model import Description
from penstock.http.peers.reserved import not_owned, not_reserved, not_server_owned
from penstock.http.streams.listing import Listing
from penstock.http.streams.live import Live
from penstock.http.streams.many.live import ManyLive
from penstock.http.streams.read import ReadModes, Reads
from penstock.http.streams.registry import PATH as REGISTRY
from penstock.http.streams.registry import StreamRegistry, is_left_over, release
from penstock.http.streams.relations import Relations
from penstock.http.streams.resource import Streams
from penstock.http.streams.retention import Retention
from penstock.http.streams.successor import Successor, leads_on
from penstock.log.stream import SUCCESSOR

if TYPE_CHECKING:
    from penstock.state.server.compaction import Compactor


class StreamDialect(Dialect):
    def __init__(self, services: Services, compactor: Compactor) -> None:
        engine, settings, traffic = services.engine, services.settings, services.traffic
        reads = Reads(engine, settings, services.compressor, traffic, clock=services.clock)
        self.reads = reads
        self.live = Live(engine, settings, reads, traffic, services.readers, clock=services.clock)
        self.many = ManyLive(engine, settings, traffic)
        self._engine = engine
        self.streams = Streams(engine, settings, traffic)
        self.modes = ReadModes(engine, reads, self.live, self.streams)
        self._listing = Listing(engine, settings)
        self._retention = Retention(engine, compactor)
        self._successor = Successor(engine, settings)
        self._relations = Relations(engine, settings)
        self._has_registry = settings.registry
        self._registry: StreamRegistry | None = None
        if settings.registry and (services.owns is None or services.owns(REGISTRY)):
            self._registry = StreamRegistry(engine, settings, services.listed)
        self._release: asyncio.Task[None] | None = None

    def routes(self) -> Routes:
        engine, streams = self._engine, self.streams
        retention, successor = self._retention, self._successor
        return Routes(
            streams={
                "GET": on_path(Verb.READ, self.modes.get),
                "HEAD": on_path(Verb.READ, self.modes.head),
                "POST": on_path(Verb.APPEND, streams.append),
                "PUT": on_path(Verb.CREATE, not_reserved(streams.create)),
                "DELETE": audited(
                    "stream.delete", on_path(Verb.DELETE, not_owned(engine, streams.delete))
                ),
            },
            fixed={
                b"/v1/streams": readable(somewhere(Verb.LIST, self._listing.get)),
                b"/v1/streams/live": {"GET": somewhere(Verb.READ, self.many.get)},
            },
            suffixes={
                "trim": {
                    "POST": audited(
                        "stream.trim",
                        on_path(Verb.DELETE, not_server_owned(engine, retention.trim)),
                    )
                },
                "compact": {
                    "POST": audited(
                        "stream.compact",
                        on_path(Verb.ADMIN, not_owned(engine, retention.compact)),
                    )
                },
                "retention": {
                    **readable(on_path(Verb.READ, retention.policy)),
                    "PUT": audited(
                        "retention.set",
                        on_path(Verb.ADMIN, not_server_owned(engine, retention.set_policy)),
                    ),
                    "DELETE": audited(
                        "retention.remove",
                        on_path(Verb.ADMIN, not_server_owned(engine, retention.drop_policy)),
                    ),
                },
                "successor": {
                    **readable(on_path(Verb.READ, successor.get)),
                    "PUT": audited(
                        "successor.set", on_path(Verb.ADMIN, not_owned(engine, successor.put))
                    ),
                    "DELETE": audited(
                        "successor.remove", on_path(Verb.ADMIN, not_owned(engine, successor.drop))
                    ),
                },
                "producers": readable(on_path(Verb.READ, self._relations.producers)),
                "forks": readable(on_path(Verb.READ, self._relations.forks)),
            },
        )

    def describe(self) -> Description:
        from penstock.http.openapi.model import Description
        from penstock.http.streams import control_operations, operations

        streams, controls = operations.describe(), control_operations.describe()
        return Description(
            (*streams.operations, *controls.operations),
            {**streams.components, **controls.components},
        )

    def checks(self) -> Iterable[AppendCheck]:
        return [AppendCheck(SUCCESSOR, self._successor.check, closes=True, overtakes=leads_on)]

    def start(self) -> None:
        if self._registry is not None:
            self._registry.start()
        elif not self._has_registry and is_left_over(self._engine):
            self._release = asyncio.get_running_loop().create_task(release(self._engine))

    def drain(self) -> None:
        self.live.drain()
        self.many.drain()

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()
        if self._release is not None:
            self._release.cancel()
