from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.helpers.server import Server, running_server

ARGS = ["--workers", "2", "--long-poll-timeout", "5", "--development"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One server of two workers for all tests that leave it as it was."""
    with running_server(args=ARGS) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=20) as client:
        yield client
