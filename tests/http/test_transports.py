"""The two transports share the core and nothing else: what each of them loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

ONLY_NATIVE = ("uvloop", "httptools", "penstock.http.native")


def loaded_by(program: str, *modules: str) -> set[str]:
    """Which of `modules` are loaded after `program` has run in a fresh interpreter."""
    check = f"\nimport sys\nprint(*(name for name in {modules!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program + check], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "program",
    ["import penstock.http.asgi.app", "import penstock\npenstock.asgi(memory=True)"],
)
def test_the_asgi_transport_loads_nothing_of_the_native_one(program: str) -> None:
    assert loaded_by(program, *ONLY_NATIVE) == set()


def test_a_started_asgi_app_loads_nothing_of_the_native_transport() -> None:
    program = """
import asyncio, penstock
async def main():
    app = penstock.asgi(memory=True)
    await app.startup()
    await app.shutdown()
asyncio.run(main())
"""
    # httptools is loaded by then: it parses the responses of other servers (egress).
    loaded = loaded_by(program, "uvloop", "penstock.http.native", "penstock.http.app")
    assert loaded == {"penstock.http.app"}


def test_the_native_transport_is_seen_to_load_its_parser() -> None:
    assert "httptools" in loaded_by("import penstock.http.native.server", *ONLY_NATIVE)
