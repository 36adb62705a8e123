"""The settings about other servers: where this one may connect to, whom it tells, what it follows.

Part of `config.Settings`; kept apart for its length.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock import limits
from penstock.config.setting import Group
from penstock.config.subscriptions import SubscriptionSettings

_EGRESS = Group("Connections to other servers")
_STP = Group("Notify and follow")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings(SubscriptionSettings):
    """Settings of what the server asks of others."""

    development: bool = _EGRESS.switch(
        False, "Reach servers on loopback, also over plain http, and trust them as peers."
    )
    egress_networks: tuple[str, ...] = _EGRESS.networks(
        "Networks that are not public and may be connected to all the same."
    )
    egress_connect_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_CONNECT_TIMEOUT_S, "Longest time to look up a name and connect to it."
    )
    egress_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_TIMEOUT_S, "Longest time for a request to another server, in all."
    )
    egress_idle_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_IDLE_TIMEOUT_S, "Longest silence within a streamed answer."
    )
    egress_stream_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_STREAM_TIMEOUT_S, "Longest time that one streamed answer is read."
    )
    egress_answer_bytes_max: int = _EGRESS.size(
        limits.EGRESS_ANSWER_BYTES_MAX, "Largest answer of another server."
    )
    egress_stream_bytes_max: int = _EGRESS.size(
        limits.EGRESS_STREAM_BYTES_MAX, "Most bytes of one streamed answer."
    )
    egress_connections_max: int = _EGRESS.count(
        limits.EGRESS_CONNECTIONS_MAX, "Most connections to other servers, streamed ones apart."
    )

    public_url: str = _STP.text(
        "", "URL that others reach this server by; by default the one they have used."
    )
    stp_peers: tuple[str, ...] = _STP.texts(
        "Hosts that a Notify may make this server follow or tell: names, *.suffixes, or *."
    )
    stp_peer_tokens: tuple[str, ...] = _STP.secrets(
        "Bearer tokens for other servers, each as https://host=token; prefer the environment."
    )
    notify_token: str | None = _STP.secret(
        "Bearer token that is good for POST /v1/notify alone; prefer the environment."
    )
    notify_secret: str | None = _STP.secret(
        "Secret that Notify bodies are signed with, both ways; prefer the environment."
    )
    notify_bytes_max: int = _STP.size(limits.NOTIFY_BYTES_MAX, "Largest Notify form.")
    notify_urls_max: int = _STP.count(limits.NOTIFY_URLS_MAX, "Most URLs in one Notify form.")
    notify_listeners_max: int = _STP.count(
        limits.NOTIFY_LISTENERS_MAX, "Most NURLs that are told of changes."
    )
    notify_listeners_per_peer_max: int = _STP.count(
        limits.NOTIFY_LISTENERS_PER_PEER_MAX, "Most NURLs on one host that are told of changes."
    )
    notify_per_peer_max: int = _STP.count(
        limits.NOTIFY_PER_PEER_MAX, "Most Notify POSTs to one host at a time."
    )
    notify_attempts_max: int = _STP.count(
        limits.NOTIFY_ATTEMPTS_MAX, "Failed POSTs in a row after which a NURL is given up."
    )
    notify_retry_s: float = _STP.seconds(
        limits.NOTIFY_RETRY_S, "Wait before a Notify is tried again; doubles with each failure."
    )
    notify_retry_max_s: float = _STP.seconds(
        limits.NOTIFY_RETRY_MAX_S, "Longest wait between two tries."
    )
    follow_max: int = _STP.count(limits.FOLLOW_MAX, "Most tables of others that are followed.")
    follow_per_peer_max: int = _STP.count(
        limits.FOLLOW_PER_PEER_MAX, "Most tables of one host that are followed."
    )
    follow_poll_s: float = _STP.seconds(
        limits.FOLLOW_POLL_S, "Time between two requests to a server that does not stream."
    )
    follow_retry_s: float = _STP.seconds(
        limits.FOLLOW_RETRY_S, "Wait after a source failed; doubles with each failure."
    )
    follow_retry_max_s: float = _STP.seconds(
        limits.FOLLOW_RETRY_MAX_S, "Longest wait for a source that fails."
    )
    follow_row_bytes_max: int = _STP.size(
        limits.FOLLOW_ROW_BYTES_MAX, "Longest row that is taken from another server."
    )
