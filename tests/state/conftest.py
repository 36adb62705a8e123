"""For tests of live states: a server process a file, a fresh stream a test, and both shells."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import penstock
from penstock.client.sync.stream import Stream
from penstock.state import Collection, StateSchema
from tests.helpers.server import Server, running_server
from tests.state.live_driver import QUICK, Lives, shells

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Small chunks, so that little data comes in many batches.
    args = ["--chunk-size", "2KiB", "--long-poll-timeout", "1", "--sse-timeout", "2"]
    with running_server(memory=True, args=args) as running:
        yield running


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    """A new JSON stream, to write to directly."""
    with penstock.Client(server.url, retry=QUICK) as client:
        created = client.stream(f"stream-{next(_numbers)}")
        created.create()
        yield created


@pytest.fixture
def name(stream: Stream) -> str:
    return stream.url.rpartition("/")[2]


@pytest.fixture(params=["sync", "async"])
def live(request: pytest.FixtureRequest, server: Server) -> Iterator[Lives]:
    with shells(request.param, server.url) as lives:
        yield lives


@pytest.fixture
def schema() -> StateSchema:
    user = {
        "type": "object",
        "required": ["id", "city"],
        "properties": {"id": {"type": "string"}, "city": {"type": "string"}},
    }
    return StateSchema(
        users=Collection(type="user", schema=user, primary_key="id"),
        flags=Collection(type="flag", schema={"type": "boolean"}),
    )
