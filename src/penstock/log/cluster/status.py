"""The state of a cluster, read from its tables: who owns which shard, which nodes live."""

from __future__ import annotations

from typing import Any, Final

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused
from penstock.log.cluster import schema
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session
from penstock.log.cluster.shared_settings import differing_settings

_CLUSTER: Final = """SELECT name, format, current_setting('server_version'),
current_setting('synchronous_standby_names') FROM penstock.cluster"""
_SHARD: Final = """SELECT shard, epoch, node, extract(epoch FROM now() - claimed_at)::float8,
checkpoints, (SELECT count(*) FROM penstock.journal j
  WHERE j.shard = s.shard AND body IS NOT NULL)::bigint,
(SELECT coalesce(sum(octet_length(body)), 0) FROM penstock.journal j
  WHERE j.shard = s.shard)::bigint FROM penstock.shard s ORDER BY shard"""
_NODES: Final = """SELECT name, url, version,
extract(epoch FROM clock_timestamp() - beat)::float8, leaving, settings
FROM penstock.node ORDER BY name"""
_STANDBYS: Final = """SELECT application_name, state, sync_state FROM pg_stat_replication
ORDER BY application_name"""
_STREAMS: Final = "SELECT count(*) FROM penstock.stream WHERE soft_deleted = 0"


async def read_status(settings: Settings, *, count_streams: bool = True) -> dict[str, Any]:
    """Return the state of the cluster as a document; ClusterRefused if there is none. To count its
    streams takes PostgreSQL a look at each."""
    database = Database(settings)
    try:
        session = await database.open()
        try:
            status = await _read(session, settings)
            if count_streams:
                status["streams_at_checkpoint"] = (await session.fetch(_STREAMS))[0][0]
            return status
        finally:
            session.abort()
    except (OutcomeUnknown, Refused) as error:
        raise ClusterRefused(f"The cluster cannot be looked at: {error}") from None


async def _read(session: Session, settings: Settings) -> dict[str, Any]:
    tables = await schema.tables_of(session)
    if not tables:
        raise ClusterRefused(
            "The database holds no cluster. The first `penstock serve --cluster` makes one."
        )
    await schema.check(session, tables, None)
    name, version, server, standbys = (await session.fetch(_CLUSTER))[0]
    shards = [
        dict(
            zip(
                ("shard", "epoch", "owner", "owned_s", "checkpoints", "batches", "journal_bytes"),
                row,
                strict=True,
            )
        )
        for row in await session.fetch(_SHARD)
    ]
    nodes, digests = [], {}
    for node, url, node_version, age_s, is_leaving, of_settings in await session.fetch(_NODES):
        lives = age_s <= settings.cluster_takeover_s
        nodes.append(
            {
                "name": node,
                "url": url,
                "version": node_version,
                "beat_age_s": age_s,
                "lives": lives,
                "leaving": is_leaving,
            }
        )
        if lives:
            digests[node] = of_settings
    return {
        "cluster": name,
        "format": version,
        "postgresql": server,
        "synchronous_standby_names": standbys,
        "standbys": [
            {"name": row[0], "state": row[1], "sync": row[2]}
            for row in await session.fetch(_STANDBYS)
        ],
        "shards": shards,
        "nodes": nodes,
        "differing_settings": differing_settings(digests),
    }
