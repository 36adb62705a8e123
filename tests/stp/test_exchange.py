"""Providers and a hub exchange their endpoints as tables: two real servers that notify each other,
are killed at any moment, and end equal.
"""

from __future__ import annotations

import random
from pathlib import Path

from tests.stp.processes import Peer, until

# Between two Notifies nothing is asked for, so that they alone make rows move.
TOLD_ONLY = ("--table-idle", "0.05", "--follow-poll", "1000")
KNOWN = ("direct_message", "fhir_read", "fhir_write")
ROUNDS = 8


def endpoints(manifest: dict[str, str]) -> dict[str, str]:
    """What a participant makes of a manifest: endpoint types that it does not know are ignored."""
    return {kind: manifest[kind] for kind in KNOWN if kind in manifest}


def mirror(of: Peer, table: str) -> str:
    return f"mirror/127.0.0.1_{of.port}/{table}"


def introduce(provider: Peer, hub: Peer) -> None:
    """The provider says: follow my table, and tell me of yours."""
    form = {"surl": provider.surl("manifest"), "endpoints": provider.nurl("hub")}
    answer = hub.send("POST", "/v1/notify/hub", 202, data=form).json()
    assert answer["followed_by"] == [mirror(provider, "manifest")]
    assert answer["told_of"] == {"endpoints": "hub/endpoints"}
    # And it will tell the hub when there is more.
    provider.send("POST", "/v1/notify/manifest", 202, data={"changed": hub.nurl("hub")})


def are_equal(provider: Peer, hub: Peer) -> bool:
    for of, at, table in ((provider, hub, "manifest"), (hub, provider, "hub/endpoints")):
        if at.rows(mirror(of, table), wait_s=0.05) != of.rows(table):
            return False
    return True


def test_provider_and_hub_exchange_their_endpoints(tmp_path: Path) -> None:
    with (
        Peer(tmp_path / "provider", *TOLD_ONLY) as provider,
        Peer(tmp_path / "hub", *TOLD_ONLY) as hub,
    ):
        provider.table("manifest")
        hub.table("hub/endpoints")
        provider.put("manifest", "fhir_read", "https://prov.example/fhir/read")
        introduce(provider, hub)
        until(lambda: are_equal(provider, hub))
        provider.put("manifest", "telepathy", "https://prov.example/mind")
        provider.put("manifest", "direct_message", "https://prov.example/direct")
        hub.put("hub/endpoints", "fhir_write", "https://hub.example/fhir/write")
        until(lambda: are_equal(provider, hub))
        assert endpoints(hub.state(mirror(provider, "manifest"))) == {
            "fhir_read": "https://prov.example/fhir/read",
            "direct_message": "https://prov.example/direct",
        }
        assert endpoints(provider.state(mirror(hub, "hub/endpoints"))) == {
            "fhir_write": "https://hub.example/fhir/write"
        }
        assert provider.metric("stp_notifies_total") >= 2
        assert hub.metric("stp_notifies_total") >= 1


def test_two_servers_in_a_private_network_exchange_over_plain_http(tmp_path: Path) -> None:
    """As in a LAN: no certificates and no development mode, a network that is named, and peers by
    address."""
    lan = ("--egress-networks", "127.0.0.0/8", "--egress-http", "--stp-peers", "127.0.0.1")
    with (
        Peer(tmp_path / "provider", *TOLD_ONLY, trusts=lan) as provider,
        Peer(tmp_path / "hub", *TOLD_ONLY, trusts=lan) as hub,
    ):
        provider.table("manifest")
        hub.table("hub/endpoints")
        introduce(provider, hub)
        provider.put("manifest", "fhir_read", "https://prov.example/fhir/read")
        hub.put("hub/endpoints", "fhir_write", "https://hub.example/fhir/write")
        until(lambda: are_equal(provider, hub))
        assert hub.state(mirror(provider, "manifest")) == {
            "fhir_read": "https://prov.example/fhir/read"
        }
        for surl in ("http://169.254.169.254/t", "http://[::1]:4437/t", "http://10.0.0.1/t"):
            refused = hub.send("PUT", "/v1/follow/x", 403, json={"surl": surl}).json()
            assert refused["code"] == "egress-refused"
    closed = ("--egress-networks", "127.0.0.0/8", "--stp-peers", "127.0.0.1")
    with Peer(tmp_path / "closed", trusts=closed) as peer:
        form = {"surl": "http://127.0.0.1:4437/v1/table/t"}
        assert "egress_http" in peer.send("POST", "/v1/notify/x", 403, data=form).json()["detail"]


def test_either_is_killed_again_and_again_and_they_end_equal(tmp_path: Path) -> None:
    """Every row arrives once and in order: position and rows are one commit."""
    chance = random.Random(7)
    with (
        Peer(tmp_path / "provider", *TOLD_ONLY) as provider,
        Peer(tmp_path / "hub", *TOLD_ONLY) as hub,
    ):
        provider.table("manifest")
        hub.table("hub/endpoints")
        introduce(provider, hub)
        for number in range(ROUNDS):
            for change in range(chance.randrange(1, 25)):
                kind = chance.choice([*KNOWN, "telepathy"])
                provider.put("manifest", kind, f"https://prov.example/{number}/{change}")
                hub.put("hub/endpoints", kind, f"https://hub.example/{number}/{change}")
            victim = hub if number % 2 else provider
            victim.kill()  # with rows and Notifies on their way
            victim.start()
        until(lambda: are_equal(provider, hub))
        for peer, table in (
            (hub, mirror(provider, "manifest")),
            (provider, mirror(hub, "hub/endpoints")),
        ):
            status = peer.send("GET", f"/v1/follow/{table}", 200).json()
            assert status["conflicts"] == 0
            # Nothing was taken twice.
            rows = peer.rows(table)
            assert len(rows) == len(set(rows))
