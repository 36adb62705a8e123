"""Both clients against the reference server of the protocol: Node, from npm."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from penstock import errors
from tests.client.conftest import QUICK
from tests.client.driver import Connect
from tests.client.test_follow import TEXT_PARTS
from tests.conformance.reference import Reference, reference_server
from tests.conformance.suite import find_node

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(find_node() is None, reason="there is no `node`: `make test` installs one"),
]
MODES = ["auto", "sse", "long-poll"]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    with reference_server(long_poll_ms=300) as running:
        yield running


@pytest.fixture
def stream(connect: Connect, reference: Reference, name: str, request: Any) -> Any:
    """A stream that no other test uses, by its full URL: this server has paths of its own."""
    shell = request.node.callspec.params["connect"]
    return connect(reference.url, retry=QUICK).stream(f"{reference.url}/{shell}/{name}")


def test_stream_is_created_once(stream: Any) -> None:
    created = stream.create("text/plain", ttl_s=3600)
    assert created.created
    assert not stream.ensure("text/plain", ttl_s=3600).created
    with pytest.raises(errors.StreamExists):
        stream.create("application/json")
    head = stream.head()
    assert (head.content_type, head.offset) == ("text/plain", created.offset)
    assert head.ttl_s is not None
    assert not head.closed


def test_what_is_appended_is_read(stream: Any) -> None:
    stream.create()
    offset = stream.append({"n": 1}).offset
    stream.append_many([[2], "drei", None])
    assert stream.read_json() == [{"n": 1}, [2], "drei", None]
    read = stream.read(offset)
    assert read.messages == [[2], "drei", None]
    assert read.up_to_date
    assert stream.read(read.next_offset).messages == []


def test_bytes_are_read_as_they_were_appended(stream: Any) -> None:
    stream.create("application/octet-stream")
    stream.append(bytes(range(256)))
    assert stream.read_bytes() == bytes(range(256))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "image/png"])
def test_stream_is_followed_to_its_end(
    stream: Any, reference: Reference, mode: str, content_type: str
) -> None:
    stream.create(content_type)
    values: list[Any] = [1, {"two": 2}, "three", None]
    encoded = [b"1", b'{"two":2}', b'"three"', b"null"]
    is_json = content_type == "application/json"
    parts = values if is_json else encoded
    stream.append(parts[0])
    follow = stream.follow(mode=mode)
    batches = [next(follow)]
    for part in parts[1:]:
        stream.append(part)
        batches.append(next(follow))
    stream.close()
    batches += list(follow)
    assert batches[-1].closed
    assert all(one.next_offset == two.offset for one, two in pairwise(batches))
    if is_json:
        assert [message for batch in batches for message in batch.messages] == values
    else:
        assert b"".join(batch.data for batch in batches) == b"".join(encoded)


@pytest.mark.parametrize("mode", MODES)
def test_text_has_the_same_bytes_live_as_in_a_read(stream: Any, mode: str) -> None:
    """This server sends text as text: its events alone would lose line ends and bytes."""
    stream.create("text/plain")
    batches = []
    with stream.follow(mode=mode) as follow:
        next(follow)
        for part in TEXT_PARTS:
            stream.append(part)
            batches.append(next(follow))
        stream.close()
        batches += list(follow)
        assert follow.mode == ("sse" if mode == "sse" else "long-poll")
    read = stream.read()
    assert read.data == b"".join(TEXT_PARTS)
    assert b"".join(batch.data for batch in batches) == read.data
    assert "".join(batch.text for batch in batches) == read.text


@pytest.mark.parametrize("mode", MODES)
def test_waiting_reader_is_told_by_the_server(stream: Any, reference: Reference, mode: str) -> None:
    """Longer than one long-poll: several empty answers come before the news."""
    stream.create("text/plain")
    follow = stream.follow(mode=mode, idle_timeout_s=0.8)
    assert [(batch.data, batch.up_to_date) for batch in follow] == [(b"", True)]
    stream.append("news")
    with stream.follow(follow.offset, mode=mode) as resumed:
        assert next(resumed).text == "news"


def test_producer_stores_everything_once(stream: Any) -> None:
    stream.create()
    producer = stream.producer("p", in_flight_max=5, batch_items_max=3)
    for number in range(100):
        producer.append(number)
    producer.flush()
    assert producer.pending_count == 0
    assert stream.read_json() == list(range(100))
    producer.close()


def test_producer_claims_an_epoch(stream: Any) -> None:
    stream.create("text/plain")
    stream.append("theirs,", producer=("p", 4, 0))
    with pytest.raises(errors.StaleEpoch) as stale:
        stream.append("no", producer=("p", 0, 0))
    assert stale.value.epoch == 4
    producer = stream.producer("p", auto_claim=True)
    producer.append("ours")
    producer.close()
    assert producer.epoch == 5
    assert stream.read_text() == "theirs,ours"


def test_gaps_and_duplicates_are_told_apart(stream: Any) -> None:
    stream.create("text/plain")
    first = stream.append("a", producer=("p", 0, 0))
    assert (first.duplicate, first.producer_seq) == (False, 0)
    again = stream.append("a", producer=("p", 0, 0))
    assert (again.duplicate, again.offset) == (True, first.offset)
    with pytest.raises(errors.SequenceGap) as gap:
        stream.append("c", producer=("p", 0, 2))
    assert (gap.value.expected, gap.value.received) == (1, 2)


def test_producer_closes_the_stream(stream: Any) -> None:
    stream.create()
    producer = stream.producer("p")
    producer.append(1)
    end = producer.close_stream(2)
    assert end.closed
    read = stream.read()
    assert (read.messages, read.closed, read.next_offset) == ([1, 2], True, end.offset)
    with pytest.raises(errors.StreamClosed):
        stream.append(3)


def test_stream_is_closed_and_deleted(stream: Any) -> None:
    stream.create("text/plain")
    end = stream.close("last").offset
    assert stream.close().offset == end
    assert stream.head().closed
    stream.delete()
    assert not stream.exists()
    with pytest.raises(errors.StreamNotFound):
        stream.delete()
    with pytest.raises(errors.StreamNotFound):
        next(stream.follow())
