"""The server as a process: what it has promised to receivers and workers holds after a kill."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx2

from tests.crash.subscribers import finish
from tests.helpers.server import Server, running_server
from tests.subscriptions.desk import receiver
from tests.subscriptions.test_webhooks import verify

SUBSCRIPTION = "/v1/stream/__ds/subscriptions/s"
QUICK = ["--development", "--webhook-retry", "0.02", "--webhook-retry-max", "0.05"]
DEADLINE_S = 60.0


def _until(condition: Any) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)  # another process is looked at: there is no event to wait for


def _append(http: httpx2.Client, server: Server, path: str, value: int) -> None:
    headers = {"content-type": "application/json"}
    url = f"{server.url}/v1/stream/{path}"
    answer = http.post(url, content=json.dumps(value), headers=headers)
    if answer.status_code == 404:
        answer = http.put(url, content=json.dumps(value), headers=headers)
    answer.raise_for_status()


def _subscribe(http: httpx2.Client, server: Server, **document: Any) -> Any:
    document = {"pattern": "events/*", "lease_ttl_ms": 1000, **document}
    answer = http.put(server.url + SUBSCRIPTION, json=document)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def test_the_signature_can_be_checked_with_the_published_keys_also_after_kill(
    tmp_path: Path,
) -> None:
    with receiver() as hook, httpx2.Client() as http:
        kids = []
        for value in range(2):
            with running_server(data_dir=tmp_path, args=QUICK) as server:
                shown = _subscribe(http, server, type="webhook", webhook={"url": hook.url})
                _append(http, server, "events/a", value)
                call = hook.next()
                signing = shown["webhook"]["signing"]
                verify(call, http.get(server.url + "/v1/stream/__ds/jwks.json").json())
                kids.append(signing["kid"])
                server.kill()
        assert kids[0] == kids[1]


def test_no_event_is_lost_when_the_server_is_killed_under_its_workers(tmp_path: Path) -> None:
    """A worker that claims, keeps and acks; after a kill it goes on with what it had claimed."""
    done: list[int] = []
    sent: list[int] = []
    wake: Any = None
    with httpx2.Client() as http:
        for turn in range(4):
            with running_server(data_dir=tmp_path, args=QUICK) as server:
                url = server.url + SUBSCRIPTION
                http.put(f"{server.url}/v1/stream/wake", json=[]).raise_for_status()
                _subscribe(http, server, type="pull-wake", wake_stream="wake")
                for value in range(turn * 100, turn * 100 + 10):
                    _append(http, server, f"events/{value % 3}", value)
                    sent.append(value)
                    if wake is None:
                        wake = _claim(http, url)
                    if wake is not None and value % 4 == 3:
                        wake = _work(http, server, wake, done)
                # Killed with a claim open: its acks are good afterwards.
                server.kill()
        with running_server(data_dir=tmp_path, args=QUICK) as server:
            url = server.url + SUBSCRIPTION

            def is_done() -> bool:
                nonlocal wake
                wake = wake or _claim(http, url)
                if wake is not None:
                    wake = _work(http, server, wake, done)
                return set(done) >= set(sent)

            _until(is_done)
    assert set(done) == set(sent)
    assert len(done) == len(sent)  # leases outlived the kills, so nothing was done twice


def _claim(http: httpx2.Client, url: str) -> Any:
    answer = http.post(f"{url}/claim", json={"worker": "w"})
    return answer.json() if answer.is_success else None


def _work(http: httpx2.Client, server: Server, wake: Any, done: list[int]) -> Any:
    """Do what a wake names; gives the wake that is still open: none."""
    acks, found = [], []
    for each in wake["streams"]:
        if each["has_pending"]:
            query = {"offset": each["acked_offset"], "until": each["tail_offset"]}
            found += http.get(f"{server.url}/v1/stream/{each['path']}", params=query).json()
            acks.append({"stream": each["path"], "offset": each["tail_offset"]})
    answer = finish(http, server.url + SUBSCRIPTION, wake, acks)
    if answer.is_success:
        done += found
    else:
        assert answer.json()["error"]["code"] == "FENCED", answer.text
    return None


def test_retries_survive_a_kill_of_the_server(tmp_path: Path) -> None:
    with receiver() as hook, httpx2.Client() as http:
        hook.default = (500, {})
        with running_server(data_dir=tmp_path, args=["--development"]) as server:
            _subscribe(http, server, type="webhook", webhook={"url": hook.url})
            _append(http, server, "events/a", 1)
            first = hook.next().wake
            _until(lambda: http.get(server.url + SUBSCRIPTION).json()["status"] == "failed")
            before = http.get(server.url + SUBSCRIPTION).json()
            server.kill()
        hook.default = (200, {"done": True})
        with running_server(data_dir=tmp_path, args=["--development"]) as server:
            after = http.get(server.url + SUBSCRIPTION).json()
            assert after["attempts"] in (0, before["attempts"])  # it may have been tried by now
            second = hook.next().wake
            assert second["wake_id"] == first["wake_id"]
            _until(lambda: http.get(server.url + SUBSCRIPTION).json()["pending"] == 0)
