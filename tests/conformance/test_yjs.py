"""The Yjs provider from npm, with compaction on, works on Penstock as on the reference server.

It reads the updates after a snapshot from the snapshot's offset plus one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conformance.reference import reference_server
from tests.conformance.suite import HERE, node
from tests.helpers.server import running_server

SCRIPT = HERE / "yjs_interop.mjs"
TIMEOUT_S = 120.0
SERVERS = ("reference", "disk", "memory")


@contextmanager
def server_url(kind: str) -> Iterator[str]:
    if kind == "reference":
        with reference_server() as reference:
            yield reference.url
    else:
        with running_server(memory=kind == "memory") as server:
            yield server.url


def interop(url: str, live_mode: str) -> dict[str, Any]:
    run = subprocess.run(
        [node(), str(SCRIPT), url, live_mode],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.conformance
@pytest.mark.parametrize("live_mode", ["sse", "long-poll"])
@pytest.mark.parametrize("kind", SERVERS)
def test_documents_survive_compaction_for_everybody_who_joins(kind: str, live_mode: str) -> None:
    with server_url(kind) as url:
        result = interop(url, live_mode)
    assert result["errors"] == []
    for stage in result["stages"]:
        assert stage["texts"] == [stage["expected"]] * len(stage["texts"]), stage["name"]
    assert len(result["stages"]) == 6
    first, second = result["snapshots"]
    assert None not in (first, second)
    assert first != second
    assert result["presence"] == [{"name": "writer"}] * 5
    assert result["removed"] == 204
