"""`penstock stp check`: our server passes all of it, and a server with one fault fails the check of
that fault."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest

from penstock import Client
from penstock.cli.commands.stp.check import Endpoint, HttpProbe
from penstock.stp import Table
from penstock.stp.client.check import Result, TableChecks, notify_checks, run
from tests.helpers.cli import Cli
from tests.helpers.server import running_server
from tests.stp.naive import NaiveTable, naive_server

TYPE = "text/sequence; charset=utf-8; schema=s; version=1"
Line = tuple[Any, ...]
ROWS: list[Line] = [
    (1, "2026-01-08T00:00:00Z", "+", "a", "1"),
    (2, "2026-01-08T00:00:01Z", "+", "b", "2"),
    (4, "2026-01-08T00:00:02Z", "-", "a", ""),
    (7, "2026-01-08T00:00:03Z", "+", "c", "3"),
]


class Good(NaiveTable):
    """A server without a fault; each test replaces a part of it."""

    rows: ClassVar[list[Line]] = list(ROWS)
    kind = TYPE
    last: str | None = None

    def do_GET(self) -> None:  # noqa: N802 - the name of http.server
        query = urllib.parse.urlsplit(self.path).query
        fields = urllib.parse.parse_qs(query, keep_blank_values=True)
        status = self.judge(fields)
        rows = self.choose(fields) if status == 200 else []
        self.send_response(status)
        self.send_header("Content-Type", self.kind)
        if self.last is not None:
            self.send_header("STP-Last-SeqNo", self.last)
        self.end_headers()
        self.wfile.write(self.text(rows))
        self.linger()

    def judge(self, fields: dict[str, list[str]]) -> int:
        if "no_such_schema" in self.headers["Accept"]:
            return 406
        texts = fields.get("since_id", ["0"])
        text = texts[0].removeprefix("-")
        return 200 if len(texts) == 1 and text.isascii() and text.isdigit() else 400

    def choose(self, fields: dict[str, list[str]]) -> list[Line]:
        since = int(fields.get("since_id", ["0"])[0])
        return self.rows[since:] if since < 0 else [row for row in self.rows if row[0] > since]

    def text(self, rows: list[Line]) -> bytes:
        return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()

    def linger(self) -> None:
        """What happens after the rows: nothing, the response ends."""


def check(surl: str, nurl: str = "", *, writes: bool = False, wait_s: float = 0.2) -> list[Result]:
    with httpx2.Client(headers={"accept-encoding": "identity"}) as client:
        probe = HttpProbe(client, Endpoint(surl), Endpoint(nurl), rest_s=0.2)
        table = TableChecks(probe, wait_s=wait_s, writes=writes, prefix="stp-check-")
        results = list(run(table.checks()))
        return results + (list(run(notify_checks(probe, writes=writes))) if nurl else [])


def failed(results: list[Result]) -> set[str]:
    return {each.name for each in results if each.outcome == "failed"}


def test_a_server_written_from_the_specification_passes() -> None:
    with naive_server(Good) as url:
        results = check(url)
    assert failed(results) == set()
    assert {each.reason for each in results if each.outcome == "skipped"} == {
        "the server does not send it"
    }


def test_an_empty_table_passes() -> None:
    class Empty(Good):
        rows: ClassVar[list[Line]] = []

    with naive_server(Empty) as url:
        assert failed(check(url)) == set()


TYPE_RULE = "the content type is text/sequence with schema and version"
LINES = "rows are five fields and a line end"
TIMES = "timestamps are RFC 3339 in UTC"
ORDER = "SeqNos increase strictly"
SINCE = "since_id=N returns the rows after N"
ABSENT = "an absent since_id is since_id=0"
TAIL = "since_id=-N returns the last N rows"
END = "a since_id at the end returns no earlier row"
AGAIN = "the same request returns the same rows"
LAST = "STP-Last-SeqNo is that of the last row"
ENDS = "a response ends when there are no new rows"
ACCEPT = "another schema in Accept is 406"


def fault(**members: Any) -> type[Good]:
    return type("Faulty", (Good,), members)


def _changing() -> Callable[..., bytes]:
    """Rows whose records are others every time."""
    calls = iter(range(10**6))

    def text(self: Good, rows: list[Line]) -> bytes:
        number = next(calls)
        return Good.text(self, [(*row[:4], f"{row[4]}{number}") for row in rows])

    return text


def _shuffled(self: Good, fields: dict[str, list[str]]) -> list[Line]:
    return Good.choose(self, fields)[::-1]


def _includes(self: Good, fields: dict[str, list[str]]) -> list[Line]:
    """`>=` where it should be `>`."""
    since = int(fields.get("since_id", ["0"])[0])
    return self.rows[since:] if since < 0 else [row for row in self.rows if row[0] >= since]


def _ignores(self: Good, fields: dict[str, list[str]]) -> list[Line]:
    return self.rows


def _no_tail(self: Good, fields: dict[str, list[str]]) -> list[Line]:
    since = int(fields.get("since_id", ["0"])[0])
    return [row for row in self.rows if row[0] > since]


def _needs_since(self: Good, fields: dict[str, list[str]]) -> list[Line]:
    return Good.choose(self, fields) if "since_id" in fields else []


@pytest.mark.parametrize(
    ("server", "musts"),
    [
        (fault(kind="text/plain"), {TYPE_RULE, LINES, ABSENT, END, AGAIN}),
        (fault(kind="text/sequence; charset=utf-8"), {TYPE_RULE}),
        (fault(kind="text/sequence; charset=latin-1; schema=s; version=1"), {TYPE_RULE, LINES}),
        (fault(rows=[(1, "2026-01-08T00:00:00Z", "*", "a", "")]), {LINES}),
        (fault(rows=[(1, "2026-01-08T00:00:00Z", "-", "a")]), {LINES}),
        (fault(text=lambda self, rows: Good.text(self, rows).rstrip(b"\n")), {LINES}),
        (fault(rows=[(1, "yesterday", "+", "a", "1")]), {TIMES}),
        (fault(rows=[(1, "2026-01-08T00:00:00+02:00", "+", "a", "1")]), {TIMES}),
        (fault(choose=_shuffled), {ORDER}),
        (fault(choose=_includes), {SINCE, END}),
        (fault(choose=_ignores), {SINCE, TAIL, END}),
        (fault(choose=_no_tail), {TAIL}),
        (fault(choose=_needs_since), {ABSENT}),
        (fault(text=_changing()), {AGAIN}),
        (fault(last="5"), {LAST}),
        (fault(last="x"), {LAST}),
        (fault(judge=lambda self, fields: 500), {TYPE_RULE, LINES}),
    ],
)
def test_a_fault_breaks_its_check(server: type[Good], musts: set[str]) -> None:
    with naive_server(server) as url:
        assert musts <= failed(check(url))


@pytest.mark.parametrize(
    ("server", "exactly"),
    [
        (fault(kind="text/sequence; charset=utf-8"), {TYPE_RULE}),
        (fault(rows=[(1, "yesterday", "+", "a", "1")]), {TIMES}),
        (fault(choose=_no_tail), {TAIL}),
        (fault(choose=_needs_since), {ABSENT}),
        (fault(last="5"), {LAST}),
    ],
)
def test_a_fault_breaks_no_other_check(server: type[Good], exactly: set[str]) -> None:
    with naive_server(server) as url:
        assert failed(check(url)) == exactly


def test_a_server_that_accepts_everything_misses_what_is_recommended() -> None:
    class Lenient(Good):
        def judge(self, fields: dict[str, list[str]]) -> int:
            return 200

        def choose(self, fields: dict[str, list[str]]) -> list[Line]:
            try:
                return super().choose(fields)
            except ValueError:
                return self.rows

    with naive_server(Lenient) as url:
        results = [each for each in check(url) if each.outcome == "failed"]
    assert {each.level for each in results} == {"SHOULD"}
    assert ACCEPT in failed(results)
    assert sum(each.name.startswith("vector since_id") for each in results) == 9


def test_a_response_that_never_ends_is_read_and_reported() -> None:
    over = threading.Event()

    class Endless(Good):
        def linger(self) -> None:
            self.wfile.flush()
            over.wait(20)

    with naive_server(Endless) as url:
        try:
            assert failed(check(url)) == {ENDS}
        finally:
            over.set()


def test_a_notify_url_that_takes_everything_is_reported() -> None:
    with naive_server(Good) as url:
        refusals = [each for each in check(url, url) if each.name.startswith("vector notify")]
        both = [each for each in check(url, url, writes=True) if "vector notify" in each.name]
    assert {each.outcome for each in refusals} == {"failed"}
    assert len(refusals) == 7
    assert [each.outcome for each in both].count("ok") == 6


# -- our own server


@contextmanager
def own_table(*flags: str) -> Iterator[tuple[Table, str]]:
    with running_server(memory=True, args=list(flags)) as server, Client(server.url) as client:
        table = Table(client, "endpoints")
        table.create("endpoint_manifest")
        yield table, server.url


def test_our_server_passes_everything_and_keeps_no_row_of_it() -> None:
    with own_table("--table-idle", "0.1") as (table, url):
        table.write([("+", f"k{number}", "v") for number in range(20)])
        before = table.state()
        results = check(table.url, f"{url}/v1/notify/x", writes=True, wait_s=5)
        assert [each for each in results if each.outcome != "ok"] == []
        assert table.state() == before
        seqno = table.head().last_seqno
        assert failed(check(table.url, f"{url}/v1/notify/x")) == set()
        assert table.head().last_seqno == seqno  # it has only read


def test_the_command_reports_and_ends_by_what_it_found(tmp_path: Path) -> None:
    with own_table("--table-idle", "0.1") as (table, url), Cli(url, tmp_path) as cli:
        output = cli.ok("stp", "check", "endpoints", "--write", "--nurl", "x").splitlines()
        assert output[0] == f"ok       MUST    {TYPE_RULE}"
        assert output[-1].endswith("0 broken, 0 not recommended")
        results = cli.json("stp", "check", table.url, "--wait", "0")
        assert {each["outcome"] for each in results} == {"ok", "skipped"}
        with naive_server(fault(choose=_no_tail)) as wrong:
            code, _ = cli.failed("stp", "check", wrong, "--wait", "0")
            assert code == 1
        with naive_server(fault(last="5")) as lenient:
            cli.ok("stp", "check", lenient, "--wait", "0")
            assert cli.failed("stp", "check", lenient, "--wait", "0", "--strict")[0] == 1
    code, error = cli.failed("stp", "check", "http://127.0.0.1:1/t")
    assert (code, error.count("\n")) == (5, 1)


def test_a_token_goes_to_its_own_server_alone(tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Listening(Good):
        def do_POST(self) -> None:  # noqa: N802 - the name of http.server
            seen.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400)
            self.end_headers()

    with (
        running_server(memory=True, args=["--token", "secret"]) as server,
        Client(server.url, token="secret") as client,
        Cli(server.url, tmp_path) as cli,
        naive_server(Listening) as other,
    ):
        Table(client, "t").create("s")
        options = ("--token", "secret", "--wait", "0", "--json")
        shown = cli.run("stp", "check", "t", "--nurl", other, *options)
        assert json.loads(shown.stdout)
    assert seen
    assert set(seen) == {None}
