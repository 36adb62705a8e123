"""The URLs that the server gives out do not depend on who asks: a Host can be forged."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.app import Answer, Client, run_with_app, settings_of, with_app
from tests.subscriptions.desk import JSON, Desk, receiver

PUBLIC = "https://streams.example.com/penstock"
EVIL = "evil.example"
ANY_HOST = ("*",)  # so that the requests reach what is tested here
HOOK = {"type": "webhook", "pattern": "events/*", "webhook": {"url": "https://93.184.216.34/hook"}}


async def _put(desk: Desk, host: str, **document: Any) -> Answer:
    body = json.dumps(document).encode()
    return await desk.client.send("PUT", desk.url, body, content_type=JSON, host=host)


async def _callback_url(desk: Desk, hook: Any) -> str:
    await desk.append("events/a")
    url: str = (await asyncio.to_thread(hook.next)).wake["callback_url"]
    return url


@with_app(development=True, allowed_hosts=ANY_HOST)
async def test_a_repeated_put_with_another_host_changes_nothing(client: Client) -> None:
    with receiver() as hook:
        desk = Desk(client)
        document = {**HOOK, "webhook": {"url": hook.url}}
        assert (await _put(desk, "127.0.0.1:4437", **document)).status == 201
        row = client.app.subscriptions.all["s"].row
        assert (await _put(desk, EVIL, **document)).status == 200
        assert client.app.subscriptions.all["s"].row == row
        assert await _callback_url(desk, hook) == f"http://127.0.0.1:4437{desk.url}/callback"


@with_app(development=True, public_url=f"{PUBLIC}/", allowed_hosts=ANY_HOST)
async def test_every_url_is_public_if_that_is_set(client: Client) -> None:
    with receiver() as hook:
        desk = Desk(client)
        created = await _put(desk, EVIL, **{**HOOK, "webhook": {"url": hook.url}})
        jwks_url = f"{PUBLIC}/v1/stream/__ds/jwks.json"
        assert created.json()["webhook"]["signing"]["jwks_url"] == jwks_url
        assert await _callback_url(desk, hook) == f"{PUBLIC}{desk.url}/callback"
    stream = await client.put("a", host=EVIL)
    assert stream.headers["location"] == f"{PUBLIC}/v1/stream/a"
    document = b'{"schema": "s"}'
    table = await client.send("PUT", "/v1/table/t", document, host=EVIL)
    assert (table.status, table.headers["location"]) == (201, f"{PUBLIC}/v1/table/t")
    assert not [answer for answer in (created, stream, table) if EVIL in repr(answer)]


@with_app()
async def test_a_webhook_is_refused_until_the_server_knows_its_url(client: Client) -> None:
    refused = await Desk(client).put(**HOOK)
    assert (refused.status, refused.json()["code"]) == (400, "public-url-not-set")
    assert "Set public_url (--public-url)" in refused.json()["detail"]
    assert not client.app.subscriptions.all
    # A URL that is never called is refused for that reason first.
    local = await Desk(client).put(**{**HOOK, "webhook": {"url": "http://127.0.0.1/"}})
    assert local.json()["code"] == "webhook-url-rejected"
    # Those that are not called back need none.
    await Desk(client).pull()


@with_app(public_url=PUBLIC)
async def test_a_webhook_is_accepted_when_it_does(client: Client) -> None:
    assert (await Desk(client).put(**HOOK)).status == 201


def test_webhooks_of_before_are_called_as_before_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(client: Client) -> None:
        assert (await _put(Desk(client), "old.example:4437", **HOOK)).status == 201

    async def after(client: Client) -> None:
        service = client.app.subscriptions
        service.start()
        await service.ready()
        url = service.webhooks.url(service.all["s"])
        assert url == f"http://old.example:4437{Desk(client).url}"

    run_with_app(before, settings_of("disk", tmp_path, development=True, allowed_hosts=ANY_HOST))
    with caplog.at_level(logging.WARNING, "penstock.subscriptions"):
        run_with_app(after, settings_of("disk", tmp_path))
    warnings = [each.getMessage() for each in caplog.records if "public_url" in each.getMessage()]
    assert warnings
    assert "http://old.example:4437" in warnings[0]
