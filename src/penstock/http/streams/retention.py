"""How much of a stream stays: `…/__ds/trim` drops its beginning, `…/__ds/compact` replaces its
history by its state, `…/__ds/retention` is its policy.

Parses documents and renders responses; what is dropped, and when, is decided by the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidJson
from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.limits import INTEGER_MAX
from penstock.log.retention import META, encode
from penstock.protocol.retention import RATIO_MIN, Keep

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.compaction import Compactor


class TrimRequest(msgspec.Struct, forbid_unknown_fields=True):
    before: str


class Policy(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds, bytes, and the ratio of log to live state at which a state stream is compacted. A
    limit that is absent or null does not apply."""

    age: int | None = None
    bytes: int | None = None
    compact: int | None = None


class CompactRequest(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Retention:
    """The three resources that drop a part of a stream, or say when it is dropped."""

    __slots__ = ("_compactor", "_engine")

    def __init__(self, engine: Engine, compactor: Compactor) -> None:
        self._engine = engine
        self._compactor = compactor

    def trim(self, path: str, request: Request) -> Awaitable[Response]:
        trim = _decode(request.body, TrimRequest, '{"before": "<offset>"}')
        return self._trim(path, trim.before)

    async def _trim(self, path: str, before: str) -> Response:
        trimmed = await self._engine.trim(path, before)
        return _response({"earliest": trimmed.offset}, trimmed.offset)

    def compact(self, path: str, request: Request) -> Awaitable[Response]:
        if request.body:
            _decode(request.body, CompactRequest, "{}, or nothing,")
        return self._compact(path)

    async def _compact(self, path: str) -> Response:
        compacted = await self._compactor.compact(self._engine.find(path, touch=False))
        return _response(
            {
                "earliest": compacted.earliest,
                "entities": compacted.entities,
                "bytes": compacted.bytes,
            },
            compacted.earliest,
        )

    def policy(self, path: str, request: Request) -> Response:
        return self._policy(self._engine.find(path, touch=False))

    def set_policy(self, path: str, request: Request) -> Awaitable[Response]:
        policy = _decode(
            request.body, Policy, '{"age": <seconds>, "bytes": <bytes>, "compact": <ratio>}'
        )
        for name, limit in (("age", policy.age), ("bytes", policy.bytes)):
            if limit is not None and not 0 < limit <= INTEGER_MAX:
                raise InvalidJson(f"`{name}` must be a whole number of at least 1, or null.")
        ratio = policy.compact
        if ratio is not None and not RATIO_MIN <= ratio <= INTEGER_MAX:
            raise InvalidJson(f"`compact` must be a whole number of at least {RATIO_MIN}, or null.")
        return self._set_policy(path, encode(Keep(policy.age, policy.bytes, ratio)))

    def drop_policy(self, path: str, request: Request) -> Awaitable[Response]:
        return self._set_policy(path, None)

    async def _set_policy(self, path: str, value: bytes | None) -> Response:
        await self._engine.set_meta(path, META, value)
        if value is None:
            return Response(204)
        return self._policy(self._engine.find(path, touch=False))

    def _policy(self, stream: Stream) -> Response:
        keep = self._engine.retention.keep(stream)
        earliest = self._engine.earliest(stream).offset
        content = {
            "age": keep.age_s,
            "bytes": keep.bytes,
            "compact": keep.ratio,
            "own": META in stream.meta,
            "earliest": earliest,
        }
        return _response(content, earliest)


def _response(content: dict[str, Any], earliest: str) -> Response:
    return document(content, 200, (b"stream-earliest-offset", earliest.encode()))


def _decode(body: bytes, type: Any, shape: str) -> Any:
    try:
        return msgspec.json.decode(body, type=type)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidJson(f"Send {shape} as JSON: {error}") from None
