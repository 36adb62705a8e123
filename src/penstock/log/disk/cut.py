"""A data folder at one LSN, for those who copy it while the server goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from penstock.log.disk.catalog_snapshot import CatalogSnapshot
from penstock.log.disk.files import Files
from penstock.log.disk.segment import SegmentFolder
from penstock.object_store import ObjectStore


class Cut(NamedTuple):
    """A data folder at one LSN: the catalog, and the segments that it names, which nobody removes
    meanwhile. They may grow, so that only their recorded lengths count."""

    files: Files
    root: Path
    segments: SegmentFolder
    catalog: CatalogSnapshot
    objects: ObjectStore | None = None
    """Where cold segments are."""


class HeldCut:
    """The context of a cut: within it nobody removes what the cut names."""

    def __init__(
        self, make: Callable[[], Awaitable[Cut]], release: Callable[[], Awaitable[None]]
    ) -> None:
        self._make = make
        self._release = release
        self._cut: Cut | None = None

    async def __aenter__(self) -> Cut:
        self._cut = await self._make()
        return self._cut

    async def __aexit__(self, *_: object) -> None:
        assert self._cut is not None
        self._cut.catalog.close()
        await self._release()
