"""`Stream.check_invariants`: fields that contradict each other are noticed, after every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import Overloaded
from penstock.log.decide import committed
from penstock.log.disk.segment import SegmentInfo
from penstock.log.mutations import MetaMutation
from penstock.log.stream import Stream
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState
from tests.unit.log.bench import Bench, with_bench


def healthy() -> Stream:
    stream = Stream(1, "a", StreamConfig("text/plain", None, None), 0)
    stream.durable = True
    stream.add_bytes(b"12345", 1, 7)
    stream.set_producer(Producer("p", 0, 0))
    stream.reset_pending()
    stream.check_invariants()
    return stream


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("earliest", 6),
        ("earliest", -1),
        ("earliest", 1),  # pending_earliest is before it
        ("earliest_ordinal", 2),
        ("own_start", 3),
        ("tail", 4),
        ("tail", 6),
        ("count", 2),
        ("closed", True),
        ("closed_by", Producer("p", 0, 0)),
        ("stream_seq", "1"),
        ("meta", {"name": b""}),
        ("soft_deleted", True),
        ("forks", 1),  # and pinned is None
        ("pinned", 0),  # and there are no forks
        ("in_flight", -1),
        ("deleting", True),
        ("pending_tail", 4),
        ("pending_tail", 6),
        ("pending_count", 0),
        ("pending_count", 2),
        ("pending_earliest", 1),
        ("pending_earliest_ordinal", 1),
        ("pending_forks", -1),
        ("pending_closed", True),
        ("pending_closed_by", Producer("p", 0, 0)),
        ("pending_seq", "1"),
        ("pending_meta", {"name": b""}),
        ("pending_producers", {"p": ProducerState(0, 1)}),
        ("pending_soft_deleted", True),
        ("producer_total", 0),
        ("segments", (SegmentInfo(0, 3, 0, 0, 0, 0),)),
    ],
)
def test_a_field_that_contradicts_the_others_is_noticed(field: str, value: Any) -> None:
    stream = healthy()
    setattr(stream, field, value)
    with pytest.raises(AssertionError, match="Stream 'a' breaks"):
        stream.check_invariants()


@pytest.mark.parametrize(
    ("field", "value"),
    [("pending_tail", 9), ("pending_count", 2), ("pending_closed", True), ("deleting", True)],
)
def test_what_is_pending_may_be_ahead_while_it_is_in_flight(field: str, value: Any) -> None:
    stream = healthy()
    setattr(stream, field, value)
    stream.in_flight = 1
    stream.check_invariants()


def test_a_stream_that_is_gone_promises_nothing() -> None:
    stream = healthy()
    stream.deleted, stream.tail = True, 99
    stream.check_invariants()


def _commit(bench: Bench, mutation: MetaMutation) -> None:
    bench.engine._commits.committed([mutation])


def _fail(bench: Bench, mutation: MetaMutation) -> None:
    bench.engine._commits.failed([mutation], Overloaded("The disk is slow."))


@pytest.mark.parametrize("end", [_commit, _fail])
def test_a_broken_invariant_is_noticed_after_the_batch(
    end: Callable[[Bench, MetaMutation], None], tmp_path: Any
) -> None:
    @with_bench()
    async def check(bench: Bench) -> None:
        await bench.create("a", b"1")
        stream = bench.engine.find("a", touch=False)
        mutation = MetaMutation(stream, None, name="x", value=b"")
        stream.in_flight = 1
        end(bench, mutation)
        stream.in_flight = 1
        stream.count -= 2
        with pytest.raises(AssertionError, match="earliest_ordinal <= count"):
            end(bench, mutation)
        stream.count += 2

    check(tmp_path)


def test_the_tests_check_invariants() -> None:
    assert committed.CHECKS_INVARIANTS
