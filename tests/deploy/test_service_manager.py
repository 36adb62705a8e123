"""What systemd is told by a real server process: when it is ready, alive and stopping."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.http.native.service_manager import ServiceManager
from tests.helpers.server import running_server

WAIT_S = 30.0


@contextmanager
def manager(address: str | bytes) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(WAIT_S)
        yield sock


def received(sock: socket.socket) -> list[str]:
    return sock.recv(4096).decode().split("\n")


def receive_all(sock: socket.socket) -> None:
    """Read what was sent; TimeoutError when there is no more."""
    while True:
        received(sock)


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_server_tells_when_it_is_ready_and_when_it_stops(
    is_abstract: bool, tmp_path: Path
) -> None:
    if is_abstract and sys.platform != "linux":
        pytest.skip("only Linux has sockets without a file")
    name = f"penstock-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    address = b"\0" + name.encode() if is_abstract else name
    variable = f"@{name}" if is_abstract else name
    with (
        manager(address) as sock,
        running_server(memory=True, env={"NOTIFY_SOCKET": variable}) as server,
    ):
        assert received(sock) == [
            "READY=1",
            f"STATUS=Serving {server.url}",
            f"MAINPID={server.pid}",
        ]
        server.process.send_signal(signal.SIGTERM)
        assert received(sock)[0] == "STOPPING=1"
        assert server.wait() == 0


def test_the_event_loop_gives_signs_of_life_until_it_hangs(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
    with manager(path) as sock, running_server(memory=True, env=env) as server:
        assert received(sock)[0] == "READY=1"
        for _ in range(3):
            assert received(sock) == ["WATCHDOG=1"]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            sock.settimeout(1.0)
            with pytest.raises(TimeoutError):
                receive_all(sock)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        sock.settimeout(WAIT_S)
        assert received(sock) == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "env",
    [
        {"NOTIFY_SOCKET": "/nowhere/notify"},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "soon"},
    ],
)
def test_a_manager_that_cannot_be_told_stops_nothing(env: dict[str, str]) -> None:
    manager = ServiceManager(env)
    with manager.serving("http://127.0.0.1:1"):
        pass
    manager.close()


def test_signs_of_life_are_sent_by_the_process_that_is_meant(tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000"}
    assert ServiceManager(env)._interval_s == 0.0005
    assert ServiceManager({**env, "WATCHDOG_PID": str(os.getpid())})._interval_s == 0.0005
    assert ServiceManager({**env, "WATCHDOG_PID": "1"})._interval_s == 0
