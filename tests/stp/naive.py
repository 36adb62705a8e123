"""An STP server and an STP client as somebody would write them who has read the specification
(draft 0.4) and nothing else: standard library only, about thirty lines each, no robustness beyond
what it demands. They stand for the other implementations that ours has to get on with.
"""

from __future__ import annotations

import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

Line = tuple[int, str, str, str, str]


class NaiveTable(BaseHTTPRequestHandler):
    """Answers with what there is, and closes: a server that answers once."""

    rows: ClassVar[list[Line]] = []
    notified: ClassVar[list[dict[str, list[str]]]] = []

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        since = int(query.get("since_id", ["0"])[0])
        rows = self.rows[since:] if since < 0 else [row for row in self.rows if row[0] > since]
        self.send_response(200)
        self.send_header("Content-Type", "text/sequence; charset=utf-8; schema=naive; version=1")
        self.end_headers()
        for row in rows:
            self.wfile.write(("\t".join(map(str, row)) + "\n").encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.notified.append(urllib.parse.parse_qs(body))
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def naive_server(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/table"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class NaiveClient:
    """Keeps a table: asks for what is new, and applies it row by row."""

    def __init__(self, surl: str) -> None:
        self.surl = surl
        self.last = 0
        self.table: dict[str, str] = {}

    def sync(self, timeout_s: float = 30.0) -> int:
        """One GET until the server ends it; gives the number of rows applied."""
        count = 0
        with urllib.request.urlopen(f"{self.surl}?since_id={self.last}", timeout=timeout_s) as got:
            assert got.headers.get_content_type() == "text/sequence"
            for line in got:
                seqno, _, action, key, record = line.decode().rstrip("\n").split("\t", 4)
                if int(seqno) <= self.last:
                    continue
                if action == "+":
                    self.table[key] = record
                else:
                    self.table.pop(key, None)
                self.last = int(seqno)
                count += 1
        return count

    def notify(self, nurl: str, **form: str) -> int:
        body = urllib.parse.urlencode(form).encode()
        with urllib.request.urlopen(nurl, body) as got:  # a POST of a form is its default
            return int(got.status)
