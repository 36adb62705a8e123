"""The native server as a process: listen, serve, and stop in order on a signal.

Knows sockets and signals; requests are the App's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, cast

from penstock.access.authenticator import Access
from penstock.config.settings import secrets_of
from penstock.http.exposure import check_exposure
from penstock.http.log_format import configure
from penstock.http.message import Application
from penstock.http.native import unsent
from penstock.http.native.connections import ConnectionTable
from penstock.http.native.descriptors import DescriptorWatch
from penstock.http.native.noted_connection import connection_class
from penstock.http.native.opening import Opening
from penstock.http.native.service_manager import ServiceManager
from penstock.http.native.tls import Tls, open_tls
from penstock.http.sender import HTTP, HTTPS
from penstock.http.shutdown import SIGNALS, StopClock, exit_later

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.exchange import Exchanges
    from penstock.http.native.connection import Connection
    from penstock.http.traffic import Traffic

log = logging.getLogger("penstock.http")

BACKLOG = 4096
# OPEN_MAX of macOS: the limit that a process may always set.
OPEN_FILES_MACOS = 10_240


def serve(settings: Settings, *, on_ready: Callable[[Server], None]) -> None:
    """Run a server until SIGTERM or SIGINT; a second signal ends the process at once.

    With TLS a SIGHUP makes it read its certificates again.
    """
    from penstock.http.app import shorten_switch_interval

    if settings.memory:  # no tokens are stored: what the settings say is all
        check_exposure(settings, Access(settings))
    configure(settings.log_level, form=settings.log_format, secrets=secrets_of(settings))
    shorten_switch_interval()
    raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings, on_ready))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop of uvloop, or of asyncio where there is no uvloop, as on Windows."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _serve(settings: Settings, on_ready: Callable[[Server], None]) -> None:
    from penstock.http.app import open_app

    stopping: asyncio.Future[StopClock] = asyncio.get_running_loop().create_future()
    stop_on_signals(stopping, settings.shutdown_timeout_s)
    with contextlib.ExitStack() as undo:
        manager = undo.enter_context(contextlib.closing(ServiceManager()))
        listening = undo.enter_context(contextlib.closing(listen(settings.host, settings.port)))
        tls = open_tls(settings)  # before the store: a mistake in its files is reported at once
        if tls is not None:
            undo.callback(tls.close)
            reload_on_hangup(tls)
        if settings.cluster:
            from penstock.http.native.cluster import ClusterNode

            node = ClusterNode(settings, listening, tls, stopping)
            with manager.serving(node.node.url):
                await node.run(on_ready)
            return
        app = await open_app(settings)
        try:
            check_exposure(settings, app.access)  # only now: tokens may be stored
            server = Server(app, settings, tls, traffic=app.traffic, exchanges=app.exchanges)
            await server.start(listening)
            # What exists now exists until the end: exclude it from every later collection.
            gc.collect()
            gc.freeze()
            on_ready(server)
            with manager.serving(server.url):
                clock = await stopping
            await server.stop(clock)
        finally:
            await app.stop(timeout_s=stopping.result().checkpoint_s() if stopping.done() else None)


def stop_on_signals(stopping: asyncio.Future[StopClock], timeout_s: float) -> None:
    """Let the first signal begin a stop, and end the process if that takes too long."""
    loop = stopping.get_loop()
    has_begun = False

    # Not a handler of the event loop, which would wait for its turn: the loop may be busy.
    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal has_begun
        if has_begun:
            # Everything acknowledged is durable: leaving now loses nothing but the checkpoint.
            os._exit(128 + number)
        has_begun = True
        clock = StopClock(timeout_s)
        exit_later(clock, 128 + number)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to stop
            loop.call_soon_threadsafe(stopping.set_result, clock)

    for number in SIGNALS:
        signal.signal(number, stop)


def reload_on_hangup(tls: Tls) -> None:
    """Let a SIGHUP load the files of TLS; Windows has no such signal."""
    if hasattr(signal, "SIGHUP"):
        loop = asyncio.get_running_loop()

        def reload(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is served
                loop.call_soon_threadsafe(tls.reload)

        signal.signal(signal.SIGHUP, reload)


def listen(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a bound socket, so that a port in use is noticed before the store is opened.

    Processes that share a port get its connections in turn."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
        # On Windows SO_REUSEADDR would let two servers listen on one port.
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        sock.setsockopt(socket.SOL_SOCKET, exclusive or socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit it: an idle reader whose machine has gone is noticed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        unsent.limit(sock, unsent.BYTES)  # inherited as well
        sock.bind((host, port))
        sock.setblocking(False)
        undo.pop_all()
    return sock


def url_of(sock: socket.socket, *, is_tls: bool) -> str:
    """Return the URL of a server that listens on a socket."""
    scheme = HTTPS if is_tls else HTTP
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def raise_open_files() -> None:
    """Raise the limit of open files as far as the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    # macOS reports no hard limit, and refuses more than OPEN_MAX.
    for limit in (hard, max(soft, OPEN_FILES_MACOS)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return


class Server:
    """The native transport for one Application on one event loop."""

    __slots__ = (
        "_app",
        "_connect",
        "_exchanges",
        "_server",
        "_settings",
        "_traffic",
        "_watch",
        "table",
        "tls",
        "url",
    )

    def __init__(
        self,
        app: Application,
        settings: Settings,
        tls: Tls | None = None,
        *,
        traffic: Traffic | None = None,
        exchanges: Exchanges | None = None,
        connect: Callable[[ConnectionTable], Connection] | None = None,
    ) -> None:
        self._app = app
        self._connect = connect
        self._traffic = traffic
        self._exchanges = exchanges
        self._settings = settings
        self.tls = tls
        self.url = ""
        self._server: asyncio.Server | None = None
        self._watch: DescriptorWatch | None = None
        self.table: ConnectionTable

    async def start(self, sock: socket.socket) -> str:
        """Accept connections on `sock`; return the URL of the server."""
        loop = asyncio.get_running_loop()
        table = self.table = ConnectionTable(
            self._app,
            self._settings,
            loop,
            self.tls,
            traffic=self._traffic,
            exchanges=self._exchanges,
        )
        if self._traffic is not None:
            self._traffic.connections = table.count
        is_plain = self.tls is None and not table.expects_proxy_header
        protocol = (self._connect or connection_class(table)) if is_plain else Opening
        self._server = await loop.create_server(
            lambda: cast(asyncio.Protocol, protocol(table)), sock=sock, backlog=BACKLOG
        )
        self._watch = DescriptorWatch(sock, loop, table.count)
        if self.tls is not None:
            self.tls.watch(loop)
        self.url = url_of(sock, is_tls=self.tls is not None)
        return self.url

    async def stop(self, clock: StopClock | None = None) -> None:
        """Accept no more, let requests in flight finish, end live readers, cut the rest."""
        clock = clock or StopClock(self._settings.shutdown_timeout_s)
        if self._watch is not None:
            self._watch.stop()
        if self._server is not None:
            self._server.close()
        if self.tls is not None:
            self.tls.close()
        self.table.drain()
        if not await self.table.emptied(clock.drain_s()):
            log.warning("cut %d connections that did not finish in time", self.table.count())
        self.table.stop()
