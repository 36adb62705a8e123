"""Stops: in time whatever is going on, and with everything that was acknowledged."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.clock import SYSTEM_CLOCK
from penstock.config.settings import Settings
from penstock.log import open_engine
from penstock.log.disk.files import File, Files
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.log.requests import Append
from penstock.protocol.lifecycle import StreamConfig
from penstock.state.server.index import IndexFault, StateIndex
from tests.helpers.server import ROOT, Server, running_server
from tests.http.wire import Client, get

JSON = "Content-Type: application/json"


async def connect(server: Server) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", server.port))


def request(method: str, path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


@pytest.mark.parametrize("asgi", [False, True], ids=["native", "uvicorn"])
def test_live_readers_of_every_kind_do_not_delay_a_stop(asgi: bool) -> None:
    async def stop() -> None:
        # Every one of these would last for 60 s: longer than `wait` does.
        long = ["--long-poll-timeout", "60", "--table-idle", "60"]
        with running_server(asgi=asgi, args=["--shutdown-timeout", "5", *long]) as server:
            writer, events, poll, rows = [await connect(server) for _ in range(4)]
            assert (await writer.ask(request("PUT", "/v1/stream/a", b"[1]", JSON))).status == 201
            table = request("PUT", "/v1/table/t", b'{"schema":"s"}', JSON)
            assert (await writer.ask(table)).status == 201
            await events.send(get("/v1/stream/a?offset=-1&live=sse"))
            await events.head()
            assert b"1" in await events.chunk()
            await rows.send(get("/v1/table/t"))
            await rows.head()
            await poll.send(get("/v1/stream/a?offset=now&live=long-poll"))
            waiting = b'penstock_live_readers{mode="long-poll"} 1.0'
            while waiting not in (await writer.ask(get("/metrics"))).body:
                pass
            append = request("POST", "/v1/stream/a", b"[2]", JSON)
            assert (await writer.ask(append)).status == 204
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.wait) == 0
            for client in (writer, events, poll, rows):
                await client.close()
            with running_server(data_dir=server.data_dir) as again:
                client = await connect(again)
                assert json.loads((await client.ask(get("/v1/stream/a"))).body) == [1, 2]
                await client.close()

    asyncio.run(stop())


def test_an_index_that_is_behind_does_not_delay_a_stop(tmp_path: Path) -> None:
    asyncio.run(_stop_behind_an_index(tmp_path))


async def _stop_behind_an_index(folder: Path) -> None:
    with running_server(data_dir=folder, args=["--shutdown-timeout", "2"]) as server:
        client = await connect(server)
        assert (await client.ask(request("PUT", "/v1/stream/s", b"", JSON))).status == 201
        count = 0
        for part in range(2):
            events = [
                {"type": "u", "key": f"{part}-{n}", "value": n, "headers": {"operation": "upsert"}}
                for n in range(30_000)
            ]
            body = json.dumps(events).encode()
            assert (await client.ask(request("POST", "/v1/stream/s", body, JSON))).status == 204
            count += len(events)
        schema = request("PUT", "/v1/schema/s", b'{"types":{}}', JSON)
        assert (await client.ask(schema)).status == 201
        lag = (await client.ask(get("/metrics"))).body
        assert b"penstock_state_lag_streams 1.0" in lag
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0
        await client.close()
    with running_server(data_dir=folder) as again:
        client = await connect(again)
        answer = await client.ask(get("/v1/stream/s?splits=1"))
        assert json.loads(answer.body)["ordinals"] == [0, count]
        await client.close()


def test_a_long_statement_of_the_index_is_interrupted() -> None:
    index = StateIndex(None)
    index.begin(1, "s")
    events = b"".join(
        b'{"type":"u","key":"%d","value":1,"headers":{"operation":"upsert"}},\n' % n
        for n in range(2000)
    )
    index.apply(1, 0, events)
    # A join without end, in effect.
    endless = "SELECT count(*) FROM changes a, changes b, changes c, changes d"
    threading.Timer(0.1, index.interrupt).start()
    with pytest.raises(IndexFault, match="interrupted"):
        index.ask(1, 0, lambda db, _: db.execute(endless).fetchone())
    index.close()


class SlowFile(File):
    """A file whose every sync takes a while."""

    __slots__ = ()

    def sync_data(self) -> None:
        time.sleep(0.05)
        super().sync_data()


class SlowFiles(Files):
    def can_sync_all(self) -> bool:
        return False

    def open_write(self, path: Path) -> File:
        file = super().open_write(path)
        if path.suffix == ".segment":
            file.__class__ = SlowFile
        return file


@pytest.mark.parametrize("timeout_s", [0.0, 0.3])
def test_a_checkpoint_that_takes_too_long_is_abandoned_and_nothing_is_lost(
    tmp_path: Path, timeout_s: float
) -> None:
    settings = Settings(data_dir=tmp_path, inline_bytes_max=0, disk_reserve_bytes=0)
    streams = 60  # three seconds of syncs

    async def fill() -> int:
        store = DiskStore(settings, clock=SYSTEM_CLOCK, files=SlowFiles())
        engine = Engine(store, settings, clock=SYSTEM_CLOCK)
        await engine.start()
        config = StreamConfig("application/json", None, None)
        for number in range(streams):
            await engine.create(f"s{number}", config, b"", closed=False)
            append = Append(b"[1,2,3]", "application/json", False, None, None, None)
            await engine.append(f"s{number}", append)
        await engine.stop(timeout_s=timeout_s)
        return store.stats.checkpoints

    async def check() -> None:
        engine = open_engine(settings)
        await engine.start()
        for number in range(streams):
            stream = engine.find(f"s{number}", touch=False)
            assert await engine.read(stream, 0, stream.tail) == b"1,\n2,\n3,\n"
        await engine.stop()

    assert asyncio.run(fill()) == 0
    asyncio.run(check())


STUCK = """
import sys, time
from penstock.http import health, shutdown
from penstock.cli import main

def stuck(self, path, request):
    print("stuck", flush=True)
    while True:
        sum(range(1000))

shutdown.EXIT_MIN_S = 0.2
health.Health.alive = stuck
sys.argv[:1] = ["penstock"]
main()
"""


@contextmanager
def stuck_server(folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A server whose event loop is in a handler that never ends."""
    flags = ["serve", "--port", "0", "--memory", "--shutdown-timeout", "0.3", *args]
    with (folder / "stderr").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", STUCK, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={"PYTHONPATH": str(ROOT)},
        )
    assert server.stdout is not None
    try:
        url = server.stdout.readline().split()[2]
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as sock:
            sock.sendall(get("/healthz"))
            assert server.stdout.readline() == "stuck\n"
            yield server
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def test_a_busy_event_loop_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    with stuck_server(tmp_path) as server:
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM
    assert "did not stop in time" in (tmp_path / "stderr").read_text()


def test_a_second_signal_ends_a_process_with_a_busy_event_loop_at_once(tmp_path: Path) -> None:
    with stuck_server(tmp_path, "--shutdown-timeout", "1000") as server:
        server.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.5)
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM
