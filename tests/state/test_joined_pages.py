"""Pages that the index joins into JSON itself are the pages that it gives row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.state.server.index import Page, StateIndex, StateQuery
from penstock.state.server.index_batch import VALUE_BYTES_MAX
from penstock.state.server.json_pages import CHUNK_ENTITIES
from tests.state.strategies import changes, controls
from tests.state.test_index import fold


def indexed(*events: Any) -> StateIndex:
    index = StateIndex(None)
    index.begin(1, "s")
    index.apply(1, 0, b"".join(json.dumps(event).encode() + b",\n" for event in events))
    return index


def upsert(type: str, key: str, value: Any) -> dict[str, Any]:
    return {"type": type, "key": key, "value": value, "headers": {"operation": "upsert"}}


def pages(index: StateIndex, **options: Any) -> list[Page]:
    all_pages: list[Page] = []
    after: tuple[str, str] | None = None
    while True:
        page = index.page(StateQuery(1, 0, latest=True, as_json=True, after=after, **options))
        assert page is not None
        all_pages.append(page)
        if not page.more:
            return all_pages
        after = entities(page)[-1][0]


def entities(page: Page) -> list[tuple[tuple[str, str], Any]]:
    if page.joined is None:
        return [((e.type, e.key), e.value and json.loads(e.value)) for e in page.entities]
    decoded = [(type, json.loads(b"{%s}" % members)) for type, members in page.joined.types]
    return [((type, key), value) for type, keys in decoded for key, value in keys.items()]


@given(st.lists(changes() | controls(), max_size=30), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_the_pages_together_are_the_fold_of_the_events(events: list[Any], limit: int) -> None:
    index = indexed(*events)
    all_pages = pages(index, limit=limit)
    together = [entity for page in all_pages for entity in entities(page)]
    assert dict(together) == fold(events)
    assert [entity for entity, _ in together] == sorted(fold(events))
    assert all(page.joined is not None for page in all_pages)
    assert all(len(entities(page)) == limit for page in all_pages[:-1])
    index.close()


@pytest.mark.parametrize("key", ["\0", "a\0b", '"\\', "\x1f\x7f", "ü\U0010ffff", "\u2028"])
def test_any_key_is_written_as_json(key: str) -> None:
    (page,) = pages(indexed(upsert(key, key, "ä"), upsert("k", "k", None)))
    assert dict(entities(page)) == {(key, key): "ä", ("k", "k"): None}
    assert page.joined is not None
    assert page.joined.last == max((key, key), ("k", "k"))


@pytest.mark.parametrize("count", [CHUNK_ENTITIES - 1, CHUNK_ENTITIES, 2 * CHUNK_ENTITIES])
@pytest.mark.parametrize("spare", [0, 1])
def test_a_page_ends_at_its_limit_and_says_whether_there_is_more(count: int, spare: int) -> None:
    index = indexed(*(upsert("t", f"{number:04}", number) for number in range(count + spare)))
    first, *rest = pages(index, limit=count)
    assert len(entities(first)) == count
    assert first.more == bool(spare)
    assert [len(entities(page)) for page in rest] == [1] * spare


def test_a_page_is_bounded_in_bytes() -> None:
    events = [upsert("t", f"{number:04}", "x" * 100) for number in range(4 * CHUNK_ENTITIES)]
    length = len(json.dumps(events[0])) + 2
    index = indexed(*events)
    bytes_max = length * (2 * CHUNK_ENTITIES + 1)
    assert [len(entities(page)) for page in pages(index, limit=10**6, bytes_max=bytes_max)] == [
        2 * CHUNK_ENTITIES,
        2 * CHUNK_ENTITIES,
    ]
    # Less than a chunk fits: row by row, to the last entity that does.
    short = pages(index, limit=10**6, bytes_max=10 * length)
    assert {len(entities(page)) for page in short} == {10}
    assert len(short) == 4 * CHUNK_ENTITIES // 10


def test_values_that_only_the_log_has_are_not_left_out() -> None:
    large = "x" * (VALUE_BYTES_MAX + 1)
    events = [upsert("t", f"{number:04}", number) for number in range(3 * CHUNK_ENTITIES)]
    events[CHUNK_ENTITIES + 5] = upsert("t", f"{CHUNK_ENTITIES + 5:04}", large)
    first, second, *_ = all_pages = pages(indexed(*events), limit=10**6)
    assert first.joined is not None
    assert second.joined is None
    assert [key for page in all_pages for (_, key), _ in entities(page)] == [
        event["key"] for event in events
    ]
