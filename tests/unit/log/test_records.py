"""Records come back as they were written, and nothing else passes for one."""

from __future__ import annotations

import struct

import pytest

from penstock.log.append_record import encode_append
from penstock.log.records import (
    AppendRecord,
    CreateMeta,
    CreateRecord,
    DeleteRecord,
    MetaRecord,
    SnapshotRecord,
    TrimRecord,
    decode_records,
    encode_create,
    encode_delete,
    encode_meta,
    encode_snapshot,
    encode_trim,
)
from penstock.log.stream import ForkPoint
from penstock.protocol.headers import Producer

APPENDS = [
    AppendRecord(1, 0, 0, 5, True, None, None, b""),
    AppendRecord(2**63, 2**60, 2**32 - 1, 2**55, False, None, None, b"\x00\xffbytes\n"),
    AppendRecord(7, 3, 2, 9, False, Producer("p", 0, 0), None, b"x"),
    AppendRecord(7, 3, 2, 9, False, None, "é" * 100, b"x"),
    AppendRecord(7, 3, 2, 9, True, Producer("ü" * 120, 2**53 - 1, 2**53 - 1), "1", b"x" * 1000),
]


def append_bytes(record: AppendRecord) -> bytes:
    return encode_append(
        record.stream_id,
        record.start,
        record.count,
        record.time_us,
        record.payload,
        closes=record.closes,
        producer=record.producer,
        stream_seq=record.stream_seq,
    )


@pytest.mark.parametrize("record", APPENDS)
def test_an_append_comes_back_as_it_was_written(record: AppendRecord) -> None:
    assert list(decode_records(append_bytes(record))) == [record]


@pytest.mark.parametrize(
    "meta",
    [
        CreateMeta("a", "text/plain", 1),
        CreateMeta("a/%C3%A9", "application/json", 2**55, ttl_s=0, closed=True, count=3),
        CreateMeta("a", "x/y", 1, expires_at_us=0, replaces=2**60),
    ],
)
@pytest.mark.parametrize("payload", [b"", b"1,\n", b'{"path":"other"}'])
def test_a_create_comes_back_as_it_was_written(meta: CreateMeta, payload: bytes) -> None:
    assert list(decode_records(encode_create(9, meta, payload))) == [CreateRecord(9, meta, payload)]


@pytest.mark.parametrize("expired", [True, False])
def test_a_delete_comes_back_as_it_was_written(expired: bool) -> None:
    record = DeleteRecord(2**63, 2**55, expired)
    assert list(decode_records(encode_delete(2**63, 2**55, expired=expired))) == [record]


FORK = CreateMeta(
    "b", "x/y", 1, count=1, source_id=3, source_path="a", fork_position=7, fork_count=2, earliest=4
)


def test_a_fork_comes_back_as_it_was_written() -> None:
    raw = encode_create(9, FORK, b"payload")
    assert raw[4] == 5, "a Penstock without forks has to refuse it"
    assert list(decode_records(raw)) == [CreateRecord(9, FORK, b"payload")]
    assert FORK.fork == ForkPoint(3, "a", 7, 2)
    assert CreateMeta("a", "x/y", 1).fork is None


@pytest.mark.parametrize(
    "record",
    [
        DeleteRecord(1, 2, False, soft=True),
        DeleteRecord(1, 2, True, released=2**63),
        DeleteRecord(9, 2, False, cascade=(7, 5, 2**60)),
        DeleteRecord(9, 2, True, released=3, cascade=(7,)),
    ],
)
def test_a_delete_of_forks_and_sources_comes_back(record: DeleteRecord) -> None:
    raw = encode_delete(
        record.stream_id,
        record.time_us,
        expired=record.expired,
        soft=record.soft,
        released=record.released,
        cascade=record.cascade,
    )
    assert list(decode_records(raw + raw)) == [record, record]


def test_a_snapshot_comes_back_as_it_was_written() -> None:
    record = SnapshotRecord(2**63, 2**60, 2**32 - 1, 2**55, 2**61, b"1,\n\x00")
    raw = encode_snapshot(2**63, 2**60, 2**32 - 1, 2**55, 2**61, b"1,\n\x00")
    assert list(decode_records(raw + raw)) == [record, record]


def test_a_trim_comes_back_as_it_was_written() -> None:
    record = TrimRecord(2**63, 2**60, 5, 2**55)
    assert list(decode_records(encode_trim(2**63, 2**60, 5, 2**55))) == [record]


@pytest.mark.parametrize("value", [None, b"", b"\x00value\n"])
def test_a_named_value_comes_back_as_it_was_written(value: bytes | None) -> None:
    assert list(decode_records(encode_meta(4, "é", value))) == [MetaRecord(4, "é", value)]


def test_records_of_a_batch_come_back_in_order() -> None:
    create = CreateRecord(1, CreateMeta("a", "x/y", 1), b"payload")
    delete = DeleteRecord(1, 2, False)
    body = encode_create(1, create.meta, b"payload") + b"".join(map(append_bytes, APPENDS))
    decoded = list(decode_records(body + encode_delete(1, 2, expired=False)))
    assert decoded == [create, *APPENDS, delete]


def test_an_empty_batch_has_no_records() -> None:
    assert list(decode_records(b"")) == []


@pytest.mark.parametrize("kind", [0, 4, 8, 10, 255])
def test_a_kind_of_a_newer_version_is_refused_not_skipped(kind: int) -> None:
    raw = bytearray(encode_delete(1, 2, expired=False))
    raw[4] = kind
    with pytest.raises(ValueError, match="newer Penstock"):
        list(decode_records(bytes(raw)))


@pytest.mark.parametrize("length", [0, 15, 25, 2**32 - 1])
def test_a_record_that_claims_a_wrong_length_is_refused(length: int) -> None:
    raw = struct.pack("<I", length) + encode_delete(1, 2, expired=False)[4:]
    with pytest.raises(ValueError, match="claims"):
        list(decode_records(raw))


@pytest.mark.parametrize("record", APPENDS)
def test_a_record_cut_anywhere_is_an_error_never_another_record(record: AppendRecord) -> None:
    raw = append_bytes(record)
    for length in range(1, len(raw)):
        with pytest.raises((ValueError, struct.error)):
            list(decode_records(raw[:length]))
