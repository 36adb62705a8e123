"""penstock top as a process: once, as JSON, and at a terminal with its keys."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock.cli.commands.top import sparkline
from tests.helpers.cli import Cli, read_line
from tests.helpers.server import running_server


def test_once_prints_totals_and_streams(cli: Cli) -> None:
    shown = cli.ok("top", "--once")
    assert shown.startswith("penstock ")
    assert cli.url in shown
    assert "APPENDS/S↓  MESSAGES/S  BYTES/S  READERS  PATH" in re.sub(" {3,}", "  ", shown)
    assert "\x1b" not in shown


def test_json_is_the_answer_of_the_server_line_by_line(cli: Cli) -> None:
    with cli.start("top", "--json", "--interval", "0.2") as process:
        first = json.loads(read_line(process))
        assert {"version", "samples", "current", "streams"} <= first.keys()
        assert json.loads(read_line(process))["now"] > first["now"]
        process.kill()


def test_a_terminal_is_redrawn_and_keys_change_the_order(cli: Cli) -> None:
    stream = cli.make("busy", {"n": 1})
    with cli.terminal("top", "--interval", "0.2") as terminal:
        assert "\x1b[?1049h" in terminal.wait_for("APPENDS/S↓")
        stream.append({"n": 2})
        terminal.wait_for("busy")
        terminal.type("s")
        terminal.wait_for("MESSAGES/S↓")
        terminal.type("q")
        code, shown = terminal.end()
    assert code == 0
    assert "busy" in shown.rpartition("\x1b[?1049l")[2]  # the last screen stays


def test_ctrl_c_leaves_a_clean_terminal(cli: Cli) -> None:
    with cli.terminal("top", env={"COLUMNS": "30", "LINES": "5"}) as terminal:
        shown = terminal.wait_for("…")
        assert all(len(line) < 80 for line in shown.splitlines())
        terminal.type("\x03")
        code, shown = terminal.end()
    assert code == 130
    assert "\x1b[?1049l" in shown
    assert "Traceback" not in shown


def test_a_server_that_goes_is_waited_for(tmp_path: Path) -> None:
    with (
        running_server(memory=True) as server,
        Cli(server.url, tmp_path) as cli,
        cli.terminal("top", "--interval", "0.2") as terminal,
    ):
        terminal.wait_for("APPENDS/S")
        server.kill()
        terminal.wait_for("cannot be reached")
        terminal.type("q")
        assert terminal.end()[0] == 0


@pytest.mark.parametrize(
    ("values", "width", "shown"),
    [([], 5, ""), ([0, 0], 5, "▁▁"), ([0, 7, 14], 5, "▁▅█"), ([9, 1, 2], 2, "▅█")],
)
def test_bars_show_the_newest_values(values: list[float], width: int, shown: str) -> None:
    assert sparkline(values, width) == shown
