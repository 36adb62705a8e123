"""The metrics of a node as one of a cluster: what it owns, sees and carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.log.cluster.lane import Lane
    from penstock.log.cluster.node import Node


def node_metrics(node: Node, lane: Lane, owned: int, opened: int, forwarded: int) -> list[Metric]:
    gauges = (
        ("shards", "Shards of the cluster.", node.about.shards),
        ("shards_owned", "Shards of the cluster that this node owns.", owned),
        ("nodes", "Nodes that live, as this one sees it.", len(node.living)),
        (
            "differing_nodes",
            "Nodes that have another value of a setting that all should share.",
            len(node.differing),
        ),
        ("lease", "1 while this node may say that readers are up to date.", int(node.has_lease())),
    )
    counters = (
        ("shards_opened", "Shards that this node has taken over.", opened),
        (
            "forwarded_requests",
            "Requests that this node sent to the owner of their stream.",
            forwarded,
        ),
        (
            "transactions",
            "Transactions that carried batches of the journal.",
            lane.transactions,
        ),
        ("batches", "Batches of the journal that they carried.", lane.batches),
    )
    return [
        *(GaugeMetricFamily(_name(name), text, value=value) for name, text, value in gauges),
        *(CounterMetricFamily(_name(name), text, value=value) for name, text, value in counters),
    ]


def _name(name: str) -> str:
    return f"penstock_cluster_{name}"
