"""Webhooks: signed, answered at once or by callback, tried again, with a real receiver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from penstock.protocol.wakes import from_b64url
from tests.helpers.app import Client, with_app
from tests.subscriptions.desk import Call, Desk, Receiver, receiver

JWKS = "/v1/stream/__ds/jwks.json"


async def _next(hook: Receiver) -> Call:
    return await asyncio.to_thread(hook.next)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.002)


async def _hooked(client: Client, hook: Receiver, **document: Any) -> Desk:
    desk = Desk(client)
    document = {"pattern": "events/*", "lease_ttl_ms": 1000, **document}
    answer = await desk.put(type="webhook", webhook={"url": hook.url}, **document)
    assert answer.status == 201, answer.body
    return desk


async def _acked(desk: Desk, path: str = "events/a") -> None:
    tail = await desk.tail(path)

    async def is_acked() -> bool:
        return (await desk.cursors()).get(path) == tail

    await _until(is_acked)


async def _failed(desk: Desk) -> Any:
    async def is_failed() -> bool:
        return bool((await desk.show())["status"] == "failed")

    await _until(is_failed)
    return await desk.show()


def verify(call: Call, jwks: Any) -> None:
    """Raises unless the signature is that of a published key."""
    fields = dict(part.split("=", 1) for part in call.signature.split(","))
    key = next(key for key in jwks["keys"] if key["kid"] == fields["kid"])
    public = Ed25519PublicKey.from_public_bytes(from_b64url(key["x"]))
    public.verify(from_b64url(fields["ed25519"]), fields["t"].encode() + b"." + call.body)


@with_app(development=True)
async def test_a_wake_is_signed_and_done_at_once(client: Client) -> None:
    with receiver() as hook:
        desk = await _hooked(client, hook)
        await desk.append("events/a")
        call = await _next(hook)
        jwks = await client.send("GET", JWKS)
        assert jwks.headers["content-type"] == "application/jwk-set+json"
        assert jwks.headers["cache-control"] == "public, max-age=300"
        [key] = jwks.json()["keys"]
        assert key.keys() == {"kty", "crv", "kid", "use", "alg", "x"}  # and no private half
        verify(call, jwks.json())
        signing = (await desk.show())["webhook"]["signing"]
        assert signing == {
            "alg": "ed25519",
            "kid": key["kid"],
            "jwks_url": "http://localhost:4437" + JWKS,
        }
        wake = call.wake
        assert wake["subscription_id"] == "s"
        assert wake["generation"] == 1
        assert wake["callback_url"] == f"http://localhost:4437{desk.url}/callback"
        await _acked(desk)
        # What comes after the snapshot is another wake.
        await desk.append("events/a")
        again = (await _next(hook)).wake
        assert again["generation"] == 2
        assert again["wake_id"] != wake["wake_id"]
        assert again["streams"][0]["acked_offset"] == wake["streams"][0]["tail_offset"]
        await _acked(desk)


@with_app(development=True)
async def test_done_acks_the_snapshot_and_nothing_after(client: Client) -> None:
    with receiver() as hook:
        desk = await _hooked(client, hook)
        hook.answers.put(None)
        hook.answers.put((200, {}))
        await desk.append("events/a", 1)
        first = (await _next(hook)).wake
        await desk.append("events/a", 2)
        hook.default = (200, {"done": True})
        done = await desk.report(
            "callback",
            first,
            acks=[{"stream": "events/a", "offset": first["streams"][0]["tail_offset"]}],
            done=True,
        )
        assert done.json() == {"ok": True, "next_wake": True}
        second = (await _next(hook)).wake
        assert second["streams"][0]["acked_offset"] == first["streams"][0]["tail_offset"]


@with_app(development=True)
async def test_a_callback_extends_the_lease_and_ends_it(client: Client) -> None:
    with receiver() as hook:
        hook.default = (202, {})
        desk = await _hooked(client, hook)
        await desk.append("events/a")
        wake = (await _next(hook)).wake
        client.clock.advance(0.9)
        assert (await desk.report("callback", wake)).status == 200
        client.clock.advance(0.9)
        desk.service.wakes.tick()
        acks = [{"stream": "events/a", "offset": await desk.tail("events/a")}]
        done = await desk.report("callback", wake, acks=acks, done=True)
        assert done.json() == {"ok": True, "next_wake": False}
        stale = await desk.report("callback", wake, acks=acks, done=True)
        assert stale.json()["error"]["code"] == "FENCED"


@with_app(development=True)
async def test_a_late_answer_says_nothing_about_the_next_wake(client: Client) -> None:
    with receiver() as hook:
        hook.answers.put(None)
        hook.held = (200, {"done": True})
        hook.default = (202, {})
        desk = await _hooked(client, hook)
        await desk.append("events/a", 1)
        first = (await _next(hook)).wake
        acks = [{"stream": "events/a", "offset": await desk.tail("events/a")}]
        assert (await desk.report("callback", first, acks=acks, done=True)).status == 200
        await desk.append("events/a", 2)
        second = (await _next(hook)).wake
        hook.released.set()

        async def is_answered() -> bool:
            return not desk.service.webhooks.in_flight

        await _until(is_answered)
        assert (await desk.show())["pending"] == 1
        assert (await desk.report("callback", second)).status == 200


@with_app(development=True)
async def test_no_callback_before_the_lease_ends_is_another_wake(client: Client) -> None:
    with receiver() as hook:
        hook.default = (202, {})
        desk = await _hooked(client, hook)
        await desk.append("events/a")
        first = (await _next(hook)).wake

        async def is_waiting() -> bool:
            return not desk.service.webhooks.in_flight

        await _until(is_waiting)
        client.clock.advance(1)
        desk.service.wakes.tick()
        second = (await _next(hook)).wake
        assert second["generation"] == 2
        late = await desk.report("callback", first, done=True)
        assert late.json()["error"]["code"] == "FENCED"


@with_app(development=True)
async def test_failures_wait_longer_each_time_and_keep_the_wake(client: Client) -> None:
    with receiver() as hook:
        desk = await _hooked(client, hook)
        desk.service.webhooks._chance = lambda: 1.0
        for _ in range(3):
            hook.answers.put((500, {}))
        await desk.append("events/a")
        generations = []
        for wait_s in (1, 2, 4):
            generations.append((await _next(hook)).wake["generation"])
            shown = await _failed(desk)
            assert shown["next_attempt_at"] is not None
            wake = desk.service.all["s"].wake
            assert wake.retry_us - client.clock.now_us() == wait_s * 1_000_000
            client.clock.advance(wait_s - 0.001)
            desk.service.wakes.tick()
            assert (await desk.show())["status"] == "failed"
            client.clock.advance(0.001)
            desk.service.wakes.tick()
        generations.append((await _next(hook)).wake["generation"])
        assert generations == [1, 1, 1, 1]
        await _acked(desk)
        assert (await desk.show())["attempts"] == 0


@with_app(development=True)
async def test_no_answer_within_the_lease_is_a_failure_and_the_end_of_the_wake(
    client: Client,
) -> None:
    with receiver() as hook:
        hook.answers.put(None)
        desk = await _hooked(client, hook)
        desk.service.webhooks._chance = lambda: 1.0
        await desk.append("events/a")
        first = (await _next(hook)).wake
        client.clock.advance(1)
        desk.service.wakes.tick()
        assert (await _failed(desk))["attempts"] == 1
        late = await desk.report("callback", first, done=True)
        assert late.json()["error"]["code"] == "FENCED"
        client.clock.advance(1)
        desk.service.wakes.tick()
        second = (await _next(hook)).wake
        assert second["generation"] == 2
        await _acked(desk)


@with_app(development=True)
async def test_a_callback_counts_though_its_webhook_failed(client: Client) -> None:
    with receiver() as hook:
        hook.answers.put((500, {}))
        desk = await _hooked(client, hook)
        await desk.append("events/a")
        wake = (await _next(hook)).wake
        await _failed(desk)
        acks = [{"stream": "events/a", "offset": await desk.tail("events/a")}]
        assert (await desk.report("callback", wake, acks=acks, done=True)).status == 200
        shown = await desk.show()
        assert (shown["status"], shown["pending"]) == ("active", 0)


@with_app(development=True)
async def test_a_redirect_is_a_failure(client: Client) -> None:
    with receiver() as hook:
        hook.answers.put((302, {"done": True}))
        desk = await _hooked(client, hook)
        await desk.append("events/a")
        await _next(hook)
        assert (await _failed(desk))["pending"] == 1


@with_app(development=True)
async def test_answers_that_are_no_documents_are_not_done(client: Client) -> None:
    with receiver() as hook:
        desk = await _hooked(client, hook)
        contents: list[Any] = ["text", None, [], {"done": "yes"}, {"done": 1}]
        for number, content in enumerate(contents):
            hook.answers.put((200, content))
            await desk.append("events/a", number)
            wake = (await _next(hook)).wake

            async def is_told() -> bool:
                return not desk.service.webhooks.in_flight

            await _until(is_told)
            assert (await desk.show())["pending"] == 1
            acks = [{"stream": "events/a", "offset": await desk.tail("events/a")}]
            assert (await desk.report("callback", wake, acks=acks, done=True)).status == 200


@with_app()
async def test_addresses_that_are_not_called(client: Client) -> None:
    for url in (
        "http://10.0.0.1/hook",
        "https://10.0.0.1/hook",
        "https://169.254.169.254/latest",
        "https://127.0.0.1/hook",
        "http://localhost:8080/hook",
        "http://example.com/hook",
        "https://[::1]/hook",
        "https://user:pass@example.com/",
        "ftp://example.com/",
        "example.com",
    ):
        answer = await Desk(client).put(type="webhook", pattern="a", webhook={"url": url})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")


@with_app(auth_token="server")
async def test_the_servers_token_is_for_everything_but_keys_and_workers(client: Client) -> None:
    document = json.dumps({"type": "pull-wake", "pattern": "e/*", "wake_stream": "w"}).encode()
    root = "/v1/stream/__ds/subscriptions"
    # Also where the name of a subscription looks like an action.
    for id in ("s", "ack", "callback"):
        for method in ("GET", "PUT", "DELETE"):
            assert (await client.send(method, f"{root}/{id}", document)).status == 401
    for action in ("/s/claim", "/s/streams", "/s/streams/ack", "/ack/x/release", ""):
        assert (await client.send("POST", root + action, document)).status == 401
    assert (await client.send("GET", root)).status == 401
    assert (await client.send("GET", "/v1/stream/__ds/jwks.json")).status == 200
    put = await client.send("PUT", f"{root}/s", document, authorization="Bearer server")
    assert put.status == 201
    report = b'{"wake_id": "w", "generation": 1, "done": true}'
    for action in ("ack", "release"):
        answer = await client.send(
            "POST", f"{root}/s/{action}", report, authorization="Bearer server"
        )
        assert (answer.status, answer.json()["code"]) == (401, "invalid-token")
