"""Others' implementations and ours: plain curl, and a server and a client written only from the
specification (naive.py).
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import threading
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar
from urllib.request import urlopen

import pytest

from penstock import Client
from penstock.client.requests import Request
from penstock.stp import Notifier, Table
from tests.helpers.server import Server, running_server
from tests.stp.clients import QUICK
from tests.stp.naive import Line, NaiveClient, NaiveTable, naive_server

TIME = "2026-01-08T00:00:00Z"
CURL = shutil.which("curl")
needs_curl = pytest.mark.skipif(CURL is None, reason="curl is not installed on this machine")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Answers stay open for a moment only: a naive client waits for their end.
    with running_server(memory=True, args=["--table-idle", "0.2"]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, retry=QUICK) as client:
        yield client


@pytest.fixture
def table(client: Client) -> Table:
    table = Table(client, f"interop/{next(_numbers)}")
    table.create("endpoint_manifest")
    return table


@pytest.fixture
def patient() -> Iterator[Table]:
    """A table of a server that keeps answers open for as long as it may take."""
    arguments = ["--table-idle", "30"]
    with running_server(memory=True, args=arguments) as server, Client(server.url) as client:
        table = Table(client, "patient")
        table.create("endpoint_manifest")
        yield table


def curl(*arguments: str, stdin: bytes = b"") -> str:
    assert CURL is not None
    done = subprocess.run(
        [CURL, "--silent", "--show-error", "--max-time", "30", *arguments],
        input=stdin,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode()


def fields(line: str) -> list[str]:
    """SeqNo, action, key and record: what is the same in every run."""
    seqno, _, action, key, record = line.split("\t")
    return [seqno, action, key, record]


@needs_curl
def test_curl_writes_a_table_and_reads_it_back(server: Server) -> None:
    url = f"{server.url}/v1/table/curl-{next(_numbers)}"
    declaration = '{"schema": "endpoint_manifest"}'
    status = ["-o", "/dev/null", "-w", "%{http_code}"]
    assert curl(*status, "-X", "PUT", url, "-d", declaration) == "201"
    assert curl(*status, "-X", "PUT", f"{url}?key=fhir_read", "-d", "https://a.example/r") == "204"
    rows = "+\tdirect\thttps://a.example/d\n-\tfhir_read\n"
    kind = "Content-Type: text/tab-separated-values"
    posted = curl(*status, url, "-H", kind, "--data-binary", "@-", stdin=rows.encode())
    assert posted == "204"
    assert curl(*status, "-X", "DELETE", f"{url}?key=direct") == "204"

    shown = curl("-i", f"{url}?since_id=1&timeout=0")
    head, _, body = shown.partition("\r\n\r\n")
    expected = "content-type: text/sequence; charset=utf-8; schema=endpoint_manifest; version=1"
    assert expected in head.lower()
    assert "stp-last-seqno: 4" in head.lower()
    assert [fields(line) for line in body.splitlines()] == [
        ["2", "+", "direct", "https://a.example/d"],
        ["3", "-", "fhir_read", ""],
        ["4", "-", "direct", ""],
    ]
    assert curl(f"{url}?since_id=-1&timeout=0").count("\n") == 1
    assert curl(*status, f"{url}?since_id=junk") == "400"
    wrong = "Accept: text/sequence; schema=other"
    assert curl(*status, f"{url}?timeout=0", "-H", wrong) == "406"


@needs_curl
def test_curl_sees_rows_as_they_are_written(patient: Table) -> None:
    assert CURL is not None
    patient.put("first", "1")
    # --no-buffer: each row is printed when it arrives.
    command = [CURL, "--silent", "--no-buffer", f"{patient.url}?since_id=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert fields(process.stdout.readline().rstrip("\n")) == ["1", "+", "first", "1"]
            patient.put("second", "2")
            assert fields(process.stdout.readline().rstrip("\n")) == ["2", "+", "second", "2"]
        finally:
            process.kill()


@needs_curl
def test_curl_follows_by_reconnecting_with_the_last_seqno(table: Table) -> None:
    table.put("a", "1")
    first = curl(f"{table.url}?since_id=0").splitlines()  # ends when the table is idle
    table.put("b", "2")
    last = first[-1].split("\t")[0]
    assert [fields(line) for line in curl(f"{table.url}?since_id={last}").splitlines()] == [
        ["2", "+", "b", "2"]
    ]


def test_a_naive_client_keeps_up_with_our_server(table: Table) -> None:
    naive = NaiveClient(table.url)
    assert naive.sync() == 0
    table.write([("+", "a", "1"), ("+", "b", "two words"), ("-", "a")])
    assert (naive.sync(), naive.table, naive.last) == (3, {"b": "two words"}, 3)
    table.put("c", "水 🚰")
    assert (naive.sync(), naive.table) == (1, {"b": "two words", "c": "水 🚰"})
    assert naive.sync() == 0
    assert naive.table == dict(table.state())


def test_a_naive_client_gets_news_while_its_request_is_open(patient: Table) -> None:
    patient.put("old", "1")
    with urlopen(f"{patient.url}?since_id=0", timeout=30) as answer:
        assert fields(answer.readline().decode().rstrip("\n"))[0] == "1"
        patient.put("new", "2")
        assert fields(answer.readline().decode().rstrip("\n"))[2] == "new"


def test_our_client_reads_follows_and_folds_a_naive_server(client: Client) -> None:
    class Served(NaiveTable):
        rows: ClassVar[list[Line]] = [
            (1, TIME, "+", "a", "1"),
            (5, TIME, "+", "b", "2"),
            (9, TIME, "-", "a", ""),
        ]

    with naive_server(Served) as surl:
        table = Table(client, surl)
        assert [row.seqno for row in table.read()] == [1, 5, 9]
        assert [row.seqno for row in table.read(5)] == [9]
        assert [row.seqno for row in table.tail(2)] == [5, 9]
        assert dict(table.state()) == {"b": "2"}
        with table.follow(5, poll_s=0.01) as rows:
            assert next(rows).seqno == 9
            Served.rows.append((12, TIME, "+", "c", "3"))
            assert next(rows).key == "c"


def test_our_client_follows_a_naive_server_that_streams(client: Client) -> None:
    more = threading.Event()

    class Streaming(NaiveTable):
        rows: ClassVar[list[Line]] = [(1, TIME, "+", "a", "1")]

        def do_GET(self) -> None:  # noqa: N802 - the name is that of http.server
            super().do_GET()
            if len(self.rows) == 1:
                self.wfile.flush()
                more.wait(30)
                self.rows.append((2, TIME, "+", "b", "2"))
                self.wfile.write(f"2\t{TIME}\t+\tb\t2\n".encode())

    with naive_server(Streaming) as surl, Table(client, surl).follow(poll_s=0.01) as rows:
        assert next(rows).key == "a"
        more.set()  # the answer is still open
        assert next(rows).key == "b"
        Streaming.rows.append((3, TIME, "+", "c", "3"))
        assert [row.key for row in islice(rows, 1)] == ["c"]


def test_our_server_follows_a_naive_server() -> None:
    class Served(NaiveTable):
        rows: ClassVar[list[Line]] = [(3, TIME, "+", "a", "1"), (5, TIME, "+", "b", "2")]

    arguments = ["--development", "--table-idle", "30"]
    with (
        naive_server(Served) as surl,
        running_server(memory=True, args=arguments) as hub,
        Client(hub.url) as client,
    ):
        Table(client, "mirror").create("naive")
        client.request(
            Request(
                "PUT",
                f"{hub.url}/v1/follow/mirror",
                {"Content-Type": "application/json"},
                body=f'{{"surl": "{surl}"}}'.encode(),
            )
        )
        with Table(client, "mirror").follow() as rows:
            assert [(row.action, row.key, row.record) for row in islice(rows, 2)] == [
                ("+", "a", "1"),
                ("+", "b", "2"),
            ]
            Served.rows.append((8, TIME, "-", "a", ""))
            # A NURL of the hub is told, as the specification has it: it then looks again.
            assert NaiveClient("").notify(f"{hub.url}/v1/notify/hub", surl=surl) == 202
            assert next(rows).key == "a"
        assert dict(Table(client, "mirror").state()) == {"b": "2"}


def test_a_naive_client_and_ours_agree_about_a_notify(client: Client) -> None:
    class Listener(NaiveTable):
        notified: ClassVar[list[dict[str, list[str]]]] = []

    form = {"surl": "https://a.example/t", "match": "https://a.example/n"}
    with naive_server(Listener) as nurl:
        assert NaiveClient("").notify(nurl, **form) == 202
        Notifier(client).notify(nurl, surl=form["surl"], callbacks={"match": form["match"]})
    assert Listener.notified[0] == Listener.notified[1]
