"""The maintenance dialect: backups and scrubs of the data folder, while the server serves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.endpoint import audited, on_server, readable
from penstock.http.maintenance.backup import BACKUP, BackupResource
from penstock.http.maintenance.scrub import SCRUB, ScrubResource
from penstock.http.metrics import maintenance_metrics
from penstock.log.backup.jobs import Backups
from penstock.log.scrub import Scrubs

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.openapi.model import Description

STOP_S = 5.0
"""How long a stop waits for the threads of a backup and a scrub."""


class MaintenanceDialect(Dialect):
    def __init__(self, services: Services) -> None:
        store = services.engine.store
        self.backups = Backups(store, services.settings, clock=services.clock)
        self.scrubs = Scrubs(store, services.settings, clock=services.clock)
        self._backup = BackupResource(self.backups, part=services.part)
        self._scrub = ScrubResource(self.scrubs)

    def routes(self) -> Routes:
        backup, scrub = self._backup, self._scrub
        return Routes(
            fixed={
                BACKUP: {
                    **readable(on_server(Verb.ADMIN, "backup", backup.get)),
                    "POST": audited("backup.start", on_server(Verb.ADMIN, "backup", backup.post)),
                    "DELETE": audited(
                        "backup.cancel", on_server(Verb.ADMIN, "backup", backup.delete)
                    ),
                },
                SCRUB: {
                    **readable(on_server(Verb.ADMIN, "scrub", scrub.get)),
                    "POST": audited("scrub.start", on_server(Verb.ADMIN, "scrub", scrub.post)),
                },
            }
        )

    def metrics(self) -> Iterable[Metric]:
        return maintenance_metrics(self.backups, self.scrubs)

    def describe(self) -> Description:
        from penstock.http.maintenance.operations import describe

        return describe()

    def start(self) -> None:
        self.scrubs.begin_schedule()

    def close(self) -> None:
        self.backups.cancel()
        self.scrubs.cancel()

    async def wait(self) -> None:
        """Wait for what `close` has called off, within bounds: an object store may be slow."""
        async with asyncio.timeout(STOP_S):
            await self.backups.wait()
            await self.scrubs.wait()
