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
from penstock.errors import PenstockError
from penstock.state.live.moves import resolved
from penstock.state.live.plan import Entity
from penstock.state.live.rules import OnReset

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


def check(bootstrap: Bootstrap, on_reset: OnReset) -> None:
    """Refuse options that do not go together: at a reset the server clears its state."""
    if bootstrap not in ("stream", "state"):
        raise ValueError(f"bootstrap is {bootstrap!r}: use stream or state.")
    if bootstrap == "state" and on_reset != "clear":
        raise ValueError(
            'bootstrap="state" needs on_reset="clear", because the server clears at a reset.'
        )


def load_state(stream_url: str, retry: Retry) -> Flow[Loaded | None]:
    """Return the state of a stream, all of one offset; None if the server does not have it.

    The state of a stream that has a successor is that of the successor.
    """
    base, prefix, path = stream_url.partition(STREAM_PREFIX)
    if not prefix:
        return None
    entities: dict[Entity, bytes] = {}
    params = {"limit": str(limits.STATE_LIMIT_MAX)}
    seen = {stream_url}
    while True:
        request = Request("GET", base + STATE_PREFIX + path, params=params)
        try:
            answer = yield from send(request, retry)
            page = _decode(answer.body)
            successor = answer.headers.get("stream-successor")
            if successor is not None:
                stream_url = resolved(stream_url, successor)
        except (PenstockError, msgspec.DecodeError):
            return None
        if successor is not None:
            if stream_url in seen or len(seen) > limits.LIVE_MOVES_MAX:
                return None
            seen.add(stream_url)
            base, _, path = stream_url.partition(STREAM_PREFIX)
            entities, params = {}, {"limit": str(limits.STATE_LIMIT_MAX)}
            continue
        for type, keys in page.types.items():
            for key, value in keys.items():
                entities[type, key] = bytes(value)
        if page.next is None:
            return Loaded(page.offset, entities, stream_url)
        params = {**params, "offset": page.offset, "after": page.next}
