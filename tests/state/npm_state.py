"""npm `@durable-streams/state` as a process that is told what to do, one command at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.conformance.suite import HERE, node

SCRIPT = HERE / "state_interop.mjs"
PACKAGES = [HERE / "node_modules" / name for name in ("@durable-streams/state", "@tanstack/db")]
WAIT_S = 30.0


class NpmState:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, what: str, **arguments: Any) -> Any:
        """What it answers, without an error."""
        answer = self.tell(what, **arguments)
        assert "error" not in answer, answer["error"]
        return answer

    def tell(self, what: str, **arguments: Any) -> Any:
        """What it answers, be it an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def entries(self, what: str, **arguments: Any) -> dict[tuple[str, str], Any]:
        """The entities that it answers with."""
        answer = self.ask(what, **arguments)
        entries = {(type, key): value for type, key, value in answer["entries"]}
        assert len(entries) == len(answer["entries"])
        return entries


@contextmanager
def npm_state() -> Iterator[NpmState]:
    process = subprocess.Popen(
        [node(), str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield NpmState(process)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
