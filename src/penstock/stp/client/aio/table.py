"""A table of the asyncio client: each method runs a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from penstock.client.checkpoint import Checkpoint
from penstock.client.flow import Flow
from penstock.client.retry import Retry
from penstock.stp.client import reading
from penstock.stp.client.answers import Declared, TableHead, Written
from penstock.stp.client.follower import Follower, FollowOptions, OnReset
from penstock.stp.client.reading import OnConflict, Reception, Source, TableRead, TableState
from penstock.stp.client.requests import AnyChange, Declaration, Producer, table_url
from penstock.stp.client.writing import Writing
from penstock.stp.content_type import SequenceType
from penstock.stp.rows import Row

if TYPE_CHECKING:
    from penstock.client.aio.client import AsyncClient


class AsyncTable:
    """A table by its path on the client's server, or by the State URL of any STP server.

    It holds no connection, and making one sends nothing. With `schema` and `version`, a table that
    has others is refused. `on_conflict` is for rows that contradict earlier ones: a warning in the
    log of `penstock.stp`, an error, nothing, or a call of your function.
    """

    def __init__(
        self,
        client: AsyncClient,
        path_or_url: str,
        *,
        schema: str | None = None,
        version: int | None = None,
        on_conflict: OnConflict = "warn",
    ) -> None:
        self.client = client
        self._source = Source(
            url=table_url(client.url, path_or_url),
            schema=schema,
            version=version,
            retry=client.retry,
            on_conflict=on_conflict,
        )
        self._writing = Writing(self._source.url, client.retry, self._source.accept)

    @property
    def url(self) -> str:
        """The State URL (SURL)."""
        return self._source.url

    async def create(
        self,
        schema: str,
        *,
        version: int = 1,
        type: str | None = None,
        record: str = "text",
        escape: bool = False,
        stream: str | None = None,
        exist_ok: bool = False,
    ) -> Declared:
        """Declare the table.

        `type` is the entity type of its events (default: the schema), `record` is `text` or
        `json`, `escape` allows tabs and line ends in keys and records, `stream` is an existing
        state stream that has this type among others. Raises TableExists if the table exists; with
        `exist_ok`, only if it differs.
        """
        declaration = Declaration(
            schema=schema, version=version, type=type, record=record, escape=escape, stream=stream
        )
        return await self.client.run(self._writing.declare(declaration, exist_ok=exist_ok))

    async def head(self) -> TableHead:
        """Return the properties of the table and its last SeqNo."""
        return await self.client.run(self._writing.head())

    async def read(self, since_id: int = 0, *, idle_timeout_s: float | None = None) -> TableRead:
        """Read the rows after `since_id` (negative: the last N) into memory.

        `idle_timeout_s` is for servers that keep the answer open and do not say where the table
        ends: after so much silence the read ends.
        """
        return await self.client.run(reading.read(self._source, since_id, idle_timeout_s))

    def iter_rows(
        self, since_id: int = 0, *, idle_timeout_s: float | None = None
    ) -> AsyncTableRows:
        """Like `read`, but row by row, as they arrive."""
        reception = Reception(self._source, since_id)
        flow = reading.batches(reception, idle_timeout_s)
        return AsyncTableRows(self.client, flow, reception)

    async def tail(self, count: int, *, idle_timeout_s: float | None = None) -> TableRead:
        """Read the last `count` rows."""
        if count < 1:
            raise ValueError("count must be at least 1.")
        return await self.read(-count, idle_timeout_s=idle_timeout_s)

    async def state(self, *, idle_timeout_s: float | None = None) -> TableState:
        """Return the record of each key as a dictionary; follow from its `last_seqno`."""
        return await self.client.run(reading.state(self._source, idle_timeout_s))

    def follow(
        self,
        since_id: int = 0,
        *,
        checkpoint: Checkpoint | None = None,
        checkpoint_key: str | None = None,
        on_reset: OnReset = "raise",
        poll_s: float = 5.0,
        idle_timeout_s: float | None = None,
        retry: Retry | None = None,
        protocol_errors_max: int = 3,
    ) -> AsyncTableRows:
        """Iterate over the rows after `since_id` (negative: from the last N on), existing and new.

        After failures, restarts and cut answers it resumes from the last processed row: the one
        before the row that is requested next. A server that answers at once is polled, at most
        every `poll_s` seconds. The guide explains each option.
        """
        options = FollowOptions(
            since_id=since_id,
            checkpoint=checkpoint,
            checkpoint_key=checkpoint_key,
            on_reset=on_reset,
            poll_s=poll_s,
            idle_timeout_s=idle_timeout_s,
            retry=retry,
            protocol_errors_max=protocol_errors_max,
        )
        follower = Follower(self._source, options)
        return AsyncTableRows(self.client, follower.flow(), follower.reception)

    async def put(
        self, key: str, record: str | bytes, *, producer: Producer | None = None
    ) -> Written:
        """Add or replace the record of a key. A producer makes it safe to repeat."""
        return await self.client.run(self._writing.put(key, record, producer))

    async def delete(self, key: str, *, producer: Producer | None = None) -> Written:
        """Delete a key; the history has a row of the deletion."""
        return await self.client.run(self._writing.delete(key, producer))

    async def write(
        self, changes: Iterable[AnyChange], *, producer: Producer | None = None
    ) -> Written:
        """Write several changes in one request: all of them or none.

        A change is a Change, `("+", key, record)`, `("-", key)`, or a Row, of which action, key
        and record count.
        """
        return await self.client.run(self._writing.write(changes, producer))


class AsyncTableRows:
    """The rows of `iter_rows` and `follow`. `close()`, or the end of `async with`, ends the
    connection."""

    def __init__(self, client: AsyncClient, flow: Flow[None], reception: Reception) -> None:
        self._reception = reception
        self._batches = client.iterate(flow)
        self._rows: deque[Row] = deque()
        self._current: Row | None = None

    @property
    def last_seqno(self) -> int:
        """The SeqNo of the last row that was returned: resume from it."""
        return self._reception.begun_at if self._current is None else self._current.seqno

    @property
    def media(self) -> SequenceType | None:
        """The media type of the rows (schema, version, escape), once the server has answered."""
        return self._reception.media

    @property
    def waiting(self) -> int:
        """The number of rows that can be returned without waiting."""
        return len(self._rows)

    @property
    def conflicts(self) -> int:
        """The number of rows that contradicted earlier ones and were left out."""
        return self._reception.conflicts

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        while not self._rows:
            self._rows.extend(await anext(self._batches))
        self._current = self._rows.popleft()
        return self._current

    async def close(self) -> None:
        await self._batches.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
