"""Signing keys: kept, replaced when old, published before and after they sign."""

from __future__ import annotations

from penstock.limits import JWKS_MAX_AGE_S
from penstock.subscriptions.keys import Keys
from tests.helpers.app import Client, with_app

AGE_S = 10_000
OVERLAP_S = 2000


def _kids(keys: Keys) -> list[str]:
    return [key["kid"] for key in keys.jwks()["keys"]]


@with_app(webhook_key_age_s=AGE_S, webhook_key_overlap_s=OVERLAP_S)
async def test_rotation_overlaps(client: Client) -> None:
    service = client.app.subscriptions
    keys = service.keys
    assert (_kids(keys), keys.active) == ([], None)
    await service.book.made()
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
    await service.book.made()
    await service.keys.renew()
    again = Keys(service.book, client.app.subscriptions._settings, clock=client.clock)
    assert _kids(again) == _kids(service.keys)
    assert again.sign(b"x") == service.keys.sign(b"x")
