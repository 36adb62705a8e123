"""The state of a stream as each of our readers has it, through a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx2

from penstock.client.sync.stream import Stream
from penstock.state import LiveState, MaterializedState

WAIT_S = 20.0
State = dict[tuple[str, str], Any]
ANY: dict[str, Any] = {"types": {}}


def declare(stream: Stream, document: dict[str, Any] = ANY) -> None:
    url = stream.url.replace("/v1/stream/", "/v1/schema/")
    httpx2.put(url, json=document).raise_for_status()


def materialized(stream: Stream) -> State:
    state = MaterializedState()

    def on_control(event: Any) -> None:
        if event.control == "reset":
            state.clear()

    state.apply_json(stream.read_bytes(), on_control=on_control)
    return {
        (type, key): value for type in state.types for key, value in state.get_type(type).items()
    }


def lived(stream: Stream) -> State:
    with LiveState(stream) as state:
        state.wait_up_to_date(WAIT_S)
        return {
            (t, k): value for t, values in state.to_dict().items() for k, value in values.items()
        }


def served(stream: Stream) -> State:
    types = answer(stream)["types"]
    return {(type, key): value for type, values in types.items() for key, value in values.items()}


def ours(stream: Stream) -> State:
    """What all of ours say of a stream, which is the same."""
    state = materialized(stream)
    assert lived(stream) == state
    assert served(stream) == state
    return state


def answer(stream: Stream, **params: str) -> Any:
    """What /v1/state says."""
    response = httpx2.get(stream.url.replace("/v1/stream/", "/v1/state/"), params=params)
    response.raise_for_status()
    return json.loads(response.content)
