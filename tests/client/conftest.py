"""One server process for the tests of a file, and both kinds of clients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Retry
from tests.client.driver import Connect, connecting
from tests.helpers.server import Server, running_server

QUICK = Retry(first_s=0.001, max_s=0.01)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Small chunks and short waits, so that little data goes through every state.
    args = ["--chunk-size", "2KiB", "--long-poll-timeout", "1", "--sse-timeout", "2"]
    with running_server(memory=True, args=args) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with connecting(request.param) as function:
        yield function


@pytest.fixture
def client(connect: Connect, server: Server) -> Any:
    return connect(server.url, retry=QUICK)


@pytest.fixture
def name() -> str:
    """A stream that no other test uses."""
    return f"stream-{next(_numbers)}"


@pytest.fixture
def stream(client: Any, name: str) -> Any:
    return client.stream(name)


@pytest.fixture
def json_stream(stream: Any) -> Any:
    stream.create()
    return stream
