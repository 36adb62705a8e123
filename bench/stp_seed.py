"""Fills a data folder with a table, as a server would hold it after its writers have gone."""

from __future__ import annotations

import time
from pathlib import Path

import penstock
from bench import servers
from penstock.stp import Table

PATH = "bench"
SCHEMA = "endpoint_manifest"
KEYS = 100_000
BATCH = 20_000


def event(number: int) -> bytes:
    """A change of about 150 bytes: one key of many gets a new URL."""
    seconds = number % 86_400
    moment = f"2026-01-08T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
    return (
        f'{{"headers":{{"timestamp":"{moment}","operation":"upsert"}},"type":"{SCHEMA}",'
        f'"key":"endpoint-{number % KEYS}","value":"https://provider.example/fhir/r4/{number}"}}'
    ).encode()


def seed_table(data: Path, rows: int) -> float:
    """A table of so many rows, written as events through a real server; seconds taken."""
    started = time.monotonic()
    server = servers.start("ours", data)
    try:
        with penstock.Client(f"http://127.0.0.1:{server.port}", timeout_s=120) as client:
            Table(client, PATH).create(SCHEMA)
            stream = client.stream(PATH, content_type="application/json")
            for start in range(0, rows, BATCH):
                numbers = range(start, min(start + BATCH, rows))
                stream.append_many(map(event, numbers))
    finally:
        server.stop()
    return time.monotonic() - started
