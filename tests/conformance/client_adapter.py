#!/usr/bin/env python3
"""Penstock's clients behind the adapter protocol of the upstream client conformance suite.

Reads one JSON command per line and writes one JSON result per line. Serves AsyncClient with
`--async`, or with PENSTOCK_ADAPTER=async in the environment, and Client otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path


async def main(*, is_async: bool) -> None:
    # Started by its path, in whatever folder: what it is made of lies in the packages of the tests.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import penstock
    from tests.conformance.adapter.commands import Adapter

    adapter = Adapter(penstock.AsyncClient if is_async else penstock.Client)
    while line := sys.stdin.buffer.readline():
        if not line.strip():
            continue
        result = await adapter.answer(line)
        # Nothing but ASCII: no reader of lines takes a character of the data for a line's end.
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()
        if result["type"] == "shutdown":
            return


if __name__ == "__main__":
    asked = "--async" in sys.argv[1:] or os.environ.get("PENSTOCK_ADAPTER") == "async"
    asyncio.run(main(is_async=asked))
