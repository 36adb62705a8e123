"""Settings that all nodes of a cluster have to share: owners decide by their own, so that a token,
a quota or a time that one node has and another has not would hold for some streams only.

What the database has of each is a digest, which says no more than whether two nodes have the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from penstock.config.settings import SETTINGS, Settings

_GROUPS: Final = frozenset(
    (
        "Streams",
        "Access",
        "Limits of one client",
        "Audit",
        "Subscriptions",
        "Notify and follow",
        "Connections to other servers",
    )
)
_OTHERS: Final = frozenset(
    (
        "public_url",
        "body_bytes_max",
        "registry",
        "cluster_beat_s",
        "cluster_lease_s",
        "cluster_takeover_s",
        "cluster_garbage_s",
    )
)
SHARED: Final = tuple(
    setting.name for setting in SETTINGS if setting.group in _GROUPS or setting.name in _OTHERS
)


def digests(settings: Settings, secret: str) -> str:
    """Return what other nodes may know of the settings of one: a digest of each, keyed with the
    secret of the cluster, because some are secrets themselves."""
    return json.dumps({name: _digest(getattr(settings, name), secret) for name in SHARED})


def _digest(value: object, secret: str) -> str:
    return blake2b(repr(value).encode(), key=secret.encode()[:64], digest_size=6).hexdigest()


def differing_settings(nodes: Mapping[str, str]) -> dict[str, list[list[str]]]:
    """Return the settings that some nodes, each with its digests, have otherwise than others: the
    names of those that have the same are together. A setting that a node does not have, because it
    is of another version, is not compared."""
    groups: dict[str, dict[str, list[str]]] = {}
    for node, text in nodes.items():
        for setting, digest in json.loads(text or "{}").items():
            groups.setdefault(setting, {}).setdefault(digest, []).append(node)
    return {
        setting: list(same.values()) for setting, same in sorted(groups.items()) if len(same) > 1
    }
