"""`GET /v1/streams/live` over the streams of all processes: one response, put together from the
events of each.

Every part has a cursor of its own; the id of an event is all of them. Knows the form of the events
of several streams, and nothing of how they come about.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from penstock.errors import InvalidCursor
from penstock.http.forwarding.forwarder import kept
from penstock.http.forwarding.gather import answered
from penstock.http.headers import NO_STORE, header_text
from penstock.http.live.response import LiveReader
from penstock.http.message import EventBody, Request, Response, Sink
from penstock.http.streams.live import EVENT_HEADERS
from penstock.http.streams.many.entries import UP_TO_DATE, event
from penstock.http.streams.many.selection import Selection, parse_selection
from penstock.protocol.sse import END

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.config.settings import Settings
    from penstock.http.endpoint import Handler
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners
    from penstock.http.live.readers import LiveReaders

VERSION: Final = "m"
"""How the cursor of several processes begins."""
_BEGIN: Final = b"data:[\ndata:"
_BETWEEN: Final = b",\ndata:"
_ID: Final = b"\ndata:]\nid: "
_OK: Final = 200
_ENDED: Final = 204


class Question(NamedTuple):
    """What all parts of one response are asked with."""

    handler: Handler
    path: str
    request: Request
    selection: Selection


class MergedLive:
    """The resource. `locate` names the process where the stream of a path lives."""

    def __init__(
        self,
        owners: Owners,
        forwarder: Forwarder,
        readers: LiveReaders,
        settings: Settings,
        locate: Callable[[str], Awaitable[str]],
    ) -> None:
        self._owners = owners
        self._forwarder = forwarder
        self._readers = readers
        self._settings = settings
        self._locate = locate

    async def get(self, handler: Handler, path: str, request: Request) -> Response:
        selection = parse_selection(
            request.query,
            parameters_max=self._settings.live_parameters_max,
            path_bytes_max=self._settings.path_bytes_max,
        )
        last_id = header_text(request.headers, b"last-event-id")
        question = Question(handler, path, request, selection)
        cursors = self._cursors(last_id or selection.cursor)
        parts = [
            Part(name, cursors.get(name, ""), streams)
            for name, streams in (await self._split(selection)).items()
        ]
        body = MergedEvents(self, question, parts)
        failure = await body.open()
        if failure is not None:
            return failure
        if body.is_over:
            return Response(_ENDED, [NO_STORE])
        return Response(200, list(EVENT_HEADERS), body)

    def names(self) -> list[str]:
        return sorted([self._owners.name, *(peer.name for peer in self._owners.peers())])

    def _cursors(self, text: str | None) -> dict[str, str]:
        """Return the cursor of each part; InvalidCursor for that of a server with others."""
        if not text:
            return {}
        names = self.names()
        parts = text[len(VERSION) :].split(".")
        if not text.startswith(VERSION) or len(parts) != len(names):
            raise InvalidCursor(
                "The cursor belongs to a server with another number of workers. Begin again "
                "without it."
            )
        return dict(zip(names, parts, strict=True))

    async def _split(self, selection: Selection) -> dict[str, dict[str, str]]:
        """Return the streams that each process is asked for; patterns go to all."""
        split: dict[str, dict[str, str]] = {}
        if selection.patterns:
            split = {name: {} for name in self.names()}
        for path, offset in selection.streams.items():
            split.setdefault(await self._locate(path), {})[path] = offset
        return split

    async def ask(self, question: Question, part: Part) -> Response:
        """Return the response of one process for its part."""
        request = kept(question.request)
        request.query = _query(question.selection, part)
        request.headers = {
            name: value for name, value in request.headers.items() if name != b"last-event-id"
        }
        if part.name != self._owners.name:
            peer = self._owners.peer(part.name)
            assert peer is not None
            return await self._forwarder.forward(peer, request, is_local=True)
        response = await answered(question.handler, question.path, request)
        if isinstance(response.body, LiveReader):
            self._readers.add(request, response.body)
        return response


class Part:
    """One process, what it is asked for, and how far its events are. The Sink of its response."""

    def __init__(self, name: str, cursor: str, streams: dict[str, str]) -> None:
        self.name = name
        self.cursor = cursor
        self.streams = streams
        self.body: EventBody | None = None
        self.is_up_to_date = False
        self.is_over = False
        self.whole: MergedEvents | None = None
        self._received = b""

    # -- Sink

    def write(self, data: bytes) -> None:
        data = self._received + data
        end = data.rfind(END)
        if end < 0:
            self._received = data
            return
        self._received = data[end + len(END) :]
        for block in data[:end].split(END):
            if self.whole is not None:
                self.whole.received(self, block)

    def close(self) -> None:
        self.body = None
        if self.whole is not None:
            self.whole.part_ended(self)

    def abort(self) -> None:
        self.body = None
        if self.whole is not None:
            self.whole.abort()

    @property
    def congested(self) -> bool:
        return self.whole is not None and self.whole.is_congested

    @property
    def buffered(self) -> int:
        return 0 if self.whole is None else self.whole.buffered


class EndedEvents(EventBody):
    """A live response of a peer that had ended before anybody read it."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def attach(self, sink: Sink) -> None:
        sink.write(self._data)
        sink.close()

    def finish(self) -> None:
        """It has ended."""

    def detach(self) -> None:
        """It has ended."""


class MergedEvents(EventBody):
    """The response over all parts."""

    __slots__ = ("_live", "_parts", "_question", "_sink", "_tasks", "_told")

    def __init__(self, live: MergedLive, question: Question, parts: list[Part]) -> None:
        self._live = live
        self._question = question
        self._parts = parts
        self._sink: Sink | None = None
        self._told = False  # that everything is up to date
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> Response | None:
        """Ask all parts; return the first answer that is an error."""
        results = await asyncio.gather(
            *(self._live.ask(self._question, part) for part in self._parts),
            return_exceptions=True,
        )
        failure: Response | BaseException | None = None
        for part, result in zip(self._parts, results, strict=True):
            if isinstance(result, BaseException):
                failure = failure or result
            elif result.status == _ENDED:
                part.is_over = True
            elif isinstance(result.body, EventBody):
                part.body = result.body
            elif result.status == _OK and isinstance(result.body, bytes):
                part.body = EndedEvents(result.body)
            else:
                failure = failure or result
        if failure is None:
            return None
        self._leave()
        if isinstance(failure, BaseException):
            raise failure
        return failure

    @property
    def is_over(self) -> bool:
        return all(part.is_over for part in self._parts)

    @property
    def is_congested(self) -> bool:
        return self._sink is not None and self._sink.congested

    @property
    def buffered(self) -> int:
        return 0 if self._sink is None else self._sink.buffered

    # -- EventBody

    def attach(self, sink: Sink) -> None:
        self._sink = sink
        for part in self._parts:
            if part.body is not None and self._sink is not None:
                part.whole = self
                part.body.attach(part)

    def drained(self) -> None:
        for part in self._parts:
            if part.body is not None:
                part.body.drained()

    def finish(self) -> None:
        sink, self._sink = self._sink, None
        self._leave()
        if sink is not None:
            sink.close()

    def detach(self) -> None:
        self._sink = None
        self._leave()

    def abort(self) -> None:
        sink, self._sink = self._sink, None
        self._leave()
        if sink is not None:
            sink.abort()

    def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        for part in self._parts:
            body, part.body, part.whole = part.body, None, None
            if body is not None:
                body.detach()

    # -- called by parts

    def received(self, part: Part, block: bytes) -> None:
        """Pass one event of a part on, with the cursor of all."""
        sink = self._sink
        if sink is None:
            return
        head, mark, cursor = block.rpartition(_ID)
        if not mark or not head.startswith(_BEGIN):
            if part is self._parts[0] or block.startswith(b":"):
                sink.write(block + END)  # the time to reconnect, once, and comments
            return
        part.cursor = cursor.decode()
        entries = head[len(_BEGIN) :].split(_BETWEEN)
        if UP_TO_DATE in entries:
            entries.remove(UP_TO_DATE)
            part.is_up_to_date = True
        if not self._told and all(each.is_up_to_date or each.is_over for each in self._parts):
            self._told = True
            entries.append(UP_TO_DATE)
        if entries:
            sink.write(event(entries, self._cursor()))

    def _cursor(self) -> bytes:
        cursors = {part.name: part.cursor for part in self._parts}
        return (VERSION + ".".join(cursors.get(name, "") for name in self._live.names())).encode()

    def part_ended(self, part: Part) -> None:
        """A part has ended cleanly: for good, or because its time is up and so that of all."""
        if self._sink is None:
            return
        if self._question.selection.patterns:
            self.finish()
            return
        task = asyncio.get_running_loop().create_task(self._check_over(part))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check_over(self, part: Part) -> None:
        response = await self._live.ask(self._question, part)
        part.is_over = response.status == _ENDED
        if isinstance(response.body, EventBody):
            response.body.detach()
        if not part.is_over or self.is_over:
            self._tasks.clear()
            self.finish()


def _query(selection: Selection, part: Part) -> bytes:
    pairs = [("stream", f"{path}@{offset}") for path, offset in part.streams.items()]
    pairs += [("match", f"{pattern}@{offset}") for pattern, offset in selection.patterns.items()]
    if part.cursor:
        pairs.append(("cursor", part.cursor))
    return "&".join(f"{name}={quote(text, safe='')}" for name, text in pairs).encode()
