"""One worker as a process: `python -m penstock.workers.process`, started by the supervisor alone.

It serves the public port together with its siblings, and a UNIX socket for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING

from penstock.config.settings import secrets_of
from penstock.errors import PenstockError
from penstock.http.exposure import check_exposure
from penstock.http.log_format import configure
from penstock.http.native.peer_server import PeerServer
from penstock.http.native.server import (
    Server,
    listen,
    new_event_loop,
    raise_open_files,
    reload_on_hangup,
    stop_on_signals,
)
from penstock.http.native.tls import open_tls
from penstock.http.shutdown import StopClock
from penstock.workers import orders as orders_format
from penstock.workers.handover import Taker, connect
from penstock.workers.node import WorkerNode
from penstock.workers.orders import Orders
from penstock.workers.owners import connections_socket, requests_socket
from penstock.workers.sockets import has_parent, private_socket, say

if TYPE_CHECKING:
    pass


def main() -> None:
    """Run the worker that stdin describes."""
    orders = orders_format.read(sys.stdin.buffer)
    try:
        run(orders)
    except (PenstockError, OSError) as error:
        detail = error.detail if isinstance(error, PenstockError) else str(error)
        code = error.code if isinstance(error, PenstockError) else ""
        say(orders_format.failure_line(detail, code))
        raise SystemExit(1) from None


def run(orders: Orders) -> None:
    from penstock.http.app import shorten_switch_interval

    settings = orders.settings
    configure(settings.log_level, form=settings.log_format, secrets=secrets_of(settings))
    shorten_switch_interval()
    raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(orders))


async def _serve(orders: Orders) -> None:
    from penstock.http.app import open_app

    settings = orders.settings
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[StopClock] = loop.create_future()
    stop_on_signals(stopping, settings.shutdown_timeout_s)
    # The end of stdin is the end of the supervisor.
    loop.add_reader(sys.stdin.fileno(), _orphaned, stopping, settings.shutdown_timeout_s)
    with contextlib.ExitStack() as undo:
        listening = undo.enter_context(
            contextlib.closing(listen(settings.host, settings.port, is_shared=True))
        )
        tls = open_tls(settings)
        if tls is not None:
            undo.callback(tls.close)
            reload_on_hangup(tls)
        node = WorkerNode(orders)
        app = await open_app(settings, elsewhere=node.elsewhere)
        try:
            await node.attach(app)
            undo.callback(node.close)
            private = PeerServer(node.private, settings)
            undo.callback(private.close)
            path = requests_socket(orders.sockets, orders.index)
            await private.start(private_socket(path, socket.SOCK_STREAM))
            await node.join()
            check_exposure(settings, app.access)
            server = Server(
                node.public,
                settings,
                tls,
                traffic=app.traffic,
                exchanges=app.exchanges,
                connect=partial(connect, node.giver),
            )
            await server.start(listening)
            taker = Taker(
                connections_socket(orders.sockets, orders.index), server.table, node.giver
            )
            gc.collect()
            gc.freeze()
            say(orders_format.ready_line(server.url))
            clock = await stopping
            taker.close()
            await server.stop(clock)
            private.accept_no_more()
        finally:
            await app.stop(timeout_s=stopping.result().checkpoint_s() if stopping.done() else None)


def _orphaned(stopping: asyncio.Future[StopClock], timeout_s: float) -> None:
    """Stop in order: the supervisor has gone, and with it the lock of the folder."""
    loop = asyncio.get_running_loop()
    if has_parent():
        return
    loop.remove_reader(sys.stdin.fileno())
    if not stopping.done():
        stopping.set_result(StopClock(timeout_s))


if __name__ == "__main__":
    main()
