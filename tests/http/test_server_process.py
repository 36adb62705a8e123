"""`penstock serve` as a process: ready, asked to stop, forced to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.server import Server, ServerDidNotStart, running_server
from tests.http.wire import Client, get, on_loop, post


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


async def connect(server: Server) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", server.port))


def put(path: str) -> bytes:
    return post(path, b"", "Content-Type: application/json").replace(b"POST", b"PUT", 1)


async def has_stopped_accepting(server: Server) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except OSError:
            return
        writer.close()


def open_files(server: Server) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@pytest.mark.skipif(
    sys.platform != "linux", reason="the limit of another process is set with prlimit"
)
@on_loop
async def test_the_log_tells_when_no_descriptor_is_left_and_when_there_is_again() -> None:
    import resource

    with running_server(memory=True) as server:
        first = await connect(server)
        assert (await first.ask(get("/healthz"))).status == 200
        limit = open_files(server) + 5
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
        clients = [first]
        while "no file descriptor is left" not in server.stderr:
            if len(clients) < 30:
                clients.append(await connect(server))
            await asyncio.sleep(0.05)
        assert f"limit {limit}" in server.stderr
        assert (await first.ask(get("/healthz"))).status == 200
        for client in clients[1:]:
            await client.close()
        while "available again" not in server.stderr:
            await asyncio.sleep(0.05)
        last = await connect(server)
        assert (await last.ask(get("/healthz"))).status == 200
        assert server.stderr.count("no file descriptor is left") == 1
        for client in (first, last):
            await client.close()


@on_loop
async def test_sigterm_ends_live_readers_cleanly_and_keeps_what_was_acknowledged() -> None:
    with running_server() as server:
        path = "/v1/stream/a"
        events, poll, writer = [await connect(server) for _ in range(3)]
        assert (await writer.ask(put(path))).status == 201
        await events.send(get(path + "?offset=-1&live=sse"))
        await events.head()
        assert b"upToDate" in await events.chunk()
        await poll.send(get(path + "?offset=now&live=long-poll"))
        append = post(path, b'{"n":1}', "Content-Type: application/json")
        await writer.send(append[:-3])  # in flight when the signal comes
        probe = await connect(server)
        waiting = b'penstock_live_readers{mode="long-poll"} 1.0'
        while waiting not in (await probe.ask(get("/metrics"))).body:
            pass
        server.process.send_signal(signal.SIGTERM)
        assert (await poll.answer()).status == 204
        while await events.chunk():
            pass  # up to the terminating chunk
        await has_stopped_accepting(server)
        await writer.send(append[-3:])
        answer = await writer.answer()
        assert (answer.status, answer.headers["connection"]) == (204, "close")
        for client in (events, poll, writer, probe):
            await client.close()
        assert server.wait() == 0
        with running_server(data_dir=server.data_dir) as again:
            client = await connect(again)
            assert (await client.ask(get(path + "?offset=-1"))).body == b'[{"n":1}]'
            await client.close()


@on_loop
async def test_second_signal_does_not_wait() -> None:
    with running_server(args=["--shutdown-timeout", "1000"]) as server:
        client = await connect(server)
        await client.send(post("/v1/stream/a", b"12345", "Expect: 100-continue")[:-5])
        assert (await client.answer()).status == 100
        server.process.send_signal(signal.SIGTERM)
        await has_stopped_accepting(server)
        assert server.running  # it waits for the body
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 128 + signal.SIGTERM
        await client.close()


@on_loop
async def test_input_that_is_no_request_is_counted_as_an_error() -> None:
    with running_server() as server:
        broken, client = await connect(server), await connect(server)
        assert (await broken.ask(b"NOT HTTP\r\n\r\n")).status == 400
        metrics = (await client.ask(get("/metrics"))).body.decode()
        await broken.close()
        await client.close()
    assert 'penstock_errors_total{code="bad-request"} 1.0' in metrics
    assert 'penstock_requests_total{method="other",status="4xx"} 1.0' in metrics


@on_loop
async def test_a_checkpoint_of_a_real_server_empties_the_gauge_of_tail_bytes() -> None:
    args = ["--durability", "buffered", "--checkpoint-bytes", "20KiB"]
    with running_server(args=args) as server:
        client = await connect(server)
        assert (await client.ask(put("/v1/stream/a"))).status == 201
        assert (await client.ask(append_of(1000))).status == 204
        assert await tail_bytes(client) == 1000
        assert (await client.ask(append_of(30_000))).status == 204
        while await tail_bytes(client) != 0:
            pass  # until the checkpoint that these bytes call for is done
        await client.close()


def append_of(size: int) -> bytes:
    """An append that takes so many bytes in the log."""
    return post("/v1/stream/a", b'"%s"' % (b"x" * (size - 4)), "Content-Type: application/json")


async def tail_bytes(client: Client) -> float:
    metrics = (await client.ask(get("/metrics"))).body.decode()
    return float(metrics.partition("\npenstock_tail_bytes ")[2].partition("\n")[0])


def test_taken_port_is_said_and_the_store_left_alone(server: Server) -> None:
    with (
        pytest.raises(ServerDidNotStart, match="in use by another program"),
        running_server(args=["--port", str(server.port)]),
    ):
        pass
    with socket.create_connection(("127.0.0.1", server.port)):
        assert server.running


def test_second_server_on_one_folder_is_refused(server: Server) -> None:
    with (
        pytest.raises(ServerDidNotStart, match="in use by another Penstock"),
        running_server(data_dir=server.data_dir),
    ):
        pass


def test_removing_the_lock_file_admits_no_second_server(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        for _ in range(2):
            (folder / "LOCK").unlink(missing_ok=True)
            with (
                pytest.raises(ServerDidNotStart, match="in use by another Penstock"),
                running_server(data_dir=folder),
            ):
                pass
        assert server.running
        assert server.terminate() == 0
    with running_server(data_dir=folder) as server:
        assert (folder / "LOCK").read_text() == f"{server.pid}\n"


@on_loop
async def test_a_folder_that_was_moved_away_is_written_to_no_more() -> None:
    """Its name may belong to another server by then, whose files must not be touched."""
    with tempfile.TemporaryDirectory(prefix="penstock-moved-") as name:
        folder = Path(name) / "data"
        with running_server(data_dir=folder) as server:
            client = await connect(server)
            assert (await client.ask(put("/v1/stream/a"))).status == 201
            folder.rename(Path(name) / "moved")
            while (answer := await client.ask(get("/readyz"))).status == 200:
                await asyncio.sleep(0.05)
            assert b"was moved, removed or replaced" in answer.body
            assert (await client.ask(put("/v1/stream/b"))).status == 503
            await client.close()
            with running_server(data_dir=folder) as other:
                assert other.terminate() == 0
