"""Whatever is sent to subscriptions, the answer says in JSON what is wrong and what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config.settings import Settings
from tests.helpers.app import Client, run_with_app
from tests.subscriptions.desk import JSON, ROOT, Desk

PULL: dict[str, Any] = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "w"}
HOOK: dict[str, Any] = {
    "type": "webhook",
    "pattern": "a/*",
    "webhook": {"url": "https://x.example/"},
}
BEARER = {"authorization": "Bearer 1.x"}


def _hook(url: Any) -> dict[str, Any]:
    return {**HOOK, "webhook": {"url": url}}


NO_DOCUMENTS: list[Any] = [
    b"",
    b"{",
    b"null",
    b"[" * 100_000,
    b'{"type":"\xff"}',
    [],
    {},
    {"type": "other"},
    {"type": "pull-wake", "pattern": "a/*"},
    {"type": "pull-wake", "wake_stream": "w"},
    {**PULL, "pattern": "a//b"},
    {**PULL, "pattern": "../b"},
    {**PULL, "pattern": "a/b-**"},
    {**PULL, "pattern": "a/b-?"},
    {**PULL, "wake_stream": "__ds/x"},
    {**PULL, "streams": ["w"]},
    {**PULL, "streams": "a"},
    {**PULL, "streams": ["a\0b"]},
    {**PULL, "lease_ttl_ms": -1},
    {**PULL, "lease_ttl_ms": 10**30},
    {**PULL, "filter": {}},
    {**HOOK, "webhook": None},
    {**HOOK, "webhook": "https://x.example/"},
    _hook(""),
]
TABLE: list[tuple[str, str, Any, int, str]] = [
    # method, what is below the listing, body, status, code
    *(("PUT", "/new", body, 400, "invalid-subscription") for body in NO_DOCUMENTS),
    *(
        ("PUT", "/new", _hook(url), 400, "webhook-url-rejected")
        for url in (
            "ftp://x",
            "not a url",
            "http://169.254.169.254/",
            "https://user:pw@x.example/",
            "https://x.example:99999/",
            "https://[::1",
            "https://x.example/\0",
        )
    ),
    ("PUT", "/new", b" " * 1_100_000, 413, "body-too-large"),
    ("PUT", f"/{'x' * 300}", PULL, 400, "invalid-subscription"),
    ("PUT", "/%ff%fe", PULL, 400, "invalid-path"),
    ("GET", "/%ff%fe", b"", 400, "invalid-path"),
    ("PUT", "/%00", PULL, 400, "invalid-path"),
    ("PUT", "/", PULL, 400, "invalid-path"),
    ("PUT", "", PULL, 405, "method-not-allowed"),
    ("PUT", "/s", {**PULL, "pattern": "b/*"}, 409, "subscription-exists"),
    ("PUT", "/s/claim", PULL, 405, "method-not-allowed"),
    ("PUT", "/s/other", PULL, 404, "route-not-found"),
    ("POST", "/s", b"", 405, "method-not-allowed"),
    ("PATCH", "/s", b"", 405, "method-not-allowed"),
    ("GET", "/nobody", b"", 404, "subscription-not-found"),
    ("GET", "/s/claim", b"", 405, "method-not-allowed"),
    ("GET", "/s/streams", b"", 405, "method-not-allowed"),
    ("GET", "/s/streams/a", b"", 405, "method-not-allowed"),
    ("DELETE", "/s/ack", b"", 405, "method-not-allowed"),
    ("DELETE", "/s/streams", b"", 405, "method-not-allowed"),
    ("DELETE", "/s/other", b"", 404, "route-not-found"),
    ("DELETE", "/nobody/streams/a", b"", 404, "subscription-not-found"),
    ("POST", "/s/other", b"{}", 404, "route-not-found"),
    ("POST", "/nobody/claim", {"worker": "w"}, 404, "subscription-not-found"),
    ("POST", "/nobody/streams", {"streams": ["a"]}, 404, "subscription-not-found"),
    ("POST", "/s/claim", b"", 400, "invalid-subscription"),
    ("POST", "/s/claim", {"worker": 1}, 400, "invalid-subscription"),
    ("POST", "/s/claim", {"worker": ""}, 400, "invalid-subscription"),
    ("POST", "/s/claim", {"worker": "x" * 5000}, 400, "invalid-subscription"),
    ("POST", "/s/claim", {"worker": "w"}, 409, "no-pending-work"),
    ("POST", "/s/ack", {}, 400, "invalid-subscription"),
    ("POST", "/s/ack", {"wake_id": "x", "generation": 1}, 401, "invalid-token"),
    ("POST", "/s/ack", {"wake_id": "x", "generation": 1, "acks": {}}, 400, "invalid-subscription"),
    ("POST", "/s/callback", {"wake_id": "x", "generation": 1}, 401, "invalid-token"),
    ("POST", "/nobody/ack", {"wake_id": "x", "generation": 1}, 401, "invalid-token"),
    ("POST", "/nobody/ack", {}, 400, "invalid-subscription"),
    ("POST", "/s/release", b"", 400, "invalid-subscription"),
    ("POST", "/s/streams", {"streams": []}, 400, "invalid-subscription"),
    ("POST", "/s/streams", {"streams": [1]}, 400, "invalid-subscription"),
    ("POST", "/s/streams", {"streams": ["w"]}, 400, "invalid-subscription"),
    ("POST", "/s/streams", {"streams": ["__ds/x"]}, 400, "invalid-subscription"),
    ("GET", "?limit=0", b"", 400, "invalid-parameter"),
    ("GET", "?limit=1&limit=2", b"", 400, "invalid-parameter"),
]


def test_every_refusal_says_what_is_wrong() -> None:
    async def run(client: Client) -> None:
        assert (await Desk(client).put(**PULL)).status == 201
        for method, below, body, status, code in TABLE:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            answer = await client.send(method, ROOT + below, data, content_type=JSON, **BEARER)
            case = (method, below[:40], data[:80])
            assert (answer.status, answer.json()["code"]) == (status, code), case
            assert answer.headers["content-type"] in (JSON, "application/problem+json"), case
            assert answer.json()["detail"].endswith((".", "…")), case
            assert ("allow" in answer.headers) == (status == 405), case
        assert list(client.app.subscriptions.all) == ["s"]

    run_with_app(run, Settings(memory=True))


@pytest.mark.parametrize("offset", ["now", "-1", "zzz", "0" * 16 + "_" + "9" * 16, ""])
def test_every_offset_that_was_not_read_is_refused(offset: str) -> None:
    async def run(client: Client) -> None:
        desk = Desk(client)
        await desk.pull()
        await desk.append("events/a")
        wake = (await desk.claim()).json()
        for path in ("events/a", "events/b", "/v1/stream/events/a", ""):
            answer = await desk.report("ack", wake, acks=[{"stream": path, "offset": offset}])
            assert (answer.status, answer.json()["error"]["code"]) == (409, "INVALID_OFFSET")
        assert (await desk.finish(wake)).status == 200

    run_with_app(run, Settings(memory=True))
