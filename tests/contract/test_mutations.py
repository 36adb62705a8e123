"""What a store does with mutations: applied in order, told in batches, answered when durable."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.errors import Overloaded
from penstock.log.mutations import Barrier, Mutation
from penstock.protocol.headers import Producer
from penstock.protocol.producer import ProducerState
from tests.contract.rig import BYTES, Rig, on_stores, wire


@on_stores()
async def test_a_created_stream_is_durable_with_its_first_bytes(rig: Rig) -> None:
    mutation = rig.make_create("a/b", [b"1", b"22"])
    assert not mutation.stream.durable
    assert await rig.submit(mutation) == "created a/b"
    stream = mutation.stream
    assert stream.durable
    assert (stream.tail, stream.count, stream.closed) == (7, 2, False)
    assert await rig.content(stream) == b"1,\n22,\n"


@on_stores()
async def test_a_stream_can_be_created_closed(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"], closed=True)
    assert stream.closed
    assert (await rig.store.list_streams("", "", 1))[0].closed


@on_stores()
async def test_an_append_moves_tail_and_count_and_keeps_producer_and_sequence(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1", b"2"], producer=Producer("p", 3, 0), stream_seq="s1")
    assert (stream.tail, stream.count, stream.stream_seq) == (6, 2, "s1")
    assert stream.producers == {"p": ProducerState(3, 0)}
    await rig.append(stream, [b"3"])
    assert stream.stream_seq == "s1"
    assert await rig.content(stream) == wire([b"1", b"2", b"3"])


@on_stores()
async def test_a_byte_stream_keeps_bytes_as_they_are(rig: Rig) -> None:
    stream = await rig.create("a", [b"\r\n\0"], config=BYTES)
    await rig.append(stream, [b"\xff,\n"])
    assert await rig.content(stream) == b"\r\n\0\xff,\n"


@on_stores()
async def test_an_append_that_closes_remembers_who_closed(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1"], closes=True, producer=Producer("p", 0, 0))
    assert stream.closed
    assert stream.closed_by == Producer("p", 0, 0)
    assert stream.tail == 3


@on_stores()
async def test_a_bare_close_appends_nothing(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    await rig.append(stream, [], closes=True)
    assert (stream.closed, stream.tail, stream.count) == (True, 3, 1)


@on_stores()
async def test_named_values_are_kept_replaced_and_taken_away(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    await rig.set_meta(stream, "x", b"\0old")
    await rig.set_meta(stream, "y", b"")
    await rig.set_meta(stream, "x", b"new")
    assert stream.meta == {"x": b"new", "y": b""}
    await rig.set_meta(stream, "y", None)
    assert stream.meta == {"x": b"new"}
    assert (stream.tail, stream.count) == (3, 1)


@on_stores()
async def test_a_deleted_stream_is_neither_loaded_nor_listed(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    await rig.settle()
    assert await rig.submit(rig.make_delete(stream)) == "deleted"
    assert stream.deleted
    assert rig.store.load("a") is None
    assert await rig.paths() == []
    await rig.settle()
    assert rig.store.load("a") is None
    assert await rig.paths() == []


@on_stores()
async def test_a_path_can_be_used_again_and_gets_a_later_generation(rig: Rig) -> None:
    old = await rig.create("a", [b"1"])
    await rig.settle()
    await rig.delete(old)
    new = await rig.create("a", [b"2"])
    assert new.id > old.id
    await rig.settle()
    assert [(info.path, info.id) for info in await rig.store.list_streams("", "", 9)] == [
        ("a", new.id)
    ]
    assert await rig.content(new) == wire([b"2"])


@on_stores()
async def test_delete_and_create_in_one_turn_leave_the_new_stream(rig: Rig) -> None:
    old = await rig.create("a", [b"1"])
    create = rig.make_create("a", [b"2"])
    rig.submit(rig.make_delete(old))
    await rig.submit(create)
    assert old.deleted
    infos = await rig.store.list_streams("", "", 9)
    assert [(info.id, info.tail) for info in infos] == [(create.stream.id, 3)]


@on_stores()
async def test_a_creation_can_replace_an_expired_stream_in_one_step(rig: Rig) -> None:
    old = await rig.create("a", [b"1"])
    await rig.settle()
    new = await rig.create("a", [b"2"], replaces=old)
    assert old.deleted
    assert not new.deleted
    await rig.settle()
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]


@on_stores()
async def test_a_late_end_of_a_replaced_stream_leaves_its_successor_alone(rig: Rig) -> None:
    old = await rig.create("a", [b"1"])
    new = await rig.create("a", [b"2"], replaces=old)
    await rig.delete(old)
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]
    await rig.settle()
    assert [info.id for info in await rig.store.list_streams("", "", 9)] == [new.id]
    assert await rig.content(rig.find("a")) == wire([b"2"])


@on_stores()
async def test_mutations_of_one_turn_are_told_as_one_batch_in_their_order(rig: Rig) -> None:
    a, b = rig.make_create("a"), rig.make_create("b")
    append = rig.make_append(a.stream, [b"1"], start=0)
    barrier = Barrier("passed")
    delete = rig.make_delete(b.stream)
    submitted = [a, b, append, barrier, delete]
    futures = [rig.submit(entry) for entry in submitted]
    await asyncio.gather(*futures)
    assert rig.observer.batches == [[a, b, append, delete]]


@on_stores()
async def test_the_observer_is_told_before_futures_are_resolved(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1"])
    assert len(rig.observer.mutations) == 2
    assert rig.observer.early == []


@on_stores()
async def test_changes_are_applied_when_the_observer_is_told(rig: Rig) -> None:
    seen: list[tuple[int, bool]] = []
    stream = await rig.create("a")

    def look(batch: Sequence[Mutation]) -> None:
        seen.append((stream.tail, stream.closed))

    rig.observer.committed = look  # type: ignore[method-assign]
    await rig.append(stream, [b"1"], closes=True)
    assert seen == [(3, True)]


@on_stores()
async def test_many_mutations_keep_their_order_over_many_batches(rig: Rig) -> None:
    stream = await rig.create("a")
    submitted, start = [], 0
    for number in range(200):
        messages = [b'"%d %s"' % (number, b"x" * (number % 40))]
        submitted.append(rig.make_append(stream, messages, start=start))
        start += len(submitted[-1].payload)
    await asyncio.gather(*[rig.submit(mutation) for mutation in submitted])
    assert rig.observer.mutations[1:] == submitted
    assert await rig.content(stream) == b"".join(each.payload for each in submitted)
    assert stream.count == 200


@on_stores()
async def test_each_mutation_of_a_stream_raises_its_lsn(rig: Rig) -> None:
    stream = await rig.create("a")
    first = stream.applied_lsn
    await rig.append(stream, [b"1"])
    second = stream.applied_lsn
    await rig.barrier()
    await rig.append(stream, [b"2"])
    assert 0 < first < second < stream.applied_lsn


@on_stores()
async def test_a_barrier_is_passed_after_what_came_before_it(rig: Rig) -> None:
    order: list[str] = []
    create = rig.submit(rig.make_create("a"))
    barrier = rig.submit(Barrier("passed"))
    create.add_done_callback(lambda _: order.append("create"))
    barrier.add_done_callback(lambda _: order.append("barrier"))
    assert await barrier == "passed"
    await rig.barrier()
    assert order == ["create", "barrier"]


@on_stores()
async def test_a_caller_who_gives_up_does_not_disturb_the_rest_of_the_batch(rig: Rig) -> None:
    first, second = rig.make_create("a"), rig.make_create("b")
    rig.submit(first).cancel()
    assert await rig.submit(second) == "created b"
    assert first.stream.durable
    assert await rig.paths() == ["a", "b"]


@on_stores()
async def test_no_generation_is_given_out_twice(rig: Rig) -> None:
    ids = [rig.store.next_id() for _ in range(5)]
    stream = await rig.create("a")
    assert [*ids, stream.id] == sorted({*ids, stream.id})
    assert ids[0] > 0


@on_stores()
async def test_closing_the_store_finishes_what_is_queued(rig: Rig) -> None:
    stream = await rig.create("a")
    queued = [rig.submit(rig.make_append(stream, [b"1"], start=3 * n)) for n in range(3)]
    await rig.store.close()
    assert [future.result() for future in queued] == ["appended"] * 3
    await rig.open()


@on_stores(append_queue_bytes_max=200)
async def test_a_full_queue_takes_no_more_until_it_is_written(rig: Rig) -> None:
    stream = await rig.create("a")
    rig.store.admit(10_000)  # alone, even a large body is taken
    queued = rig.submit(rig.make_append(stream, [b"1" * 150]))
    with pytest.raises(Overloaded):
        rig.store.admit(150)
    await queued
    rig.store.admit(150)


@on_stores()
async def test_a_working_store_is_ready_and_writable(rig: Rig) -> None:
    assert rig.store.health() == (True, True, None)
    rig.store.admit(1)


@on_stores()
async def test_commits_are_counted(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1"])
    assert rig.store.stats.commits == 2
    assert rig.store.stats.commit_records.total == 2
