"""A small data folder with a known history, and ways to look at one without starting an engine."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

from penstock.log.disk import journal
from penstock.log.disk.recovery import recover
from penstock.log.disk.segment import SegmentFolder
from penstock.protocol.headers import Producer
from tests.crash.engines import QuickCatalog, Seen, UnsyncedFiles, abandon, small_settings, start
from tests.crash.scenario import Operation


class JournalFile(NamedTuple):
    name: str
    data: bytes
    ends: list[tuple[int, int]]
    """Where each batch ends, and how many operations there are up to its end."""


async def write_operations(folder: Path, operations: list[list[Operation]], **options: Any) -> None:
    """Each burst becomes a batch; the end is sudden, so that everything stays in the journal."""
    engine = await start(small_settings(folder, checkpoint_bytes=1 << 30, **options))
    try:
        for burst in operations:
            await asyncio.gather(*[operation.submit(engine) for operation in burst])
    finally:
        await abandon(engine)


def make_operations(bursts: int, *, size_max: int) -> list[list[Operation]]:
    """Two streams with producers, a close, a delete and a creation anew."""
    chance = random.Random(11)
    result = [[Operation("a", "create", b"<a>"), Operation("j/b", "create")]]
    seq = 0
    for number in range(bursts):
        body = b"%d-" % number + chance.randbytes(chance.randrange(size_max))
        burst = [Operation("a", "append", body)]
        if chance.random() < 0.7:
            producer = Producer("p", 0, seq)
            burst.append(Operation("j/b", "append", b'"%d"' % number, producer=producer))
            seq += 1
        result.append(burst)
    closing = Operation("j/b", "append", b'"end"', close=True, producer=Producer("p", 0, seq))
    return [*result, [closing], [Operation("a", "delete"), Operation("a", "create", b"<again>")]]


def read_journal(folder: Path) -> list[JournalFile]:
    recovered, operations = [], 0
    for path in sorted((folder / "journal").glob("*.journal")):
        data = path.read_bytes()
        scan = journal.find_batches(data, path.name)
        assert scan is not None
        ends, position = [], journal.HEAD_BYTES
        for batch in scan.batches:
            position += journal.batch_bytes(batch)
            operations += batch.records
            ends.append((position, operations))
        recovered.append(JournalFile(path.name, data, ends))
    return recovered


class Bench:
    """A folder whose journal is replaced again and again; its catalog is empty and stays so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._journal = folder / "journal"
        self._journal.mkdir(parents=True)
        self._catalog = QuickCatalog(folder / "catalog.sqlite")

    def replay(self, files: dict[str, bytes]) -> dict[str, Seen]:
        """The streams that recovery finds in these journal files."""
        for path in self._journal.iterdir():
            path.unlink()
        for name, data in files.items():
            (self._journal / name).write_bytes(data)
        segments = SegmentFolder(self.folder / "segments")
        recovered = recover(UnsyncedFiles(), self.folder, self._catalog, segments)
        return {
            stream.path: Seen(stream.id, _payload(stream), stream.closed)
            for stream in recovered.streams.values()
        }

    def close(self) -> None:
        self._catalog.close()


def _payload(stream: Any) -> bytes:
    return bytes(stream.memory.read(0, stream.tail)) if stream.tail else b""
