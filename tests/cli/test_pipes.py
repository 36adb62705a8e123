"""The commands in pipes and at a terminal: nothing held back, nothing left behind, clean ends."""

from __future__ import annotations

import json
import os
import re
import subprocess

from tests.helpers.cli import TIMEOUT_S, Cli, interrupt, read_line


def test_lines_go_from_pipe_to_pipe_as_they_come(cli: Cli) -> None:
    """`tail -f app.log | penstock append logs` and `penstock read -f logs | jq`."""
    cli.make("pipe/a", content_type="text/plain")
    with (
        cli.start("append", "pipe/a") as writer,
        cli.start("read", "-f", "pipe/a", stdin=subprocess.DEVNULL) as reader,
    ):
        assert writer.stdin is not None
        for line in ("first", "second", "third"):
            # The writer's input stays open: each line has to go through without waiting for more.
            writer.stdin.write(f"{line}\n".encode())
            writer.stdin.flush()
            assert read_line(reader) == line
        writer.stdin.write(b"no line end")
        writer.stdin.close()
        assert read_line(reader) == "no line end"
        assert writer.wait(TIMEOUT_S) == 0
        assert interrupt(reader) == (130, "")


def test_following_json_starts_at_the_tail_and_ends_when_it_closes(cli: Cli) -> None:
    stream = cli.make("pipe/b", 1, 2, 3)
    with cli.start("read", "-f", "pipe/b", "--tail", "1", "--format", "<%s>%n") as reader:
        assert read_line(reader) == "<3>"
        stream.append_many([{"a": [4]}, 5])
        assert read_line(reader) == '<{"a":[4]}>'
        assert read_line(reader) == "<5>"
        stream.close()
        assert reader.wait(TIMEOUT_S) == 0
    with cli.start("read", "-f", "pipe/b", "--count", "2") as reader:
        assert reader.communicate(timeout=TIMEOUT_S) == (b"1\n2\n", b"")
        assert reader.returncode == 0


def test_a_reader_that_goes_away_is_a_clean_end(cli: Cli) -> None:
    stream = cli.make("pipe/c", 1)
    with cli.start("read", "-f", "pipe/c") as reader:
        assert read_line(reader) == "1"
        assert reader.stdout is not None
        reader.stdout.close()  # as `| head -1` does; nothing is appended that could wake it up
        assert reader.wait(TIMEOUT_S) == 0
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    stream.append_many(range(20_000))
    for command in (("read", "pipe/c"), ("ls", "pipe/", "--json")):
        with cli.start(*command) as reader:
            assert reader.stdout is not None
            os.read(reader.stdout.fileno(), 1)
            reader.stdout.close()
            assert reader.wait(TIMEOUT_S) == 0
            assert reader.stderr is not None
            assert reader.stderr.read() == b""


def test_ls_watch_prints_changes(cli: Cli) -> None:
    stream = cli.make("watch/a")
    with cli.start("ls", "watch/", "--watch", "--interval", "0.05", "--json") as watcher:
        assert json.loads(read_line(watcher))["change"] == "+"
        other = cli.make("watch/b")
        added = json.loads(read_line(watcher))
        assert (added["change"], added["path"]) == ("+", "watch/b")
        stream.append(1)
        changed = json.loads(read_line(watcher))
        assert (changed["change"], changed["path"], changed["messages"]) == ("~", "watch/a", 1)
        other.delete()
        assert json.loads(read_line(watcher))["change"] == "-"
        assert interrupt(watcher) == (130, "")


def test_a_terminal_is_asked_before_anything_is_deleted(cli: Cli) -> None:
    stream = cli.make("term/a")
    with cli.terminal("rm", "term/a") as terminal:
        terminal.wait_for("Delete term/a with all data? [y/N]")
        terminal.type("n\n")
        assert terminal.end()[0] == 1
    assert stream.exists()
    with cli.terminal("rm", "term/a") as terminal:
        terminal.wait_for("[y/N]")
        terminal.type("y\n")
        code, shown = terminal.end()
        assert (code, "deleted term/a" in shown) == (0, True)
    assert not stream.exists()


def test_colours_and_progress_are_for_terminals(cli: Cli) -> None:
    cli.make("colour/a")
    bold = "\x1b[1m"
    with cli.terminal("ls", "-l", "colour/") as terminal:
        assert bold in terminal.end()[1]
    with cli.terminal("ls", "-l", "colour/", env={"NO_COLOR": "1"}) as terminal:
        shown = terminal.end()[1]
        assert ("colour/a" in shown, bold in shown) == (True, False)
    assert "\x1b" not in cli.ok("ls", "-l", "colour/")

    with cli.terminal("bench", "append", "-n", "40") as terminal:
        code, shown = terminal.end()
        assert code == 0
        assert "\r\x1b[2Kbench appends" in shown
        assert "p99 " in shown
    done = cli.run("bench", "append", "-n", "10")
    assert (done.returncode, done.stderr, "\x1b" in done.stdout) == (0, "", False)


def test_import_shows_the_progress_of_each_pass(cli: Cli) -> None:
    (cli.folder / "many.jsonl").write_bytes(b'{"n": 1}\n' * 400_000)  # several requests
    with cli.terminal("import", "many.jsonl", "progress/a") as terminal:
        code, shown = terminal.end()
    assert code == 0
    for phase in ("reading", "checking", "appending"):
        assert f"import many.jsonl  {phase}  [" in shown
    assert re.search(r"appending .* MiB/s  0:\d\d left", shown)
    assert shown.endswith("progress/a: 3.4 MiB appended (400,000 messages)\n")


def test_names_are_whole_in_a_listing_that_is_watched(cli: Cli) -> None:
    name = "watched/" + "n" * 40
    cli.make(name, content_type="application/octet-stream")
    with cli.terminal("ls", "-lw", "watched/", env={"COLUMNS": "80"}) as terminal:
        terminal.wait_for(name)
        terminal.type("\x03")
        assert terminal.end()[0] == 130


def test_a_stream_cannot_play_tricks_on_the_terminal(cli: Cli) -> None:
    cli.make("trick/a", b"\x1b[2Jgone\tnot\n", content_type="text/plain")
    with cli.terminal("read", "trick/a") as terminal:
        code, shown = terminal.end()
    assert (code, shown) == (0, "\N{REPLACEMENT CHARACTER}[2Jgone\tnot\n")
    assert cli.ok("read", "trick/a") == "\x1b[2Jgone\tnot\n"


def test_ctrl_c_at_a_terminal_is_clean(cli: Cli) -> None:
    cli.make("ctrl/a", "here")
    with cli.terminal("read", "-f", "ctrl/a") as terminal:
        terminal.wait_for('"here"')
        terminal.type("\x03")
        code, shown = terminal.end()
        assert (code, "Traceback" in shown, "Aborted" in shown) == (130, False, False)
    with cli.terminal("append", "ctrl/a") as terminal:
        terminal.type("1\n")
        with cli.start("read", "-f", "ctrl/a", "--offset", "start") as reader:
            assert [read_line(reader), read_line(reader)] == ['"here"', "1"]
        terminal.type("\x03")
        code, shown = terminal.end()
        assert (code, "appended 1 message" in shown, "Traceback" in shown) == (130, True, False)
