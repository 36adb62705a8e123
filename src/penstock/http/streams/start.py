"""Where a read starts that names no offset: at a time, or so many messages before the end.

Resolves such a start to an offset; the read goes on as from any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock import limits
from penstock.errors import InvalidParameter
from penstock.http.headers import NO_CACHE, NO_STORE
from penstock.http.query import parse_count, parse_time
from penstock.units import show_size

if TYPE_CHECKING:
    from penstock.http.message import Response
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

STARTS: Final = ("at", "tail")
"""The parameters that stand for an offset."""


def start_of(query: dict[str, str]) -> str | None:
    """Return the one of STARTS that a query has, None if there is none."""
    names = [name for name in ("offset", *STARTS) if name in query]
    if names in ([], ["offset"]):
        return None
    if len(names) > 1:
        raise InvalidParameter(
            f"`{names[0]}` and `{names[1]}` each say where a read starts; send one of them."
        )
    return names[0]


async def start_offset(engine: Engine, stream: Stream, name: str, text: str) -> str:
    """Return the offset that `at` or `tail` stands for."""
    if name == "at":
        return engine.token(stream, await engine.at_time(stream, parse_time(name, text)))
    return engine.token(stream, await _tail(engine, stream, text))


def mark_start(response: Response, offset: str) -> Response:
    """Return the response to a read from `offset`, which another request for the same URL may have
    elsewhere: caches have to ask again."""
    headers = [
        NO_CACHE if name == NO_CACHE[0] and value != NO_STORE[1] else (name, value)
        for name, value in response.headers
    ]
    response.headers = [*headers, (b"stream-start-offset", offset.encode())]
    return response


async def _tail(engine: Engine, stream: Stream, text: str) -> int:
    count = parse_count("tail", text, minimum=0)
    if stream.is_json:
        return await engine.last_messages(stream, count)
    if not stream.is_text:
        raise InvalidParameter(
            "`tail` counts messages of application/json streams and lines of text; a stream of "
            f"{stream.config.content_type} has neither. Use `offset`, or `at` with a time."
        )
    bytes_max = limits.TAIL_LINES_BYTES_MAX
    position = await engine.last_lines(stream, count, bytes_max=bytes_max)
    if position is None:
        raise InvalidParameter(
            f"The last {count} lines have more than {show_size(bytes_max)}; ask for fewer, or "
            "use `offset`."
        )
    return position
