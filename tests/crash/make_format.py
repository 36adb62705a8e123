"""Makes the archive of a data format: folders with one of everything, as this version writes them.

`python -m tests.crash.make_format N` writes `format-N.tar.gz` beside this file, for a format that
this version writes. Run it once before a release that changes the format, and never over an archive
that was released: `test_formats` opens all of them. `stopped` is a folder after a clean stop,
`crashed` one of a killed server, with records that only its journal has. Format 3 has the objects
of its cold segments in a folder beside each. `expected.json` says what readers see in each.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from penstock.log.disk.recovery import FORMAT, FORMAT_COLD
from penstock.log.disk.worker_folders import FORMAT_WORKERS
from tests.helpers.server import Server, running_server

TOKEN = "root-token-of-the-tests"
ARGS = [
    *("--token", TOKEN),
    *("--journal-file-bytes", "16KiB"),
    *("--segment-bytes-max", "64KiB"),
    *("--inline-bytes-max", "200"),
    *("--disk-reserve-bytes", "0"),
    *("--audit", "off"),
]
COLD_SEGMENTS = 2
WORKERS = 2
KILL_TIMEOUT_S = 30
FORMATS = (FORMAT, FORMAT_COLD, FORMAT_WORKERS)
JSON = "application/json"
BYTES = "application/octet-stream"
FAR_FUTURE = "2099-01-01T00:00:00Z"
SCHEMA = {"types": {"user": {"schema": {"type": "object", "required": ["name"]}}}}


def args_of(version: int, folder: Path) -> list[str]:
    """Return the flags of a server for a folder of a format."""
    if version == FORMAT_WORKERS:
        return [*ARGS, "--workers", str(WORKERS)]
    if version == FORMAT_COLD:
        objects = folder.with_name(f"{folder.name}-objects").as_uri()
        soon = ("--tier-after", "0", "--tier-interval", "0.1", "--checkpoint-interval", "0.1")
        return [*ARGS, "--tier-url", objects, *soon]
    return ARGS


@contextmanager
def client_of(server: Server) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client


def send(
    client: httpx2.Client, method: str, path: str, body: Any = None, **headers: str
) -> httpx2.Response:
    """Send JSON, or bytes as they are; any error is raised."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    if body is not None and "Content-Type" not in named:
        named["Content-Type"] = JSON if not isinstance(body, bytes) else "application/octet-stream"
    response = client.request(method, path, content=content, headers=named)
    assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
    return response


def event(key: str, operation: str = "insert", **value: Any) -> dict[str, Any]:
    return {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}


def produce(client: httpx2.Client, path: str, seq: int, value: Any) -> httpx2.Response:
    names = {"Producer_Id": "till", "Producer_Epoch": "3", "Producer_Seq": str(seq)}
    return send(client, "POST", f"/v1/stream/{path}", [value], **names)


def write_first(client: httpx2.Client) -> dict[str, str]:
    """One of everything; the answer is what only its maker learns."""
    stream = "/v1/stream/"
    for path in ("json/small", "json/large", "json/closed", "state/users", "jobs/1"):
        send(client, "PUT", stream + path, Content_Type=JSON)
    for path in ("bytes/small", "bytes/large", "bytes/empty", "bytes/source"):
        send(client, "PUT", stream + path, Content_Type=BYTES)
    send(client, "PUT", f"{stream}lives/ttl", Content_Type=JSON, Stream_TTL="3000000000")
    send(client, "PUT", f"{stream}lives/until", Content_Type=JSON, Stream_Expires_At=FAR_FUTURE)
    send(client, "POST", f"{stream}json/small", [1, "two", None])
    for number in range(40):
        send(client, "POST", f"{stream}json/large", [{"n": number, "text": "x" * 3000}])
        send(client, "POST", f"{stream}bytes/large", bytes([number]) * 4000)
    send(client, "POST", f"{stream}bytes/small", b"\x00\xff", Stream_Seq="001")
    send(client, "POST", f"{stream}bytes/source", b"before the fork")
    for seq in range(3):
        produce(client, "json/closed", seq, {"seq": seq})
    send(client, "POST", f"{stream}json/closed", ["last"], Stream_Closed="true")
    _fork(client, "fork/first", "bytes/source")
    send(client, "POST", f"{stream}fork/first", b", and after")
    _fork(client, "fork/second", "fork/first")
    send(client, "DELETE", f"{stream}bytes/source")  # it stays for its forks
    middle = send(client, "GET", f"{stream}json/large?offset=-1&count=10")
    offset = middle.headers["Stream-Next-Offset"]
    send(client, "POST", f"{stream}json/large/__ds/trim", {"before": offset})
    send(client, "PUT", f"{stream}json/small/__ds/retention", {"bytes": 1_000_000_000})
    send(client, "PUT", "/v1/schema/state/users", SCHEMA)
    for number in range(30):
        send(client, "POST", f"{stream}state/users", [event(str(number % 5), name=f"u{number}")])
    send(client, "POST", f"{stream}state/users/__ds/compact", {})
    send(client, "PUT", "/v1/table/tables/prices", {"schema": "prices"})
    send(client, "PUT", "/v1/table/tables/prices?key=apple", b"1.20", Content_Type="text/plain")
    subscription = {"type": "pull-wake", "pattern": "jobs/*", "wake_stream": "wakes"}
    send(client, "PUT", f"{stream}__ds/subscriptions/jobs", subscription)
    send(client, "POST", f"{stream}jobs/1", ["a job"])
    token = send(client, "POST", "/v1/tokens", {"allow": ["read:json/**"], "expires_in": None})
    return {"token": token.json()["token"]}


def write_more(client: httpx2.Client) -> None:
    """Changes of everything that `write_first` has made."""
    stream = "/v1/stream/"
    send(client, "POST", f"{stream}json/small", ["later"])
    send(client, "POST", f"{stream}bytes/large", b"later")
    produce(client, "lives/ttl", 0, "produced")
    send(client, "POST", f"{stream}fork/second", b", and later")
    send(client, "PUT", f"{stream}created/later", b"with a body", Content_Type="text/plain")
    send(client, "PUT", f"{stream}gone", Content_Type=JSON)
    send(client, "DELETE", f"{stream}gone")
    send(client, "POST", f"{stream}bytes/small/__ds/trim", {"before": "now"})
    send(client, "POST", f"{stream}state/users", [event("9", name="later")])
    send(client, "PUT", "/v1/table/tables/prices?key=pear", b"2.40", Content_Type="text/plain")
    send(client, "POST", f"{stream}jobs/1", ["another job"])


def _fork(client: httpx2.Client, path: str, source: str) -> None:
    headers = {"Stream_Forked_From": f"/v1/stream/{source}"}
    send(client, "PUT", f"/v1/stream/{path}", **headers)


def seen(client: httpx2.Client) -> dict[str, Any]:
    """Everything that readers see: streams, states, rows, subscriptions, tokens, policies."""
    listing = send(client, "GET", "/v1/streams").json()["streams"]
    streams = {}
    for each in listing:
        path = f"/v1/stream/{each['path']}?offset=-1"
        body, is_at_tail = b"", False
        while not is_at_tail:
            response = send(client, "GET", path)
            body += response.content
            is_at_tail = response.headers.get("stream-up-to-date") == "true"
            path = f"/v1/stream/{each['path']}?offset={response.headers['stream-next-offset']}"
        kept = ("path", "offset", "content_type", "messages", "bytes", "trimmed", "closed", "ttl")
        entry = {name: each.get(name) for name in kept}
        streams[each["path"]] = {**entry, "body": body.decode("latin-1")}
    subscription = send(client, "GET", "/v1/stream/__ds/subscriptions/jobs").json()
    return {
        "streams": streams,
        "schema": send(client, "GET", "/v1/schema/state/users").json(),
        "state": send(client, "GET", "/v1/state/state/users").json(),
        "rows": send(client, "GET", "/v1/table/tables/prices?since_id=0&timeout=0").text,
        "retention": send(client, "GET", "/v1/stream/json/small/__ds/retention").json(),
        "links": sorted((each["path"], each["acked_offset"]) for each in subscription["streams"]),
        "tokens": [each["id"] for each in send(client, "GET", "/v1/tokens").json()["tokens"]],
    }


def wait_until_cold(client: httpx2.Client) -> None:
    """Wait until the segments that can move are in the object store."""
    while f"penstock_tier_cold_segments {COLD_SEGMENTS}.0" not in client.get("/metrics").text:
        time.sleep(0.1)


def write(folder: Path, version: int, *, crash: bool) -> dict[str, Any]:
    """Write a folder; returns what readers see in it."""
    args = args_of(version, folder)
    with running_server(data_dir=folder, args=args) as server, client_of(server) as client:
        secret = write_first(client)
        if version == FORMAT_COLD:
            wait_until_cold(client)
    # Nothing may be written to the catalog behind the last changes of a folder that crashes.
    with running_server(data_dir=folder, args=[*args, "--checkpoint-interval", "3600"]) as server:
        with client_of(server) as client:
            write_more(client)
            expected = {**secret, **seen(client)}
        if crash:
            kill(server.pid)
    return expected


def kill(pid: int) -> None:
    """Kill a server with its workers, none of which may notice that another one has gone. They have
    let go of their folders when this returns."""
    os.kill(pid, signal.SIGSTOP)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ends = [os.pidfd_open(int(child)) for child in children]
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    for end in ends:
        assert select.select([end], [], [], KILL_TIMEOUT_S)[0], "a worker outlives its end"
        os.close(end)
    os.kill(pid, signal.SIGKILL)


def make(target: Path, version: int) -> None:
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(target, "w:gz") as archive:
        expected: dict[str, Any] = {}
        for name in ("stopped", "crashed"):
            expected[name] = write(Path(scratch, name), version, crash=name == "crashed")
        for path in sorted(Path(scratch).rglob("*")):
            is_cache = {"state", "cache"} & set(path.relative_to(scratch).parts)
            if path.is_file() and not is_cache and path.name != "LOCK" and path.suffix != ".spare":
                archive.add(path, path.relative_to(scratch))
        text = json.dumps(expected, indent=1, sort_keys=True).encode()
        entry = tarfile.TarInfo("expected.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


if __name__ == "__main__":
    if sys.argv[1:] not in [[str(each)] for each in FORMATS]:
        sys.exit(f"Name one of the formats that this version writes: {FORMATS}")
    version = int(sys.argv[1])
    path = Path(__file__).with_name(f"format-{version}.tar.gz")
    if path.exists():
        sys.exit(f"{path} exists; remove it first if it was never released.")
    make(path, version)
