"""state watch as a process: lines through a pipe, a table at a terminal, servers that come back."""

from __future__ import annotations

import json
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.helpers.cli import Cli, interrupt, read_line
from tests.helpers.server import running_server

RESET = {"headers": {"control": "reset"}}


def event(key: str, value: Any, operation: str = "upsert", type: str = "user") -> dict[str, Any]:
    return {"type": type, "key": key, "value": value, "headers": {"operation": operation}}


def delete(key: str) -> dict[str, Any]:
    return {"type": "user", "key": key, "headers": {"operation": "delete"}}


@contextmanager
def watching(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with cli.start("state", "watch", *arguments) as process:
        yield process


def changes(process: subprocess.Popen[bytes], count: int) -> list[dict[str, Any]]:
    return [json.loads(read_line(process)) for _ in range(count)]


def test_each_change_is_a_line_from_the_offset_on(cli: Cli) -> None:
    stream = cli.make("lines", event("1", {"n": 1}), event("2", None))
    begin = stream.head().offset
    offsets = [
        stream.append(message).offset
        for message in (event("1", {"n": 2}, "update"), delete("2"), delete("absent"), RESET)
    ]
    stream.append_many([{"no": "event"}, {"headers": {"control": "up-to-date"}}])
    with watching(cli, "lines", "--json", "--at", begin) as process:
        assert changes(process, 4) == [
            {"type": "user", "key": "1", "operation": "update", "old": {"n": 1}, "new": {"n": 2},
             "offset": offsets[0]},
            {"type": "user", "key": "2", "operation": "delete", "old": None, "offset": offsets[1]},
            {"type": "user", "key": "absent", "operation": "delete", "offset": offsets[2]},
            {"type": "user", "key": "1", "operation": "reset", "old": {"n": 2},
             "offset": offsets[3]},
        ]  # fmt: skip
        after = stream.append(event("3", 1.10, "insert")).offset
        assert changes(process, 1) == [
            {"type": "user", "key": "3", "operation": "insert", "new": 1.1, "offset": after}
        ]
        assert interrupt(process) == (130, "")


def test_without_an_offset_it_begins_with_the_state_of_now(cli: Cli) -> None:
    stream = cli.make("now", event("1", "old"))
    with watching(cli, "now", "--json", "--at", "start") as all_of_it:
        assert changes(all_of_it, 1)[0]["new"] == "old"
    with watching(cli, "now", "--json") as process:
        # Whatever it has loaded, the change is after that or in it; the next one is after it.
        number = 0
        while not _ready(process):
            number += 1
            stream.append(event("1", number))
        first = changes(process, 1)[0]
        assert first["old"] == ("old" if first["new"] == 1 else first["new"] - 1)
        stream.close()
        while process.stdout is not None and (line := process.stdout.readline()):
            first = json.loads(line)
        assert first["new"] == number
        assert process.wait(60) == 0


def _ready(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.05)[0])


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ((), ["a1", "a2", "b1", "a1"]),
        (("--type", "user"), ["a1", "a2", "b1"]),
        (("--type", "user", "--prefix", "a"), ["a1", "a2"]),
        (("--type", "flag", "--key", "a1"), ["a1"]),
        (("--type", "none"), []),
    ],
)
def test_filters_choose_what_is_watched(
    cli: Cli, arguments: tuple[str, ...], keys: list[str]
) -> None:
    name = "filter" + "".join(arguments).replace("-", "")
    stream = cli.make(
        name, event("a1", 1), event("a2", 2), event("b1", 3), event("a1", 4, type="flag"), RESET
    )
    stream.close()
    lines = cli.ok("state", "watch", name, "--json", "--at", "start", *arguments).splitlines()
    events = [json.loads(line) for line in lines]
    assert [change["key"] for change in events if change["operation"] == "upsert"] == keys
    gone = [change["key"] for change in events if change["operation"] == "reset"]
    assert sorted(gone) == sorted(keys)


def test_a_reset_that_names_a_place_ahead_skips_to_it(cli: Cli) -> None:
    stream = cli.make("skips")
    stream.append(event("1", "before"))
    position = stream.head().offset
    # The reset names the end of the event after it; both lengths are known beforehand.
    skipped = json.dumps(event("2", "skipped"), separators=(",", ":"))
    generation, at = position.split("_")
    size = len(
        json.dumps({"headers": {"control": "reset", "offset": position}}, separators=(",", ":"))
    )
    target = f"{generation}_{int(at) + size + 2 + len(skipped) + 2:016d}"
    stream.append_many(
        [
            {"headers": {"control": "reset", "offset": target}},
            event("2", "skipped"),
            event("3", "after"),
        ]
    )
    stream.close()
    lines = cli.ok("state", "watch", "skips", "--json", "--at", "start").splitlines()
    events = [json.loads(line) for line in lines]
    assert [(change["key"], change["operation"]) for change in events] == [
        ("1", "upsert"),
        ("1", "reset"),
        ("3", "upsert"),
    ]


def test_a_pipe_without_json_gets_the_lines_of_diff(cli: Cli) -> None:
    stream = cli.make("plain", event("1", "a"), event("1", "b"), delete("1"), delete("2"))
    stream.append_many([event("\x1b[31m", 1), event("a\nb\t", 2), {"no": "event"}])
    stream.close()
    done = cli.run("state", "watch", "plain", "--at", "start")
    assert done.stdout.splitlines() == [
        '+ user 1  "a"',
        '~ user 1  "a" -> "b"',
        '- user 1  "b"',
        "- user 2  (none)",
        "+ user \ufffd[31m  1",
        "+ user a\\nb\\t  2",
    ]
    assert len(cli.ok("state", "show", "plain").splitlines()) == 3
    assert len(cli.ok("state", "diff", "plain", "start").splitlines()) == 2
    assert (done.returncode, done.stderr) == (0, "1 message is not an event\n")


def test_a_terminal_gets_a_table_that_follows(cli: Cli) -> None:
    stream = cli.make("table", event("1", {"name": "Ann"}), event("2", {"name": "Bob"}))
    with cli.terminal("state", "watch", "table") as terminal:
        shown = terminal.wait_for('{"name":"Bob"}')
        assert "\x1b[?1049h" in shown
        assert "table  2 entities at" in shown
        assert "TYPE  KEY  VALUE" in shown
        stream.append_many([event("3", {"name": "Cy"}), event("1", {"name": "Anna"}), delete("2")])
        terminal.wait_for("at " + stream.head().offset)
        shown = terminal.wait_for('{"name":"Cy"}').rpartition("\x1b[H")[2]
        assert '\x1b[33muser  1    {"name":"Anna"}' in shown
        assert '\x1b[31muser  2    {"name":"Bob"}' in shown
        assert '\x1b[32muser  3    {"name":"Cy"}' in shown
        terminal.type("\x03")
        code, shown = terminal.end()
        assert code == 130
        rest = shown.rpartition("\x1b[?1049l")[2]
        assert '{"name":"Anna"}' in rest
        assert "Traceback" not in shown


def test_a_table_that_does_not_fit_has_what_changed_last(cli: Cli) -> None:
    stream = cli.make("long", *(event(f"{n:03}", n) for n in range(200)))
    env = {"LINES": "10", "COLUMNS": "30"}
    with cli.terminal("state", "watch", "long", env=env) as terminal:
        shown = terminal.wait_for("more, which changed")
        assert "user  005  5" in shown
        assert "user  006" not in shown
        assert "… and 194 more" in shown
        stream.append(event("150", "x" * 100))
        shown = terminal.wait_for("user  150").rpartition("\x1b[H")[2]
        assert "user  005" not in shown
        row = next(line for line in terminal.wait_for("…\x1b").splitlines() if "150" in line)
        assert row.count("x") < 30
        terminal.type("\x03")
        assert "x" * 30 not in terminal.end()[1]


def test_a_server_that_restarts_is_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data_dir=data) as server, Cli(server.url, tmp_path) as cli:
        stream = cli.make("kept", event("1", 0))
        with cli.start("state", "watch", "kept", "--json", "--at", "start") as process:
            assert changes(process, 1)[0]["new"] == 0
            for number in range(1, 3):
                server.kill()
                with running_server(data_dir=data, args=["--port", str(server.port)]) as again:
                    stream.append(event("1", number))
                    change = changes(process, 1)[0]
                    assert (change["old"], change["new"]) == (number - 1, number)
                    again.kill()
            code, notes = interrupt(process)
            assert code == 130
            lost = f"Lost the connection to {server.url}; trying again until it is back."
            back = f"Connected to {server.url} again; nothing was missed."
            # An outage that is over at the second attempt is not worth a note.
            assert set(notes.splitlines()) <= {lost, back}


def live_readers(cli: Cli, name: str) -> int:
    """The live readers of a stream that was appended to since the first call."""
    streams = httpx2.get(f"{cli.url}/v1/activity").json()["streams"]
    return sum(each["live_readers"] for each in streams if each["path"] == name)


def test_a_stream_that_is_made_anew_is_a_reset(cli: Cli) -> None:
    assert not live_readers(cli, "anew")
    stream = cli.make("anew", event("1", "old"))
    with watching(cli, "anew", "--json", "--at", "start") as process:
        assert changes(process, 1)[0]["new"] == "old"
        while not live_readers(cli, "anew"):  # a request on its way could meet no stream
            pass
        process.send_signal(signal.SIGSTOP)  # so that it never sees that there is no stream
        stream.delete()
        stream.create()
        stream.append(event("2", "new"))
        process.send_signal(signal.SIGCONT)
        events = changes(process, 2)
        assert [(change["key"], change["operation"]) for change in events] == [
            ("1", "reset"),
            ("2", "upsert"),
        ]
        stream.delete()
        assert process.wait(60) == 3


def test_what_makes_no_sense_is_refused(cli: Cli) -> None:
    assert cli.failed("state", "watch", "s", "--key", "1")[0] == 2
    assert cli.failed("state", "watch", "s", "--type", "a", "--key", "1", "--prefix", "b")[0] == 2
    assert cli.failed("state", "watch", "absent")[0] == 3
    cli.make("watched", event("1", 1))
    code, error = cli.failed("state", "watch", "watched", "--at", "nonsense")
    assert (code, "offset" in error) == (1, True)


def moved_to(path: str) -> dict[str, Any]:
    return {"headers": {"control": "reset", "location": f"/v1/stream/{path}"}}


def test_it_goes_on_in_the_stream_that_a_reset_names(cli: Cli) -> None:
    stream = cli.make("moves", event("1", 1), event("2", 2), event("3", 3))
    other = cli.make("moves-2", event("1", 1), event("2", 20), event("4", 4))
    with watching(cli, "moves", "--json") as process:
        while not _ready(process):
            stream.append(event("0", 0))
        assert changes(process, 1)[0]["key"] == "0"
        stream.close(moved_to("moves-2"))
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["key"] != "4":
            seen += changes(process, 1)
        different = [each for each in seen if each["operation"] == "reset"]
        assert [(each["key"], each.get("old"), each.get("new")) for each in different] == [
            ("0", 0, None), ("2", 2, 20), ("3", 3, None), ("4", None, 4),
        ]  # fmt: skip
        other.append(event("5", 5))
        assert changes(process, 1)[0]["key"] == "5"
        assert interrupt(process)[0] == 130


def test_a_stream_that_has_moved_is_shown_where_it_is(cli: Cli) -> None:
    stream = cli.make("moved", event("1", 1))
    other = cli.make("moved-2", event("1", 1))
    answer = httpx2.put(f"{stream.url}/__ds/successor", json={"location": "/v1/stream/moved-2"})
    assert answer.status_code == 200
    stream.close(moved_to("moved-2"))
    assert "redirects to  /v1/stream/moved-2" in cli.ok("head", "moved")
    with watching(cli, "moved", "--json") as process:
        number = 1
        while not _ready(process):
            number += 1
            other.append(event("1", number))
        first = changes(process, 1)[0]
        assert first["old"] == first["new"] - 1
        assert "The stream redirects to" in interrupt(process)[1]


def test_watching_in_a_circle_is_an_error(cli: Cli) -> None:
    for one, another in (("ring-1", "ring-2"), ("ring-2", "ring-1")):
        stream = cli.make(one, event("1", 1))
        location = {"location": f"/v1/stream/{another}"}
        httpx2.put(f"{stream.url}/__ds/successor", json=location)
        stream.close(moved_to(another))
    done = cli.run("state", "watch", "ring-1")
    assert done.returncode != 0
    assert "circle" in done.stderr
    assert "Traceback" not in done.stderr
