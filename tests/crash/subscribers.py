"""Subscribers as processes: one that is called by webhooks, one that claims. Each keeps a diary, a
file that is synced line by line, of what it has done, what it is about to say and what it was told,
so that a kill at any moment leaves what it had promised.

    generation <number>       it was given a wake
    done <value>              it has processed an event
    acking <path> <offset>    it is about to say so
    acked <path> <offset>     it was told that this is kept (only the one that claims)

Arguments: `hook` or `pull`, the diary, and a port (0 picks one, which is printed) or a file with
the URL of the server.
"""

from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2

SUBSCRIPTIONS = "/v1/stream/__ds/subscriptions"
AGAIN_S = 0.01
REFUSED = (503, 507)
"""The server cannot write now: nothing has happened, and the same request may be sent again."""


class Diary:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *lines: str) -> None:
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(self._file)


def process(http: httpx2.Client, base: str, wake: Any, diary: Diary) -> list[dict[str, str]]:
    """Do what a wake names; what is to be acked for it."""
    diary.write(f"generation {wake['generation']}")
    acks = []
    for each in wake["streams"]:
        if each["has_pending"]:
            path, tail = each["path"], each["tail_offset"]
            query = {"offset": each["acked_offset"], "until": tail}
            answer = http.get(f"{base}/v1/stream/{path}", params=query)
            answer.raise_for_status()
            diary.write(*(f"done {event}" for event in answer.json()), f"acking {path} {tail}")
            acks.append({"stream": path, "offset": tail})
    return acks


def hook(diary: Diary, port: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            wake = json.loads(self.rfile.read(int(self.headers["content-length"])))
            base = wake["callback_url"].partition("/v1/stream/")[0]
            try:
                with httpx2.Client() as http:
                    process(http, base, wake, diary)
            except httpx2.HTTPError:
                self.send_error(503)  # the server is gone; it will ask again
                return
            self.send_response(200)
            self.send_header("content-length", "14")
            self.end_headers()
            self.wfile.write(b'{"done": true}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)  # noqa: T201 - for whoever started it
    server.serve_forever()


def pull(diary: Diary, address: Path) -> None:
    print(0, flush=True)  # noqa: T201 - for whoever started it
    with httpx2.Client() as http:
        while True:
            try:
                if claim_and_ack(http, address.read_text(), diary):
                    continue
            except httpx2.HTTPError:
                pass  # the server is gone, or was killed with the answer
            time.sleep(AGAIN_S)  # as a worker does that has nothing better to wait for


def claim_and_ack(http: httpx2.Client, base: str, diary: Diary) -> bool:
    url = f"{base}{SUBSCRIPTIONS}/pull"
    claimed = http.post(f"{url}/claim", json={"worker": str(os.getpid())})
    if claimed.status_code != 200:
        return False
    wake = claimed.json()
    acks = process(http, base, wake, diary)
    answer = finish(http, url, wake, acks)
    if answer.status_code == 200 and acks:
        diary.write(*(f"acked {ack['stream']} {ack['offset']}" for ack in acks))
    return answer.status_code == 200


def finish(http: httpx2.Client, url: str, wake: Any, acks: list[dict[str, str]]) -> httpx2.Response:
    """Say that a claimed wake is done, until the server can write that."""
    named = {name: wake[name] for name in ("wake_id", "generation")}
    headers = {"authorization": f"Bearer {wake['token']}"}
    while True:
        report = {**named, "acks": acks, "done": True}
        answer = http.post(f"{url}/ack", json=report, headers=headers)
        if answer.status_code not in REFUSED:
            return answer
        time.sleep(AGAIN_S)


if __name__ == "__main__":
    kind, name, where = sys.argv[1:]
    if kind == "hook":
        hook(Diary(name), int(where))
    else:
        pull(Diary(name), Path(where))
