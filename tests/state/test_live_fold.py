"""Any events, cut into any batches: the state is the fold, and so is what listeners were told."""

from __future__ import annotations

import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.batches import Batch
from penstock.state import Backend, MemoryBackend, SqliteBackend, delete, reset, upsert
from penstock.state.json import decode_value
from penstock.state.live.core import LiveCore
from penstock.state.live.rules import Rules
from penstock.state.lookup import token

types = st.sampled_from(["user", "flag"])
keys = st.sampled_from("ab")
values = st.fixed_dictionaries({"city": st.sampled_from(["Oslo", "Rome", 1, True, None])})
changes = st.builds(upsert, types, keys, values) | st.builds(delete, types, keys)
events = changes | changes | changes | st.builds(reset)
streams = st.lists(st.lists(events, min_size=1, max_size=6), min_size=2, max_size=6)


def fold(batches: list[list[Any]]) -> dict[tuple[str, str], Any]:
    state: dict[tuple[str, str], Any] = {}
    for event in (event for batch in batches for event in batch):
        if not event.headers.operation:
            state = {}
        elif event.operation == "delete":
            state.pop((event.type, event.key), None)
        else:
            state[event.type, event.key] = event.value
    return state


def apply(core: LiveCore, number: int, taken: list[Any]) -> None:
    batch = Batch(
        offset=core.position.offset,
        next_offset=f"{number:04d}",
        up_to_date=True,
        closed=False,
        content_type="application/json",
        data=b"[" + b",".join(event.to_json() for event in taken) + b"]",
    )
    planning = core.plan(batch)
    try:
        next(planning)
    except StopIteration as stop:
        core.notify(core.commit(stop.value))


def entities(core: LiveCore) -> dict[tuple[str, str], Any]:
    return {
        (type, key): decode_value(raw) for type in core.types() for key, raw in core.items(type)
    }


@settings(max_examples=100)
@given(streams)
def test_both_backends_and_the_listeners_agree_with_the_fold(batches: list[list[Any]]) -> None:
    expected = fold(batches)
    with tempfile.TemporaryDirectory() as folder:
        for backend in (MemoryBackend(), SqliteBackend(f"{folder}/state.db")):
            check(backend, batches, expected)


def check(backend: Backend, batches: list[list[Any]], expected: dict[Any, Any]) -> None:
    core = LiveCore("stream", backend, Rules(), {"user": ("city",)})
    reported: dict[tuple[str, str], Any] = {}

    wrong: list[Any] = []  # what a listener raises is only logged

    def listen(type: str, key: str, old: Any, new: Any) -> None:
        if reported.get((type, key)) != old:
            wrong.append((type, key, old, new))
        reported[type, key] = new

    core.on_change.append(listen)
    for number, taken in enumerate(batches):
        apply(core, number, taken)
    assert wrong == []
    assert entities(core) == expected
    assert {entity: value for entity, value in reported.items() if value is not None} == expected
    for city in ("Oslo", "Rome", 1, True, None):
        keys = {key for key, _ in core.find("user", "city", token(city))}
        assert keys == {
            key
            for (type, key), value in expected.items()
            if type == "user" and token(value["city"]) == token(city)
        }
    core.close()
