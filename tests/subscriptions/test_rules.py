"""Documents and their hash, tokens, signatures and waits: rules without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidSubscription
from penstock.protocol.subscription import Config, parse_config
from penstock.protocol.wakes import (
    b64url,
    from_b64url,
    mint_token,
    signature_header,
    signed_bytes,
    token_generation,
)

HOOK = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://x.example/"}}
PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wake"}


def _parse(document: Any) -> Config:
    return parse_config(json.dumps(document).encode(), path_bytes_max=1024, streams_max=10)


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "/a/*"},
        {"pattern": "%61/*"},
        {"lease_ttl_ms": 30_000},
        {"description": None},
        {"wake_stream": "ignored/for/webhooks"},
        {"filter": None},
        {"unknown": 1},
    ],
)
def test_documents_that_mean_the_same_have_one_hash(change: dict[str, Any]) -> None:
    assert _parse({**HOOK, **change}).hash == _parse(HOOK).hash


def test_the_order_and_spelling_of_streams_do_not_matter() -> None:
    one = _parse({**HOOK, "streams": ["b", "/a", "b"]})
    assert one.streams == ("a", "b")
    assert one.hash == _parse({**HOOK, "streams": ["a", "b"]}).hash


@pytest.mark.parametrize(
    "change",
    [
        {"pattern": "a/**"},
        {"streams": ["b"]},
        {"webhook": {"url": "https://y.example/"}},
        {"lease_ttl_ms": 1000},
        {"description": "x"},
    ],
)
def test_documents_that_differ_have_other_hashes(change: dict[str, Any]) -> None:
    assert _parse({**HOOK, **change}).hash != _parse(HOOK).hash


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {**HOOK, "type": "other"},
        {**HOOK, "pattern": None},
        {**HOOK, "webhook": None},
        {**HOOK, "webhook": {"url": ""}},
        {**HOOK, "webhook": {"url": 5}},
        {**HOOK, "lease_ttl_ms": 999},
        {**HOOK, "lease_ttl_ms": 600_001},
        {**HOOK, "lease_ttl_ms": 1000.5},
        {**HOOK, "pattern": "a//b"},
        {**HOOK, "pattern": 5},
        {**HOOK, "streams": ["a/../b"]},
        {**HOOK, "streams": ["__ds/subscriptions"]},
        {**HOOK, "streams": [str(number) for number in range(11)]},
        {**HOOK, "description": "x" * 5000},
        {**HOOK, "filter": {"language": "cel", "expression": "true"}},
        {**PULL, "wake_stream": ""},
        {**PULL, "wake_stream": "a b"},
        {**PULL, "streams": ["wake"]},
    ],
)
def test_documents_that_are_refused(document: Any) -> None:
    with pytest.raises(InvalidSubscription):
        _parse(document)


def test_a_token_is_good_for_its_subscription_and_generation_alone() -> None:
    token = mint_token(b"secret", "s", 7)
    assert token_generation(b"secret", "s", token) == 7
    for secret, scope, changed in (
        (b"other", "s", token),
        (b"secret", "t", token),
        (b"secret", "s", token.replace("7.", "8.", 1)),
        (b"secret", "s", token.replace("7.", "07.", 1)),
        (b"secret", "s", token[:-1]),
        (b"secret", "s", "7"),
        (b"secret", "s", ""),
        (b"secret", "s", "x.y"),
        (b"secret", "s", "٧." + token[2:]),
    ):
        assert token_generation(secret, scope, changed) is None


def test_the_form_of_a_signature() -> None:
    assert signed_bytes(12, b"{}") == b"12.{}"
    assert signature_header(12, "ds_k", b"\xff\xfe") == "t=12,kid=ds_k,ed25519=__4"
    assert all(from_b64url(b64url(data)) == data for data in (b"", b"a", b"ab", b"abc"))
