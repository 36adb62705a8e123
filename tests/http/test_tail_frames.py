"""The tail of a stream between two nodes: frames that come in any pieces, and a copy that takes
only what follows."""

from __future__ import annotations

import pytest

from penstock.http.cluster.replica import ReplicaEngine, replica_of
from penstock.http.forwarding.tail_frames import (
    ONE_BEAT,
    Hello,
    TailFrame,
    TailParser,
    encode_frame,
    encode_hello,
)
from penstock.http.forwarding.tails import WINDOW_BYTES

HELLO = Hello(7, "text/plain", 60, None, 1, 0, ((4, 9),), 10)


def frame(wire: bytes, end: int, *, earliest: int = 0, closed: bool = False) -> bytes:
    return encode_frame(wire, end, earliest, closed=closed, current=True)


def test_frames_are_the_same_in_whatever_pieces_they_come() -> None:
    data = encode_hello(HELLO) + frame(b"abc", 13) + ONE_BEAT + frame(b"", 13, closed=True)
    for size in range(1, len(data)):
        parser, frames = TailParser(), list[TailFrame]()
        for at in range(0, len(data), size):
            frames += parser.feed(data[at : at + size])
        assert parser.hello == HELLO
        assert [each.wire for each in frames] == [b"abc", b"", b""]
        assert [each.is_beat for each in frames] == [False, True, False]
        assert [each.is_closed for each in frames] == [False, False, True]


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", encode_hello(HELLO) + b"\x00\xff" + bytes(30)],
    ids=["a hello without an end", "no hello", "a frame without an end"],
)
def test_what_is_no_tail_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"hello|frame"):
        TailParser().feed(data)


def test_a_copy_takes_only_what_follows_it() -> None:
    engine = ReplicaEngine(replica_of("a", HELLO), lambda: None)
    stream = engine.stream
    assert engine.token(stream, 12) == f"{9:016d}_{12:016d}"  # of the generation since a restore
    assert engine.add(TailFrame(2, b"abc", 13, 0))
    for start in (12, 14):
        assert not engine.add(TailFrame(2, b"x", start + 1, 0))
    assert (stream.tail, engine.read_now(stream, 10, 13)) == (13, b"abc")
    assert engine.is_current()
    assert engine.add(TailFrame(0, b"de", 15, 0))
    assert not engine.is_current()


def test_a_copy_keeps_the_last_bytes_and_nothing_that_was_trimmed() -> None:
    engine = ReplicaEngine(replica_of("a", HELLO), lambda: None)
    stream = engine.stream
    for _ in range(30):
        piece = b"x" * 20_000
        assert engine.add(TailFrame(0, piece, stream.tail + len(piece), 0))
    assert WINDOW_BYTES <= stream.tail - stream.earliest < WINDOW_BYTES + 20_000
    engine.forget_before(stream.tail - 5)
    assert stream.earliest == stream.tail - 5
    assert engine.read_now(stream, stream.tail - 5, stream.tail) == b"xxxxx"
