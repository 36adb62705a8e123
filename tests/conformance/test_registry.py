"""`__registry__` is what the Test UI of the protocol expects, read with packages from npm."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.conformance.suite import HERE, node
from tests.helpers.server import running_server

SCRIPT = HERE / "registry_interop.mjs"
TIMEOUT_S = 60.0
AGE_MS_MAX = 60_000


def interop(*arguments: str) -> dict[str, Any]:
    run = subprocess.run(
        [node(), str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.conformance
@pytest.mark.parametrize("store", ["disk", "memory"])
def test_the_registry_lists_what_the_one_of_the_reference_server_does(store: str) -> None:
    with running_server(args=["--registry"], memory=store == "memory") as server:
        ours = interop(server.url)
    theirs = interop()
    # The reference server learns of its registry only when something else is created.
    own = ["__registry__", "application/json"]
    assert all(own in step for step in ours["steps"])
    assert [[row for row in step if row != own] for step in ours["steps"]] == [
        [row for row in step if row != own] for step in theirs["steps"]
    ]
    assert ours["steps"][-1] == [
        ["__presence__", "application/json"],
        own,
        ["chat", "application/json"],
        ["files%20of/a", "application/octet-stream"],
    ]
    assert all(0 <= age < AGE_MS_MAX for age in ours["ages"]), "createdAt is in milliseconds"
