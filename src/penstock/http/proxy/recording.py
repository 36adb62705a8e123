"""One recording: a call of an upstream, whose response becomes a stream as it arrives.

The stream carries what is known of the response as a meta value, and is closed when the response
ends, whatever the reason. Knows the log and egress; nothing of requests to this server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from penstock.errors import EgressFailed, PenstockError, StreamExists, StreamNotFound
from penstock.http.proxy.events import WholeEvents
from penstock.http.proxy.upstreams import content_type_of, recorded
from penstock.log.requests import Append, Writer
from penstock.protocol.error_record import EVENTS, Ending, error_record
from penstock.protocol.headers import is_json, media_type
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.outbound import shown_url

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress, Streamed
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

State = Literal["running", "complete", "failed", "aborted", "interrupted"]

ENDED: Final[tuple[State, ...]] = ("complete", "failed", "aborted", "interrupted")
META: Final = "proxy"
"""The name of the meta value of a recorded stream."""
TEXT: Final = "text/plain; charset=utf-8"

log = logging.getLogger("penstock.proxy")


class Record(msgspec.Struct, frozen=True):
    """What is stored of a call and its response."""

    id: str
    digest: str
    url: str
    status: int
    content_type: str
    headers: dict[str, str]
    state: State


class Call(NamedTuple):
    """A call of an upstream as a client asked for it. `id` names it, and `digest` says what it
    was."""

    path: str
    id: str
    digest: str
    method: str
    url: str
    headers: dict[str, str]
    body: bytes
    ttl_s: int | None


def record_of(stream: Stream) -> Record | None:
    """Return what is stored of the response that a stream has recorded; None if it has none."""
    value = stream.meta.get(META)
    return None if value is None else msgspec.json.decode(value, type=Record)


def stored_type(content_type: str) -> str:
    """Return the content type of the stream for a response of a content type: JSON is recorded as
    text, because a stream of JSON holds whole messages."""
    return TEXT if is_json(content_type) else content_type


def close_as(
    engine: Engine, path: str, record: Record, state: State, rest: bytes = b"", message: str = ""
) -> list[Awaitable[object]]:
    """Close a recorded stream, with the reason in its meta value and, if its type has a form for
    it, in a last message. Queued before this returns."""
    body = rest
    if state in ("failed", "aborted", "interrupted"):
        ending: Ending = state
        body = error_record(stored_type(record.content_type), ending, message) or b""
    changed = msgspec.structs.replace(record, state=state)
    content_type = stored_type(record.content_type) if body else None
    last = Append(body, content_type, close=True, writer=Writer.SERVER)
    # First the reason: whoever sees the end sees it.
    return [
        engine.set_meta(path, META, msgspec.json.encode(changed)),
        engine.append(path, last),
    ]


class Recording:
    """A call that is going on. `head` is done when the stream is there, or nothing will be."""

    def __init__(
        self,
        call: Call,
        engine: Engine,
        settings: Settings,
        egress: Egress,
        *,
        opening: Callable[[Recording], Awaitable[None]],
        ended: Callable[[Recording], None],
    ) -> None:
        self.call = call
        self._engine = engine
        self._settings = settings
        self._egress = egress
        self._opening = opening
        self._ended = ended
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[Record] = loop.create_future()
        self.state: State = "running"
        self._record: Record | None = None
        self._closing: list[Awaitable[object]] | None = None
        self._task = loop.create_task(self._run())

    async def end(self, state: Literal["aborted", "interrupted"]) -> None:
        """End the call, and wait until the stream is closed."""
        self.end_soon(state)
        await asyncio.wait((self._task,))

    def end_soon(self, state: Literal["aborted", "interrupted"]) -> None:
        """End the call; the close of the stream is queued before this returns."""
        self._close(state)
        self._task.cancel()

    async def _run(self) -> None:
        try:
            await self._call()
        except asyncio.CancelledError:
            self._fail(EgressFailed("The call was ended before the upstream answered."))
        except PenstockError as error:
            self._fail(error)
            self._close("failed", error.detail)
        except Exception:
            log.exception("the recording at %r failed", self.call.path)
            self._fail(EgressFailed("The call failed; the server's log says why."))
            self._close("failed")
        finally:
            await self._settle()

    async def _call(self) -> None:
        call, settings = self.call, self._settings
        async with self._egress.stream(
            call.url,
            method=call.method,
            headers=call.headers,
            body=call.body,
            timeout_s=settings.proxy_idle_timeout_s,
            idle_timeout_s=settings.proxy_idle_timeout_s,
            stream_timeout_s=settings.proxy_timeout_s,
            bytes_max=settings.proxy_bytes_max,
        ) as upstream:
            if 300 <= upstream.status < 400:
                raise EgressFailed(
                    f"{shown_url(call.url)} answered with a redirect ({upstream.status}), which is "
                    "not followed: send the URL that it leads to."
                )
            record = await self._open(upstream)
            rest = await self._copy(upstream.pieces, stored_type(record.content_type))
        self._close("complete", rest=rest)

    async def _open(self, upstream: Streamed) -> Record:
        """Create the stream, and its meta value in the same step: a crash leaves both or none."""
        call, engine = self.call, self._engine
        content_type = content_type_of(upstream.headers)
        record = Record(
            id=call.id,
            digest=call.digest,
            url=shown_url(call.url),
            status=upstream.status,
            content_type=content_type,
            headers=recorded(upstream.headers),
            state="running",
        )
        await self._opening(self)
        check_free(engine, call.path)
        config = StreamConfig(stored_type(content_type), call.ttl_s, None)
        creating = engine.create(call.path, config)
        try:
            marking = engine.set_meta(call.path, META, msgspec.json.encode(record))
        except PenstockError:
            await creating  # which was refused, and says why
            raise
        created = await creating
        await marking
        if not created.created:  # somebody else was faster by a moment
            await engine.set_meta(call.path, META, None)
            raise _taken(call.path)
        self._record = record
        if not self.head.done():
            self.head.set_result(record)
        return record

    async def _copy(self, pieces: AsyncIterator[bytes], content_type: str) -> bytes:
        """Append a body as it arrives; return the rest, which goes with the close."""
        events = WholeEvents() if media_type(content_type) == EVENTS else None
        async for piece in pieces:
            data = piece if events is None else events.feed(piece)
            if data:
                append = Append(data, content_type, writer=Writer.SERVER)
                await self._engine.append(self.call.path, append)
        return b"" if events is None else events.rest

    def _close(self, state: State, message: str = "", *, rest: bytes = b"") -> None:
        if self._closing is not None or self._record is None:
            return
        self.state = state
        try:
            self._closing = close_as(
                self._engine, self.call.path, self._record, state, rest, message
            )
        except PenstockError as error:  # the stream was deleted: that ended the recording
            self._closing = []
            log.info("the recording at %r has ended: %s", self.call.path, error)

    async def _settle(self) -> None:
        for each in self._closing or ():
            with contextlib.suppress(PenstockError):
                await each
        self._ended(self)

    def _fail(self, error: PenstockError) -> None:
        if not self.head.done():
            self.head.set_exception(error)
            self.head.exception()  # retrieved: the client may have left


def check_free(engine: Engine, path: str) -> None:
    """Raise StreamExists if there is a stream at a path."""
    with contextlib.suppress(StreamNotFound):
        engine.find(path, touch=False)
        raise _taken(path)


def _taken(path: str) -> StreamExists:
    return StreamExists(f"There is another stream at {path!r}: record the response elsewhere.")
