"""A webhook receiver as a process: reads the events behind each wake from the server, keeps them in
a file as its durable effect, and says done. Killed at any moment, it may have kept events without
having said so; it never says so before it has kept them.

Arguments: a file for what was done, and a port (0 picks one, which is printed).
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx2


def main(done_file: str, port: int) -> None:
    done = os.open(done_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            wake = json.loads(self.rfile.read(int(self.headers["content-length"])))
            base = wake["callback_url"].partition("/v1/stream/")[0]
            with httpx2.Client() as http:
                for each in wake["streams"]:
                    if each["has_pending"]:
                        query = {"offset": each["acked_offset"], "until": each["tail_offset"]}
                        try:
                            answer = http.get(f"{base}/v1/stream/{each['path']}", params=query)
                            answer.raise_for_status()
                        except httpx2.HTTPError:
                            self.send_error(503)  # the server is gone; it will ask again
                            return
                        for event in answer.json():
                            os.write(done, f"{event}\n".encode())
            os.fsync(done)
            self.send_response(200)
            self.send_header("content-length", "14")
            self.end_headers()
            self.wfile.write(b'{"done": true}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)  # noqa: T201 - for whoever started it
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
