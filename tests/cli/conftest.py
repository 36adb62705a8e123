"""One server for all tests of this folder that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.server import Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    # Chunks and long-polls are small, so that a few lines are many requests.
    arguments = ["--chunk-size", "2k", "--long-poll-timeout", "1"]
    with running_server(memory=True, args=arguments) as server:
        yield server


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Iterator[Cli]:
    with Cli(server.url, tmp_path) as cli:
        yield cli
