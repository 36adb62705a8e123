"""The parts of the commands that need no process: formats, durations, offsets, percentiles."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest

from penstock import errors
from penstock.cli import terminal
from penstock.cli.commands import ls
from penstock.cli.commands.bench.meter import Meter
from penstock.cli.exits import MEANINGS, exit_code
from penstock.cli.formats import Message, compile_format
from penstock.cli.messages import Splitter, json_messages
from penstock.cli.producer_marks import seekable
from penstock.cli.terminal import printable
from penstock.cli.text import clock_text
from penstock.cli.values import Duration, whole_body
from penstock.client.answers import StreamInfo
from penstock.client.batches import Batch
from penstock.limits import MIB

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


@pytest.mark.parametrize("pattern", ["%q", "%", "\\q", "\\"])
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
    digits = b"9" * 5000
    assert json_messages(b'["\\ud800",' + digits + b"]") == [b'"\\ud800"', digits]
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
    assert printable("a\udcff") == "a\ufffd", "a byte of an argument that is not UTF-8"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The lines of a progress on a terminal of 80 columns, and the clock that it reads."""
    monkeypatch.setattr(terminal, "has_cursor", lambda stream: True)
    monkeypatch.setattr("penstock.cli.system.columns", lambda: 80)
    clock = [100.0]

    def lines(seconds: float = 0.0) -> list[str]:
        clock[0] += seconds
        return capsys.readouterr().err.split("\r\x1b[2K")[1:]

    return terminal.Progress("import orders.jsonl", total=1000 * MIB, now_s=lambda: clock[0]), lines


def test_progress_shows_each_pass_with_its_own_speed_and_the_time_left(drawn: Any) -> None:
    progress, lines = drawn
    progress.begin("reading")
    lines(10.0)
    progress.bytes(500 * MIB)
    (line,) = lines(10.0)
    assert line.startswith("import orders.jsonl  reading  [")
    assert line.endswith("]  50%  500.0 MiB  50.0 MiB/s  0:10 left")
    assert len(line) < 80
    progress.bytes(1000 * MIB)
    assert lines(100.0)[0].endswith("] 100%  1,000.0 MiB  50.0 MiB/s")
    # 600 MiB are from an earlier run, and the 100 s before are of no pass.
    progress.begin("appending", done=600 * MIB)
    (line,) = lines(10.0)
    assert line.endswith("]  60%  600.0 MiB")
    progress.bytes(700 * MIB)
    assert lines()[0].endswith("]  70%  700.0 MiB  10.0 MiB/s  0:30 left")


def test_progress_has_the_speed_of_the_last_seconds(drawn: Any) -> None:
    progress, lines = drawn
    progress.begin("reading")
    for second in range(1, 61):
        lines(1.0)
        progress.bytes(second * MIB)  # 1 MiB/s for a minute
    for second in range(1, 61):
        lines(1.0)
        progress.bytes((60 + 10 * second) * MIB)  # then ten times as fast
    assert "  10.0 MiB/s  0:34 left" in lines()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0:01"), (7, "0:07"), (75, "1:15"), (3600, "1:00:00"), (11_105, "3:05:05")],
)
def test_times_as_a_clock_shows_them(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


def stream_info(path: str, content_type: str = "application/json") -> StreamInfo:
    return StreamInfo(
        path=path,
        offset=offset(0),
        content_type=content_type,
        messages=1,
        bytes=1024,
        closed=False,
        created_at="2026-01-01T00:00:00.000Z",
    )


@pytest.mark.parametrize(
    ("name_width", "columns"),
    [
        (8, ["MESSAGES", "SIZE", "STATE", "CREATED", "CONTENT TYPE", "PATH"]),
        (30, ["MESSAGES", "SIZE", "STATE", "CONTENT TYPE", "PATH"]),
        (50, ["MESSAGES", "SIZE", "STATE", "PATH"]),
        (60, ["MESSAGES", "SIZE", "PATH"]),
        (300, ["MESSAGES", "SIZE", "PATH"]),
    ],
)
def test_a_listing_that_is_too_wide_has_fewer_columns_and_whole_names(
    name_width: int, columns: list[str]
) -> None:
    names = ["a", "b" * name_width]
    head, *lines = ls._long(iter(map(stream_info, names)), width=80)
    assert re.split("  +", head.strip()) == columns
    assert [line.split()[-1] for line in lines] == names
    assert len(lines[1]) <= 80 or name_width == 300


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
