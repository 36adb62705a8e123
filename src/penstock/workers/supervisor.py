"""The process above the workers: it holds the folder and the port, starts the workers, starts one
again that ends, and stops all of them together. It serves no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.backoff import Backoff
from penstock.config.setting import InvalidSetting
from penstock.config.settings import secrets_of
from penstock.errors import StoreError
from penstock.http.log_format import configure
from penstock.http.native.server import listen
from penstock.http.native.service_manager import ServiceManager
from penstock.http.native.tls import open_tls
from penstock.http.shutdown import SIGNALS
from penstock.log.disk.files import Files
from penstock.log.disk.worker_folders import open_workers, worker_folder
from penstock.workers.orders import Orders, encode
from penstock.workers.sockets import socket_folder

if TYPE_CHECKING:
    from penstock.config.settings import Settings

log = logging.getLogger("penstock.workers")

STEADY_S: Final = 30.0
"""A worker that has run for so long has not failed at its start: the next restart is at once."""
GRACE_S: Final = 2.0
"""Time beyond the shutdown timeout before workers that still run are killed."""
_UNSHARED: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_backoff = Backoff(base_s=0.1, cap_s=10.0, jitter=0.5)


def supervise(settings: Settings, *, on_ready: Callable[[str, Path | None], None]) -> None:
    """Run a server of several workers until SIGTERM or SIGINT. `on_ready` gets its URL, and the
    certificate if it made one itself."""
    check(settings)
    configure(settings.log_level, form=settings.log_format, secrets=secrets_of(settings))
    asyncio.run(Supervisor(settings).run(on_ready))


def check(settings: Settings) -> None:
    """Refuse settings that mean nothing, or something else, with several workers."""
    if settings.memory:
        raise InvalidSetting(
            f"Setting memory cannot be used with {settings.workers} workers: a worker that is "
            "started again would have lost its streams. Leave it out, or start with --workers 1."
        )


class Supervisor:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._secret = secrets.token_urlsafe(32)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping: asyncio.Future[int]
        self._sockets = ""

    async def run(self, on_ready: Callable[[str, Path | None], None]) -> None:
        settings = self._settings
        loop = asyncio.get_running_loop()
        self._stopping = loop.create_future()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGHUP, self._send_all, signal.SIGHUP)
        with contextlib.ExitStack() as undo:
            manager = undo.enter_context(contextlib.closing(ServiceManager()))
            # Bound here and not listening: it holds the port while workers come and go.
            sock = listen(settings.host, settings.port, is_shared=True)
            undo.enter_context(contextlib.closing(sock))
            cert, settings = _certified(settings)
            files = Files()
            lock = open_workers(files, settings.data_dir, settings.workers)
            undo.callback(lock.close)
            self._sockets = undo.enter_context(socket_folder())
            self._settings = replace(settings, port=sock.getsockname()[1])
            tasks = await self._start_all()
            if self._stopping.done():
                await self._stop(tasks)
                return
            on_ready(self._url, cert)
            with manager.serving(self._url):
                await self._stopping
                await self._stop(tasks)

    # -- starting

    async def _start_all(self) -> list[asyncio.Task[None]]:
        """Start every worker; raise what one of them could not start for, and end the others."""
        count = self._settings.workers
        ready: list[asyncio.Future[str]] = [
            asyncio.get_running_loop().create_future() for _ in range(count)
        ]
        tasks = [asyncio.create_task(self._keep(index, ready[index])) for index in range(count)]
        waiting = asyncio.gather(*ready)
        both: list[asyncio.Future[Any]] = [waiting, self._stopping]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            return tasks
        if waiting.exception() is not None:
            await self._stop(tasks)
        self._url = waiting.result()[0]
        return tasks

    async def _keep(self, index: int, ready: asyncio.Future[str]) -> None:
        """Start a worker, and start it again whenever it ends."""
        restarts = failures = 0
        loop = asyncio.get_running_loop()
        while not self._stopping.done():
            began = loop.time()
            process, answer = await self._start(index, restarts)
            if not ready.done():
                if "url" not in answer:
                    ready.set_exception(_start_failure(index, answer))
                    await process.wait()
                    return
                ready.set_result(answer["url"])
            code = await process.wait()
            self._processes.pop(index, None)
            if self._stopping.done():
                return
            failures = 1 if loop.time() - began > STEADY_S else failures + 1
            restarts += 1
            why = answer.get("error") or f"it ended with code {code}"
            wait_s = 0.0 if failures == 1 else _backoff.wait_s(failures - 1, random.random())
            log.error("worker %d is started again in %.1f s: %s", index, wait_s, why)
            await asyncio.wait([self._stopping], timeout=wait_s)

    async def _start(
        self, index: int, restarts: int
    ) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
        """Start a worker; return it, and what it says when it is ready or gives up."""
        settings = self._settings
        orders = Orders(
            settings=_settings_of(settings, index),
            index=index,
            secret=self._secret,
            sockets=self._sockets,
            restarts=restarts,
        )
        environ = {name: text for name, text in os.environ.items() if name not in _UNSHARED}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock.workers.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environ,
            # Ctrl-C reaches the whole terminal: workers stop when the supervisor says so.
            start_new_session=True,
        )
        self._processes[index] = process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(encode(orders))
            await process.stdin.drain()
        line = await process.stdout.readline()
        if self._stopping.done():
            self._signal(process, signal.SIGTERM)
        return process, json.loads(line) if line else {}

    # -- stopping

    def _signalled(self, number: int) -> None:
        if self._stopping.done():
            # Everything acknowledged is durable: leaving now loses nothing but checkpoints.
            self._send_all(signal.SIGKILL)
            os._exit(128 + number)
        self._stopping.set_result(number)

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Stop all workers; kill those that do not stop in time."""
        if not self._stopping.done():
            self._stopping.set_result(0)
        self._send_all(signal.SIGTERM)
        timeout_s = max(self._settings.shutdown_timeout_s, 5.0) + GRACE_S
        _, running = await asyncio.wait(tasks, timeout=timeout_s)
        if running:
            log.error("%d workers did not stop in time: they end now", len(running))
            self._send_all(signal.SIGKILL)
            await asyncio.wait(running)

    def _send_all(self, number: int) -> None:
        for process in list(self._processes.values()):
            self._signal(process, number)

    def _signal(self, process: asyncio.subprocess.Process, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)


def _settings_of(settings: Settings, index: int) -> Settings:
    """Return the settings of a worker: its folder, and its part of what tiers may have on disk."""
    workers = settings.workers
    return replace(
        settings,
        data_dir=worker_folder(settings.data_dir, index),
        # 0 means no bound.
        tier_local_bytes_max=-(-settings.tier_local_bytes_max // workers),
        tier_cache_bytes_max=settings.tier_cache_bytes_max // workers,
    )


def _start_failure(index: int, answer: dict[str, Any]) -> StoreError:
    if "error" in answer:
        return StoreError(str(answer["error"]))
    return StoreError(f"Worker {index} ended while it was started; its log says why.")


def _certified(settings: Settings) -> tuple[Path | None, Settings]:
    """Return the self-signed certificate, if there is one, and settings that name its files: all
    workers show the same."""
    if not settings.tls_self_signed:
        return None, settings
    tls = open_tls(settings)
    assert tls is not None
    cert, key = tls.files.cert, tls.files.key
    tls.close()
    return cert, replace(settings, tls_self_signed=False, tls_cert=cert, tls_key=key)
