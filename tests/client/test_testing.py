"""The server that users start in their own tests."""

from __future__ import annotations

import socket
import threading
import time

import pytest

import penstock
from penstock import testing
from penstock.errors import ConnectionFailed
from penstock.testing import RunningServer, penstock_server

__all__ = ["penstock_server"]  # used as a fixture below


def test_server_runs_in_this_process_and_is_gone_afterwards() -> None:
    threads = threading.active_count()
    with testing.server() as server, penstock.Client(server.url) as client:
        client.stream("orders").create(body={"a": 1})
        assert client.stream("orders").read_json() == [{"a": 1}]
    once = penstock.Retry(attempts_max=1)
    with penstock.Client(server.url, retry=once) as client, pytest.raises(ConnectionFailed):
        client.stream("orders").head()
    # Threads that have nothing to do any more are told to end, and not waited for.
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_two_servers_know_nothing_of_each_other() -> None:
    with testing.server() as one, testing.server() as two:
        with penstock.Client(one.url) as client:
            client.stream("orders").create()
        with penstock.Client(two.url) as client:
            assert not client.stream("orders").exists()


def test_settings_are_those_of_the_server() -> None:
    with (
        testing.server(auth_token="secret") as server,
        penstock.Client(server.url, token="secret") as client,
    ):
        assert client.stream("orders").create().created


def test_server_that_cannot_start_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"), testing.server(port=port):
            pass


def test_follower_that_still_waits_does_not_keep_the_server() -> None:
    with penstock.Client("http://unused") as client:
        with testing.server() as server:
            stream = client.stream(server.url + "/v1/stream/orders")
            stream.create(body=1)
            follow = stream.follow()
            assert next(follow).messages == [1]
        follow.close()


def test_fixture_is_a_server(penstock_server: RunningServer) -> None:
    with penstock.Client(penstock_server.url) as client:
        assert not client.stream("orders").exists()
