"""Starting from the state that a Penstock server has, instead of from the stream's beginning.

A flow without I/O, like those of the clients. If it fails, the state is read from the stream, which
has all of it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from penstock import limits
from penstock.client.flow import Flow, send
from penstock.client.requests import STREAM_PREFIX, Request
from penstock.client.retry import Retry
from penstock.errors import PenstockError, ProtocolError, StateMoved
from penstock.protocol.offsets import NOW
from penstock.state.live.moves import resolved
from penstock.state.live.plan import Entity
from penstock.state.live.rules import OnReset
from penstock.state.live.selection import Selection

STATE_PREFIX: Final = "/v1/state/"

Bootstrap: TypeAlias = Literal["stream", "state"]


class Loaded(NamedTuple):
    """All entities of a state, and the stream and offset to follow from."""

    offset: str
    entities: dict[Entity, bytes]
    url: str


class _Page(msgspec.Struct):
    offset: str
    types: dict[str, dict[str, msgspec.Raw]]
    next: str | None = None


_decode: Final = msgspec.json.Decoder(_Page).decode


def check(bootstrap: Bootstrap, on_reset: OnReset, at: str | None = None) -> None:
    """Refuse options that do not go together: at a reset the server clears its state."""
    if bootstrap not in ("stream", "state"):
        raise ValueError(f"bootstrap is {bootstrap!r}: use stream or state.")
    option = 'bootstrap="state"' if at is None else "at"
    if (bootstrap == "state" or at is not None) and on_reset != "clear":
        raise ValueError(f'{option} needs on_reset="clear", because the server clears at a reset.')


def load_state(
    stream_url: str,
    retry: Retry,
    *,
    selection: Selection | None = None,
    at: str | None = None,
) -> Flow[Loaded | None]:
    """Return the selected state of a stream, all of one offset.

    Without `at` it is the current state, or None if the server does not have it. With `at` it is
    the state at that offset, and every failure is raised.
    """
    try:
        return (yield from _load(stream_url, retry, selection or Selection(), at or NOW))
    except (PenstockError, msgspec.DecodeError) as error:
        if at is None:
            return None
        if isinstance(error, msgspec.DecodeError):
            raise ProtocolError(f"The server did not return a state: {error}.") from None
        raise


def _load(stream_url: str, retry: Retry, selection: Selection, at: str) -> Flow[Loaded]:
    """Return the state at an offset. The current state of a stream that has a successor is that of
    the successor."""
    base, prefix, path = stream_url.partition(STREAM_PREFIX)
    if not prefix:
        raise ProtocolError(f"{stream_url} is not the URL of a stream of a Penstock server.")
    entities: dict[Entity, bytes] = {}
    first = {"limit": str(limits.STATE_LIMIT_MAX), **selection.query}
    if at != NOW:
        first["offset"] = at
    params = first
    seen = {stream_url}
    while True:
        answer = yield from send(Request("GET", base + STATE_PREFIX + path, params=params), retry)
        page = _decode(answer.body)
        successor = answer.headers.get("stream-successor")
        if successor is not None and at == NOW:
            stream_url = resolved(stream_url, successor)
            if stream_url in seen or len(seen) > limits.LIVE_MOVES_MAX:
                raise StateMoved(
                    f"The redirects to {stream_url} form a circle. Append the state to one of the "
                    "streams.",
                    location=stream_url,
                )
            seen.add(stream_url)
            base, _, path = stream_url.partition(STREAM_PREFIX)
            entities, params = {}, first
            continue
        for type, keys in page.types.items():
            for key, value in keys.items():
                entities[type, key] = bytes(value)
        if page.next is None:
            return Loaded(page.offset, entities, stream_url)
        params = {**params, "offset": page.offset, "after": page.next}
