"""A small STP server on the standard library, without Penstock's extensions: answers GET with its
rows and closes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import dropwhile
from urllib.parse import parse_qs, urlsplit


class StpTables(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *, sends_last: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sends_last = sends_last
        self.rows: dict[str, list[str]] = {}
        self.breaks = 0  # so many answers are cut in the middle of a line
        self.rows_max: int | None = None  # of one answer
        self.stays_open = False  # whether an answer waits for more rows, without end
        self.ends = threading.Event()
        self.encoding = "utf-8"
        self.gone = False
        self.content_type = "text/sequence; charset=utf-8; schema=t; version=1"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, table: str, *rows: str) -> None:
        self.rows.setdefault(table, []).extend(rows)


class _Handler(BaseHTTPRequestHandler):
    server: StpTables

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        since = int(parse_qs(parts.query).get("since_id", ["0"])[0])
        rows = self.server.rows.get(parts.path)
        if rows is None:
            self.send_error(404)
            return
        if self.server.gone and 0 < since < 2:  # below the earliest but one
            self.send_response(410)
            self.send_header("STP-Earliest-SeqNo", "3")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        selected = (
            rows[since:] if since < 0 else list(dropwhile(lambda row: _seq(row) <= since, rows))
        )
        if since >= 0:
            selected = selected[: self.server.rows_max]
        body = "".join(f"{row}\n" for row in selected).encode(self.server.encoding)
        if self.server.breaks and since >= 0:
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        self.send_response(200)
        self.send_header("Content-Type", self.server.content_type)
        if self.server.sends_last:
            self.send_header("STP-Last-SeqNo", str(max(map(_seq, rows), default=0)))
        self.end_headers()
        self.wfile.write(body)
        if self.server.stays_open:
            self.wfile.flush()
            self.server.ends.wait()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _seq(row: str) -> int:
    number = row.partition("\t")[0]
    return int(number) if number.isdigit() else 0


@contextmanager
def stp_server(*, sends_last: bool = True) -> Iterator[StpTables]:
    server = StpTables(sends_last=sends_last)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.ends.set()
        server.shutdown()
        thread.join()
        server.server_close()
