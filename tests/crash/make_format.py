"""Makes the archive of a data format: folders with one of everything, as this version writes them.

`python -m tests.crash.make_format` writes `format-N.tar.gz` beside this file, for the format of
this version. Run it once before a release that changes the format, and never over an archive that
was released: `test_upgrade` opens all of them. `stopped` is a folder after a clean stop, `crashed`
one of a killed server, with records that only its journal has. `expected.json` says what readers
see in each.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from penstock.log.disk.recovery import FORMAT
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
JSON = "application/json"
BYTES = "application/octet-stream"
FAR_FUTURE = "2099-01-01T00:00:00Z"
SCHEMA = {"types": {"user": {"schema": {"type": "object", "required": ["name"]}}}}


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


def make(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(target, "w:gz") as archive:
        expected: dict[str, Any] = {}
        for name in ("stopped", "crashed"):
            folder = Path(scratch, name)
            with running_server(data_dir=folder, args=ARGS) as server, client_of(server) as client:
                secret = write_first(client)
            with running_server(data_dir=folder, args=ARGS) as server:
                with client_of(server) as client:
                    write_more(client)
                    expected[name] = {**secret, **seen(client)}
                if name == "crashed":
                    server.kill()
            for path in sorted(folder.rglob("*")):
                is_cache = path.is_relative_to(folder / "state") or path.name == "LOCK"
                if path.is_file() and not is_cache and path.suffix != ".spare":
                    archive.add(path, path.relative_to(scratch))
        text = json.dumps(expected, indent=1, sort_keys=True).encode()
        entry = tarfile.TarInfo("expected.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))


if __name__ == "__main__":
    path = Path(__file__).with_name(f"format-{FORMAT}.tar.gz")
    if path.exists():
        sys.exit(f"{path} exists; remove it first if it was never released.")
    make(path)
