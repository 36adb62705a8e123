"""Reads after a snapshot of a Yjs document, in the layout of the protocol's Yjs server.

That server stores the updates of a document as bytes in `<document>/.updates`, and one entry
`{"snapshotOffset": …}` per snapshot in `<document>/.index`. It reads the updates after a snapshot
from the snapshot's offset plus one. In a byte stream that is an offset of its own, one byte into
the next update: the index tells it from all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import StreamNotFound, StreamSoftDeleted

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

UPDATES: Final = "/.updates"
INDEX: Final = "/.index"
INDEX_BYTES_MAX: Final = 256 * 1024
"""Bytes of an index that are searched, from its end: some three thousand snapshots, of which
clients read the last."""


async def start_after_snapshot(engine: Engine, stream: Stream, position: int) -> int:
    """Return where a read from `position` starts: one byte earlier if that is where a snapshot of
    the document ends."""
    if not stream.path.endswith(UPDATES) or stream.is_json:
        return position
    if position in (stream.earliest, stream.tail):
        return position
    try:
        index = engine.find(stream.path.removesuffix(UPDATES) + INDEX, touch=False)
    except (StreamNotFound, StreamSoftDeleted):
        return position
    start = max(index.earliest, index.tail - INDEX_BYTES_MAX)
    entries = await engine.read_range(index, start, index.tail)
    snapshot = f'"{engine.token(stream, position - 1)}"'
    return position - 1 if snapshot.encode() in entries else position
