"""A server that is killed while streams come and go has a true registry after its next start."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import httpx2

from tests.helpers.server import running_server

JSON = {"Content-Type": "application/json"}
ARGS = ("--registry", "--registry-log-bytes", "20k", "--durability", "fsync")
ROUNDS = 3
WAIT_S = 20.0


def churn(url: str, chance: random.Random, done: threading.Semaphore) -> None:
    """Create and delete streams until the server is gone; release `done` for each request."""
    try:
        with httpx2.Client(base_url=f"{url}/v1/stream/") as http:
            while True:
                path = f"s/{chance.randrange(40)}"
                if chance.random() < 0.6:
                    http.put(path, headers=JSON)
                else:
                    http.delete(path)
                done.release()
    except httpx2.HTTPError:
        return


def streams(url: str) -> set[str]:
    listing = httpx2.get(f"{url}/v1/streams", params={"limit": 1000}).json()
    return {each["path"] for each in listing["streams"]}


def registered(url: str) -> set[str]:
    paths: set[str] = set()
    answer = httpx2.get(f"{url}/v1/stream/__registry__")
    if answer.status_code == 404:  # the server writes it a moment after its start
        return paths
    for event in answer.json():
        if event["headers"]["operation"] == "delete":
            paths.remove(event["key"])
        else:
            paths.add(event["key"])
    return paths


def settled(url: str) -> set[str]:
    """The registered paths, once they are those of all streams."""
    deadline = time.monotonic() + WAIT_S
    while (paths := registered(url)) != (expected := streams(url)):
        assert time.monotonic() < deadline, expected ^ paths
        time.sleep(0.01)
    return paths


def test_the_registry_is_true_after_every_kill(tmp_path: Path) -> None:
    chance = random.Random(15)
    for _ in range(ROUNDS):
        with running_server(args=ARGS, data_dir=tmp_path) as server:
            settled(server.url)
            done = threading.Semaphore(0)
            writers = [
                threading.Thread(target=churn, args=(server.url, random.Random(seed), done))
                for seed in range(3)
            ]
            for writer in writers:
                writer.start()
            for _ in range(chance.randint(40, 100)):
                assert done.acquire(timeout=WAIT_S)
            server.kill()
            for writer in writers:
                writer.join(WAIT_S)
    with running_server(args=ARGS, data_dir=tmp_path) as server:
        assert len(settled(server.url)) > 5
