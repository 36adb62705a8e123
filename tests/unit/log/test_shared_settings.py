"""Settings that all nodes of a cluster have to share, and digests by which they are compared."""

from __future__ import annotations

import json

from penstock.config.settings import Settings
from penstock.log.cluster.shared_settings import SHARED, differing_settings, digests

TOKEN = "hunter2-and-more"
OF_ONE_NODE = {"host", "port", "data_dir", "cluster", "cluster_node", "cluster_node_url", "tls_key"}


def test_what_is_of_one_node_is_not_compared() -> None:
    assert not OF_ONE_NODE & set(SHARED)
    assert {"auth_token", "quotas", "registry", "cluster_takeover_s", "retention"} <= set(SHARED)


def test_digests_show_no_value_and_are_of_one_cluster() -> None:
    settings = Settings(auth_token=TOKEN)
    here, elsewhere = (json.loads(digests(settings, secret)) for secret in ("one", "two"))
    assert TOKEN not in str(here)
    assert here.keys() == set(SHARED)
    assert here["auth_token"] != elsewhere["auth_token"]
    assert here["quotas"] == json.loads(digests(Settings(), "one"))["quotas"]


def test_nodes_with_the_same_value_are_together() -> None:
    one, other = (digests(Settings(quotas=quotas), "s") for quotas in ("", "a/=1streams"))
    assert differing_settings({"a": one, "b": other, "c": one}) == {"quotas": [["a", "c"], ["b"]]}


def test_a_node_of_another_version_is_compared_by_what_both_have() -> None:
    one = digests(Settings(), "s")
    newer = json.dumps({**json.loads(one), "registry": "other", "invented": "0"})
    assert differing_settings({"a": one, "older": ""}) == {}
    assert differing_settings({"a": one, "newer": newer}) == {"registry": [["a"], ["newer"]]}
