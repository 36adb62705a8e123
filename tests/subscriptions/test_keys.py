"""Signing keys: kept, replaced when old, published before and after they sign."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import DiskFull
from penstock.limits import JWKS_MAX_AGE_S
from penstock.subscriptions.keys import Keys
from tests.helpers.app import Client, with_app

AGE_S = 10_000
OVERLAP_S = 2000
ROTATE = "/v1/stream/__ds/rotate-key"


def _kids(keys: Keys) -> list[str]:
    return [key["kid"] for key in keys.jwks()["keys"]]


@with_app(webhook_key_age_s=AGE_S, webhook_key_overlap_s=OVERLAP_S)
async def test_rotation_overlaps(client: Client) -> None:
    service = client.app.subscriptions
    keys = service.keys
    assert (_kids(keys), keys.active) == ([], None)
    await service.store.ensure()
    await keys.renew()
    first = keys.active
    assert first is not None
    assert _kids(keys) == [first.kid]
    client.clock.advance(AGE_S - 1)
    await keys.renew()
    assert _kids(keys) == [first.kid]
    # Old enough: the next one is published, and signs once everybody can know it.
    client.clock.advance(1)
    await keys.renew()
    old, new = _kids(keys)
    assert old == first.kid
    assert keys.active == first
    client.clock.advance(JWKS_MAX_AGE_S - 1)
    assert keys.active == first
    client.clock.advance(1)
    second = keys.active
    assert second is not None
    assert second.kid == new
    assert f"kid={new}," in keys.sign(b"{}")
    # The old one can still be checked for as long as the overlap.
    client.clock.advance(OVERLAP_S - 1)
    assert _kids(keys) == [old, new]
    client.clock.advance(1)
    assert _kids(keys) == [new]


@with_app()
async def test_keys_are_kept(client: Client) -> None:
    service = client.app.subscriptions
    await service.store.ensure()
    await service.keys.renew()
    again = Keys(service.store, client.app.subscriptions._settings, clock=client.clock)
    assert _kids(again) == _kids(service.keys)
    assert again.sign(b"x") == service.keys.sign(b"x")


@with_app(webhook_key_age_s=AGE_S, webhook_key_overlap_s=OVERLAP_S)
async def test_a_key_is_replaced_on_demand_with_the_same_overlap(client: Client) -> None:
    keys = client.app.subscriptions.keys
    first = (await client.send("POST", ROTATE)).json()["kid"]
    assert keys.active is not None
    assert keys.active.kid == first
    client.clock.advance(10)
    answer = (await client.send("POST", ROTATE)).json()
    second = answer["kid"]
    # Said twice, it is still one replacement.
    assert (await client.send("POST", ROTATE)).json() == answer
    shown = (await client.send("GET", "/v1/stream/__ds/jwks.json")).json()
    assert [key["kid"] for key in shown["keys"]] == [first, second]
    assert f"kid={first}," in keys.sign(b"{}")
    client.clock.advance(JWKS_MAX_AGE_S)
    assert f"kid={second}," in keys.sign(b"{}")
    client.clock.advance(OVERLAP_S - 1)
    assert _kids(keys) == [first, second]
    client.clock.advance(1)
    assert _kids(keys) == [second]
    # Its age counts from when it signs.
    client.clock.advance(AGE_S - OVERLAP_S - 1)
    await keys.renew()
    assert _kids(keys) == [second]
    client.clock.advance(1)
    await keys.renew()
    assert len(_kids(keys)) == 2


@with_app(auth_token="secret")
async def test_replacing_a_key_needs_the_token(client: Client) -> None:
    assert (await client.send("POST", ROTATE)).status == 401
    assert (await client.send("POST", ROTATE, authorization="Bearer secret")).status == 200
    assert (await client.send("POST", "/v1/stream/__ds/jwks.json")).status in (401, 405)


@with_app()
async def test_a_key_that_cannot_be_kept_is_not_used(client: Client) -> None:
    service = client.app.subscriptions
    await service.store.ensure()

    def refuse(name: str, value: bytes) -> asyncio.Future[None]:
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failed.set_exception(DiskFull("There is no room."))
        return failed

    write, service.store.set_meta = service.store.set_meta, refuse  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await service.keys.renew()
    assert (_kids(service.keys), service.keys.active) == ([], None)
    service.store.set_meta = write  # type: ignore[method-assign]
    await service.keys.renew()
    assert len(_kids(service.keys)) == 1
