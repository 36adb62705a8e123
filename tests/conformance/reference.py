"""The reference server of the protocol, from npm, as a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx2

from tests.conformance.suite import HERE, node

SCRIPT = HERE / "reference_server.mjs"
PACKAGE = HERE / "node_modules" / "@durable-streams" / "server"
WAIT_S = 10.0


class Reference(NamedTuple):
    """Where it is served, where it tells what its readers do, and connections to both."""

    url: str
    control_url: str
    http: httpx2.Client

    def wait_for_reader(self, path: str) -> None:
        """Until a live reader of the stream has nothing more to read."""
        self.http.get(f"{self.control_url}/waiting", params={"path": path}).raise_for_status()


@contextmanager
def reference_server(*, long_poll_ms: int = 500) -> Iterator[Reference]:
    """Run it; half a second is what the upstream suite sets for long-polls."""
    if not PACKAGE.exists():
        raise RuntimeError(
            "the server is not installed: run `make test`, or `npm ci` in its folder"
        )
    process = subprocess.Popen(
        [node(), str(SCRIPT), str(long_poll_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        started = json.loads(process.stdout.readline())
        with httpx2.Client(verify=False, timeout=WAIT_S) as http:  # plain http on this machine
            yield Reference(started["url"], started["controlUrl"], http)
    finally:
        process.stdin.close()
        process.wait(WAIT_S)
        process.stdout.close()
