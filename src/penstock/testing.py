"""A real server for tests, in a thread of this process and in memory.

with penstock.testing.server() as server:
    penstock.Client(server.url).stream("orders").create()

With pytest, `from penstock.testing import penstock_server` in a conftest.py adds a fixture.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.config.settings import Settings
from penstock.http.app import open_app
from penstock.http.native.server import Server, listen, new_event_loop
from penstock.http.native.tls import open_tls

START_TIMEOUT_S = 30.0


class RunningServer(NamedTuple):
    """The URL of a running server."""

    url: str


@contextlib.contextmanager
def server(**settings: Any) -> Iterator[RunningServer]:
    """Run a server in memory, on a free port, in a thread of its own, and stop it at the end.

    Settings are those of `penstock serve`, for example `long_poll_timeout_s=1`.
    """
    running = _ServerThread(
        Settings(**{"memory": True, "port": 0, "shutdown_timeout_s": 2, **settings})
    )
    thread = threading.Thread(target=running.run, name="penstock-server", daemon=True)
    thread.start()
    try:
        yield RunningServer(running.url())
    finally:
        running.stop()
        thread.join()


class _ServerThread:
    """The server in its thread: it runs until `stop`, which any thread may call."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ready = threading.Event()
        self._url: str | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by `url`, in the caller's thread
            self._failure = error
        finally:
            self._ready.set()

    def url(self) -> str:
        if not self._ready.wait(START_TIMEOUT_S):
            raise TimeoutError(f"The server did not start within {START_TIMEOUT_S:.0f} s.")
        if self._failure is not None:
            raise self._failure
        assert self._url is not None
        return self._url

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._stop.set)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        with contextlib.closing(listen(self._settings.host, self._settings.port)) as listening:
            app = await open_app(self._settings)
            try:
                transport = Server(app, self._settings, open_tls(self._settings))
                self._url = await transport.start(listening)
                self._ready.set()
                await self._stop.wait()
                await transport.stop()
            finally:
                await app.stop(timeout_s=self._settings.shutdown_timeout_s)


try:
    import pytest
except ImportError:  # the context manager works without it
    pass
else:

    @pytest.fixture
    def penstock_server() -> Iterator[RunningServer]:
        """Run a server in memory for one test."""
        with server() as running:
            yield running
