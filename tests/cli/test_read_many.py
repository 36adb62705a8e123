"""`penstock read` with several names and patterns."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.cli import Cli, read_line
from tests.helpers.server import running_server


def test_several_streams_are_read_to_their_end(cli: Cli) -> None:
    cli.make("many/a", {"id": 1}, 2)
    cli.make("many/b/c", 3)
    cli.make("many/t", "one\ntwo", content_type="text/plain")
    lines = cli.ok("read", "many/*", "many/b/c").splitlines()
    assert sorted(lines) == [
        "many/a: 2",
        'many/a: {"id":1}',
        "many/b/c: 3",
        "many/t: one",
        "many/t: two",
    ]
    assert cli.ok("read", "many/a", "many/t", "--offset", "end") == ""
    assert cli.ok("read", "many/b/**", "--format", "%t|%s|%i;") == "many/b/c|3|0;"
    assert len(cli.ok("read", "many/**", "--count", "2").splitlines()) == 2


def test_json_names_the_stream(cli: Cli) -> None:
    cli.make("named/j", {"id": 1}, 2)
    cli.make("named/b", b"\x00\xff", content_type="application/octet-stream")
    objects = [json.loads(line) for line in cli.ok("read", "named/*", "--json").splitlines()]
    by_stream = {each["stream"]: each for each in objects}
    assert by_stream["named/j"]["message"] == 2
    assert by_stream["named/b"]["base64"] == "AP8="
    offset = by_stream["named/j"]["offset"]
    assert cli.ok("read", "named/j", "--offset", offset) == "2\n", "exact for each message"


def test_follow_reads_streams_that_come_later(cli: Cli) -> None:
    cli.make("chat/1", "old")
    logs = cli.make("logs", "old\n", content_type="text/plain")
    with cli.start("read", "-f", "chat/*", "logs", "--count", "4") as process:
        assert process.stderr is not None
        assert {read_line(process), read_line(process)} == {'chat/1: "old"', "logs: old"}
        second = cli.client.stream("chat/2")
        second.create(body="new")
        assert read_line(process) == 'chat/2: "new"'
        second.delete()
        assert process.stderr.readline() == b"chat/2 was deleted.\n"
        logs.append("half")
        logs.append(" line\n")
        assert read_line(process) == "logs: half line"
        assert process.wait(30) == 0


def test_a_missing_stream_is_an_error_unless_it_is_followed(cli: Cli) -> None:
    cli.make("there/a", 1)
    code, error = cli.failed("read", "there/a", "nowhere")
    assert (code, error) == (
        3,
        f"Error: There is no stream nowhere on {cli.url}; `penstock ls` lists them.\n",
    )
    with cli.start("read", "-f", "nowhere", "there/a") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == b"nowhere does not exist yet; it is read when it does.\n"
        assert read_line(process) == "there/a: 1"
    assert cli.ok("read", "nothing/matches/*") == ""


def test_what_cannot_be_combined_is_said_in_one_line(cli: Cli, tmp_path: Path) -> None:
    for arguments, words in (
        (("a", "b", "-f", "--type", "x"), "follow one stream"),
        (("a*", "--offset", "0000000000000001_0000000000000000"), "use `start` or `end`"),
        (("a", "http://127.0.0.1:1/v1/stream/b"), "are on different servers"),
        (("a**b",), "is a whole segment"),
    ):
        code, error = cli.failed("read", *arguments)
        assert words in error, error
        assert code in (1, 2)


def test_a_checkpoint_holds_the_position_of_all(cli: Cli) -> None:
    first = cli.make("point/a", 1)
    cli.make("point/b", 2)
    command = ("read", "point/*", "--checkpoint", "cursor.json")
    assert sorted(cli.ok(*command).splitlines()) == ["point/a: 1", "point/b: 2"]
    first.append(3)
    cli.make("point/c", 4)
    assert sorted(cli.ok(*command).splitlines()) == ["point/a: 3", "point/c: 4"]
    assert cli.ok(*command) == ""


def test_follow_waits_for_a_server_that_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_server(data_dir=data) as first, Cli(first.url, tmp_path) as cli:
        cli.make("a", 1)
        cli.make("b", 2)
        with cli.start("read", "-f", "a", "b") as process:
            assert process.stderr is not None
            assert {read_line(process), read_line(process)} == {"a: 1", "b: 2"}
            first.kill()
            assert process.stderr.readline().startswith(b"Lost the connection")
            with running_server(data_dir=data, args=["--port", str(first.port)]):
                cli.client.stream("b").append(3)
                assert read_line(process) == "b: 3"
                assert process.stderr.readline().startswith(b"Connected to")
                for name in "ab":
                    cli.client.stream(name).close()
                assert process.wait(30) == 0
