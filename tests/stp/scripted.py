"""A State URL that answers with prepared bytes, one answer after the other: servers that cut,
repeat, contradict themselves or fail, without anything left to chance.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.stp.naive import naive_server

ROWS = "text/sequence; charset=utf-8; schema=test; version=1"
TIME = "2026-01-08T00:00:00Z"


class Scripted(NamedTuple):
    """One answer. `promised` bytes more than are sent break the connection."""

    body: str | bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    content_type: str | None = ROWS
    promised: int = 0


class Script:
    """What was asked, and what is answered; the last answer is repeated."""

    def __init__(self, answers: Sequence[Scripted]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def since(self) -> list[int]:
        return [int(query["since_id"]) for query in self.asked]


def line(seqno: int, action: str = "+", key: str = "k", record: str = "v") -> str:
    return f"{seqno}\t{TIME}\t{action}\t{key}\t{record}\n"


@contextmanager
def scripted_server(*answers: Scripted) -> Iterator[tuple[str, Script]]:
    script = Script(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = urllib.parse.urlsplit(self.path).query
            script.asked.append(dict(urllib.parse.parse_qsl(query)))
            script.headers.append({name.lower(): text for name, text in self.headers.items()})
            answer = script.answers[min(len(script.asked), len(script.answers)) - 1]
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            self.send_response(answer.status)
            if answer.content_type is not None:
                self.send_header("Content-Type", answer.content_type)
            if answer.status != 304:
                self.send_header("Content-Length", str(len(body) + answer.promised))
            for name, text in answer.headers.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = answer.promised > 0

        def log_message(self, *_: Any) -> None:
            pass

    with naive_server(Handler) as url:
        yield url, script
