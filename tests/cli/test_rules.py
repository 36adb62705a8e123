"""The parts of the commands that need no process: formats, durations, offsets, percentiles."""

from __future__ import annotations

import click
import pytest

from penstock import errors
from penstock.cli.commands.bench.meter import Meter
from penstock.cli.exits import MEANINGS, exit_code
from penstock.cli.formats import Message, compile_format
from penstock.cli.messages import Splitter, json_messages
from penstock.cli.producer_marks import seekable
from penstock.cli.terminal import printable
from penstock.cli.values import Duration, whole_body
from penstock.client.batches import Batch

MESSAGE = Message("s", b'{"a":1}', "from", "to", 7)


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("", b""),
        ("%s", b'{"a":1}'),
        ("%t/%i %S %o-%O%n", b"s/7 7 from-to\n"),
        (r"100%%\t\x00\\\n", b"100%\t\0\\\n"),
    ],
)
def test_formats(pattern: str, written: bytes) -> None:
    assert compile_format(pattern)(MESSAGE) == written


@pytest.mark.parametrize("pattern", ["%k", "%", "\\q", "\\"])
def test_formats_that_mean_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(click.BadParameter):
        compile_format(pattern)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30s", 30), ("15m", 900), ("2h", 7200), ("7d", 604_800)]
)
def test_durations(text: str, seconds: int) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1.5h", "1w", "h"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("body", "content_type", "content"),
    [
        (b" [1, [2]] ", "application/json", b"1, [2]"),
        (b"[]", "application/json", None),
        (b' {"a": 1}\n', "application/json; charset=utf-8", b'{"a": 1}'),
        (b" x ", "text/plain", b" x "),
        (b"", "text/plain", None),
    ],
)
def test_whole_bodies(body: bytes, content_type: str, content: bytes | None) -> None:
    assert whole_body(body, content_type) == content


def batch(data: bytes, offset: str, next_offset: str, content_type: str) -> Batch:
    return Batch(
        offset=offset,
        next_offset=next_offset,
        up_to_date=True,
        closed=False,
        content_type=content_type,
        data=data,
    )


def test_lines_are_put_together_across_batches() -> None:
    splitter = Splitter("s")
    first = splitter.split(batch(b"one\ntw", "a", "b", "text/plain"))
    assert [(m.data, m.offset, m.next_offset) for m in first] == [(b"one", "a", "a")]
    second = splitter.split(batch(b"o\nthree\nfo", "b", "c", "text/plain"))
    assert [(m.data, m.offset) for m in second] == [(b"two", "a"), (b"three", "b")]
    assert [(m.data, m.offset, m.number) for m in splitter.rest("c")] == [(b"fo", "b", 3)]


def offset(position: int) -> str:
    return f"{1:016d}_{position:016d}"


@pytest.mark.parametrize(
    ("start", "end", "offsets"),
    [
        # Penstock keeps two bytes after each message; others that do not are not guessed at.
        (offset(10), offset(18), [offset(10), offset(13)]),
        ("-1", offset(8), [offset(0), offset(3)]),
        ("-1", offset(9), ["-1", "-1"]),
        (offset(10), offset(16), [offset(10), offset(10)]),
        ("a", "b", ["a", "a"]),
    ],
)
def test_offsets_of_messages(start: str, end: str, offsets: list[str]) -> None:
    messages = list(Splitter("s").split(batch(b"[1,222]", start, end, "application/json")))
    assert [message.offset for message in messages] == offsets
    assert messages[-1].next_offset == end


def test_messages_are_cut_byte_for_byte() -> None:
    data = b'[ {"a": 1.0},\n1e999,"\\ud800",\n[1,\n2] ]'
    assert json_messages(data) == [b'{"a": 1.0}', b"1e999", b'"\\ud800"', b"[1, 2]"]
    with pytest.raises(errors.ProtocolError):
        json_messages(b"{")


@pytest.mark.parametrize(
    ("token", "position"),
    [
        (offset(42), 42),
        ("-1", None),
        ("0_1", None),
        (f"{1:016d}_{10**16 - 1}", None),  # more than an epoch can hold
    ],
)
def test_offsets_that_are_positions(token: str, position: int | None) -> None:
    offset = seekable(token)
    assert (offset and offset.position) == position
    assert offset is None or offset.token == token


def test_percentiles_are_values_that_were_measured() -> None:
    meter = Meter(count=100, duration_s=0)
    while meter.begin():
        meter.add(0.0, messages=2, bytes=3)
    meter._latencies_s = [float(number) for number in range(100, 0, -1)]
    result = meter.result()
    assert result["count"] == 100
    assert result["latency_ms"] == {
        "p50": 50_000.0,
        "p90": 90_000.0,
        "p99": 99_000.0,
        "p99.9": 100_000.0,
        "max": 100_000.0,
    }


def test_nothing_moves_the_cursor() -> None:
    assert printable("a\x1b[31m\tb\n\x9b\u202e") == "a\ufffd[31m\tb\n\ufffd\ufffd"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StreamNotFound, 3),
        (errors.StreamTrimmed, 3),
        (errors.StreamClosed, 4),
        (errors.StaleEpoch, 4),
        (errors.TailMoved, 4),
        (errors.ConnectionFailed, 5),
        (errors.Unauthorized, 6),
        (errors.Forbidden, 6),
        (errors.DiskFull, 1),
        (errors.InvalidJson, 1),
    ],
)
def test_each_failure_has_a_documented_exit_code(
    error: type[errors.PenstockError], code: int
) -> None:
    assert exit_code(error("no")) == code
    assert code in MEANINGS
