"""`GET /v1/state/<stream>`: the state that a stream folds to, at its tail or at any offset.

Every response is the state at one position, read in one transaction of the index; values that are
not in the index are read from the log, where a position never changes its meaning. So no response
can mix two states.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from penstock import limits
from penstock.errors import InvalidParameter, NotDeclared
from penstock.http.documents import not_modified, tagged
from penstock.http.headers import NO_CACHE, UP_TO_DATE, closed_headers
from penstock.http.message import Headers, Request, Response
from penstock.http.query import parse_count, parse_query, parse_time
from penstock.http.state.schema import need_json
from penstock.log.lineage import generation_at
from penstock.log.spans import spans
from penstock.protocol.offsets import NOW
from penstock.state.declaration import META
from penstock.state.events import OPERATIONS, ChangeEvent, parse
from penstock.state.server.index import RESET, Entry, HistoryStep, StateIndex, StateQuery

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.compression import Compressor
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

T = TypeVar("T")

_PARAMETERS: Final = frozenset(
    {"offset", "at", "type", "key", "prefix", "history", "after", "limit"}
)
SPAN_BYTES_MAX: Final = 256 * 1024
INLINE_EVENTS_MAX: Final = 200
"""Larger pages are rendered off the loop."""


class State:
    """The state of a stream as a resource."""

    __slots__ = ("_compressor", "_engine", "_fold_bytes_max", "_indexer")

    def __init__(
        self, engine: Engine, indexer: StateIndexer, compressor: Compressor, settings: Settings
    ) -> None:
        self._engine = engine
        self._indexer = indexer
        self._compressor = compressor
        self._fold_bytes_max = settings.state_fold_bytes_max

    async def get(self, path: str, request: Request) -> Response:
        query = parse_query(request.query, _PARAMETERS)
        _check(query)
        stream = self._engine.find(path, touch=True)
        need_json(stream)
        at = await self._position(stream, query)
        unchanged = not_modified(request, self._headers(stream, at), _tag(stream, at))
        if unchanged is not None:
            return unchanged
        limit = limits.STATE_LIMIT
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=limits.STATE_LIMIT_MAX)
        state_query = StateQuery(
            stream.id,
            at,
            "offset" not in query and "at" not in query,
            query.get("type"),
            query.get("key"),
            query.get("prefix", ""),
            limit=limit,
            bytes_max=limits.STATE_PAGE_BYTES,
            as_json=True,
        )
        if query.get("history") == "true":
            body = await self._history(stream, state_query, query.get("after"))
        else:
            at, body = await self._page(stream, state_query, query.get("after"))
        headers, tag = self._headers(stream, at), _tag(stream, at)
        return await tagged(self._compressor, request, headers, tag, body)

    async def _position(self, stream: Stream, query: dict[str, str]) -> int:
        if "at" in query:
            return await self._engine.at_time(stream, parse_time("at", query["at"]))
        return await self._engine.position(stream, query.get("offset", NOW))

    def _headers(self, stream: Stream, at: int) -> Headers:
        headers: Headers = [
            (b"stream-next-offset", self._engine.token(stream, at).encode()),
            NO_CACHE,
        ]
        if at == stream.tail:
            if self._engine.is_current():
                headers.append(UP_TO_DATE)
            if stream.closed:
                headers.extend(closed_headers(stream))
        return headers

    async def _page(
        self, stream: Stream, query: StateQuery, after: str | None
    ) -> tuple[int, bytes]:
        if after is not None:
            query = query._replace(after=_after_entity(after))
        page = await self._ask(stream, query.at, lambda index: index.page(query))
        at, entries, joined = page.at, page.entities, page.joined
        last = joined.last if joined is not None else entries[-1][:2] if entries else None
        head = {
            "offset": self._engine.token(stream, at),
            "next": _encode_cursor(list(last)) if last is not None and page.more else None,
        }
        if joined is not None:
            return at, _wrap(head, joined.types)
        missing = [(entry.position, entry.length) for entry in entries if entry.value is None]
        events = await self._read(stream, missing)
        if len(entries) <= INLINE_EVENTS_MAX:
            return at, _render_page(head, entries, events)
        return at, await asyncio.to_thread(_render_page, head, entries, events)

    async def _history(self, stream: Stream, query: StateQuery, after: str | None) -> bytes:
        start = -1 if after is None else _after_position(after)
        rows = await self._ask(stream, query.at, lambda index: index.history(query, start))
        steps, size = rows[: query.limit], 0
        for count, step in enumerate(steps):
            size += step.length
            if count and size > query.bytes_max:
                steps = steps[:count]
                break
        more = len(steps) < len(rows)
        head = {
            "offset": self._engine.token(stream, query.at),
            "next": _encode_cursor([steps[-1].position]) if more else None,
            "type": query.type,
            "key": query.key,
        }
        events = await self._read(stream, [(step.position, step.length) for step in steps])
        offsets = [self._engine.token(stream, step.position + step.length) for step in steps]
        if len(steps) <= INLINE_EVENTS_MAX:
            return _render_history(head, steps, offsets, events)
        return await asyncio.to_thread(_render_history, head, steps, offsets, events)

    async def _ask(self, stream: Stream, at: int, question: Callable[[StateIndex], T | None]) -> T:
        """Ask the index of a declared stream; fold the events of any other, if they are few."""
        if META in stream.meta:
            return await self._indexer.answer(stream, at, question)
        size = at - stream.earliest
        if size > self._fold_bytes_max:
            raise NotDeclared(
                f"{stream.path!r} has {size} bytes up to there, more than the "
                f"{self._fold_bytes_max} of state_fold_bytes_max that are folded for one request; "
                f"declare it a state stream with PUT /v1/schema/{stream.path}."
            )
        return await self._indexer.fold(stream, at, question)

    async def _read(self, stream: Stream, extents: list[tuple[int, int]]) -> dict[int, bytes]:
        """Return the events at (position, length) of the log, by position."""
        extents = sorted(extents)
        positions = [position for position, _ in extents]
        lengths = [length for _, length in extents]
        events: dict[int, bytes] = {}
        for span in spans(positions, lengths, span_bytes_max=SPAN_BYTES_MAX):
            wire = await self._indexer.read(stream, span.start, span.end)
            for position, length in extents[span.first : span.stop]:
                at = position - span.start
                events[position] = wire[at : at + length - 2]
        return events


def _wrap(head: dict[str, Any], types: list[tuple[str, bytes]]) -> bytes:
    encode = msgspec.json.encode
    objects = b",".join(b"%s:{%s}" % (encode(type), members) for type, members in types)
    ends = encode(head["offset"]), objects, encode(head["next"])
    return b'{"offset":%s,"types":{%s},"next":%s}' % ends


def _render_page(head: dict[str, Any], entries: list[Entry], events: dict[int, bytes]) -> bytes:
    types: dict[str, dict[str, msgspec.Raw]] = {}
    for entry in entries:
        value = entry.value
        if value is None:
            value = _change(events[entry.position]).raw_value
            assert value is not None
        types.setdefault(entry.type, {})[entry.key] = msgspec.Raw(value)
    return msgspec.json.encode({"offset": head["offset"], "types": types, "next": head["next"]})


def _render_history(
    head: dict[str, Any], steps: list[HistoryStep], offsets: list[str], events: dict[int, bytes]
) -> bytes:
    history: list[dict[str, Any]] = []
    for step, offset in zip(steps, offsets, strict=True):
        item: dict[str, Any] = {"offset": offset, "ordinal": step.ordinal}
        if step.operation == RESET:
            item["control"] = "reset"
        else:
            event = _change(events[step.position])
            item["operation"] = OPERATIONS[step.operation]
            if event.raw_value is not None and event.operation != "delete":
                item["value"] = msgspec.Raw(event.raw_value)
            if event.txid is not None:
                item["txid"] = event.txid
            if event.timestamp is not None:
                item["timestamp"] = event.timestamp
            if event.headers.reason:
                item["reason"] = msgspec.Raw(bytes(event.headers.reason))
        history.append(item)
    return msgspec.json.encode({**head, "history": history})


def _change(raw: bytes) -> ChangeEvent:
    event = parse(raw, strict_timestamp=False)
    assert isinstance(event, ChangeEvent)
    return event


def _tag(stream: Stream, at: int) -> str:
    """Return the tag of a state; closing changes it, so that a 304 cannot hide a stream's end."""
    is_end = stream.closed and at == stream.tail
    return f'"{generation_at(stream, at)}:{at}:s{"c" if is_end else ""}"'


def _check(query: dict[str, str]) -> None:
    """Refuse combinations of parameters that have no clear meaning."""
    history = query.get("history", "false")
    if history not in ("true", "false"):
        raise InvalidParameter("`history` must be true or false.")
    if history == "true" and ("type" not in query or "key" not in query):
        raise InvalidParameter("A history is that of one entity: send `type` and `key`.")
    if "type" not in query and ("key" in query or "prefix" in query):
        raise InvalidParameter("`key` and `prefix` need a `type`.")
    if "key" in query and "prefix" in query:
        raise InvalidParameter("Send either `key` or `prefix`, not both.")
    if "at" in query and "offset" in query:
        raise InvalidParameter("`offset` and `at` each name a point of the stream; send one.")
    if "after" in query and "offset" not in query:
        raise InvalidParameter(
            "`after` needs the `offset` of the first page, so that all pages are of one state."
        )


def _encode_cursor(fields: list[Any]) -> str:
    return urlsafe_b64encode(msgspec.json.encode(fields)).decode().rstrip("=")


def _decode_cursor(cursor: str, type: Any) -> Any:
    try:
        raw = urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4))
        return msgspec.json.decode(raw, type=type)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise InvalidParameter("`after` must be the `next` of a page, as it was sent.") from None


def _after_entity(cursor: str) -> tuple[str, str]:
    entity: tuple[str, str] = _decode_cursor(cursor, tuple[str, str])
    return entity


def _after_position(cursor: str) -> int:
    fields: tuple[int] = _decode_cursor(cursor, tuple[int])
    return min(fields[0], limits.OFFSET_PART_MAX)
