"""The tables of a cluster: made by its first node, and checked by every other."""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

from penstock.errors import ClusterRefused
from penstock.log.cluster.database import Refused, Session

FORMAT: Final = 6
_FIRST_TABLES: Final = frozenset(
    {"cluster", "node", "shard", "journal", "stream", "producer", "extent"}
)
TABLES: Final = _FIRST_TABLES | {"garbage"}
IMPORT: Final = "import"
"""The table that is there as long as an import is not finished."""

_OBJECTS: Final = """
ALTER TABLE penstock.extent ADD COLUMN is_full boolean NOT NULL DEFAULT false,
  ADD COLUMN object text, ADD COLUMN object_length bigint NOT NULL DEFAULT 0;
CREATE INDEX ON penstock.extent (stream_id, base) WHERE is_full AND length > object_length;
CREATE INDEX ON penstock.extent (object) WHERE object IS NOT NULL;
CREATE TABLE penstock.garbage (
  object text PRIMARY KEY, not_before timestamptz NOT NULL,
  is_leaving boolean NOT NULL DEFAULT false);
CREATE INDEX ON penstock.garbage (not_before);
ALTER TABLE penstock.extent SET (autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 50, autovacuum_vacuum_cost_delay = 0);
"""
_STREAM_INDEXES: Final = """
CREATE UNIQUE INDEX stream_shard_path ON penstock.stream (shard, path);
CREATE INDEX stream_shard_deadline ON penstock.stream (shard, deadline_us, id)
  WHERE deadline_us IS NOT NULL;
CREATE INDEX stream_shard_meta ON penstock.stream (shard, path) WHERE meta IS NOT NULL;
CREATE INDEX stream_shard_touched ON penstock.stream (shard, touched_us, id)
  WHERE tail > earliest AND soft_deleted = 0;
"""
_MAKE: Final = f"""
CREATE SCHEMA IF NOT EXISTS penstock;
CREATE TABLE penstock.cluster (
  one boolean PRIMARY KEY DEFAULT true CHECK (one), format int NOT NULL, name text NOT NULL,
  made_at timestamptz NOT NULL DEFAULT now(), secret text NOT NULL, extents text,
  shards int NOT NULL, restored bigint NOT NULL DEFAULT 0);
CREATE TABLE penstock.node (
  name text PRIMARY KEY, incarnation text NOT NULL, url text NOT NULL, version text NOT NULL,
  beat timestamptz NOT NULL, pid int NOT NULL, backend_start timestamptz,
  primary_start timestamptz NOT NULL, peer text NOT NULL DEFAULT '',
  leaving boolean NOT NULL DEFAULT false, settings text NOT NULL DEFAULT '');
CREATE TABLE penstock.shard (
  shard int PRIMARY KEY, epoch bigint NOT NULL, node text, claimed_at timestamptz,
  trimmed bigint NOT NULL, checkpoint_lsn bigint NOT NULL, checkpoints bigint NOT NULL,
  next_id bigint NOT NULL, barriers bigint NOT NULL);
CREATE TABLE penstock.journal (
  shard int NOT NULL, seq bigint NOT NULL, epoch bigint NOT NULL, first_lsn bigint NOT NULL,
  records int NOT NULL, body bytea, PRIMARY KEY (shard, seq));
CREATE TABLE penstock.stream (
  id bigint PRIMARY KEY, path text COLLATE "C" NOT NULL, content_type text NOT NULL,
  ttl_s bigint, expires_at_us bigint, created_us bigint NOT NULL, touched_us bigint NOT NULL,
  deadline_us bigint, earliest bigint NOT NULL, tail bigint NOT NULL, count bigint NOT NULL,
  closed smallint NOT NULL, closed_by text, stream_seq text, producers bigint NOT NULL,
  applied_lsn bigint NOT NULL, meta text, forked_from bigint, fork_path text,
  fork_position bigint, fork_count bigint, soft_deleted smallint NOT NULL, forks bigint NOT NULL,
  pinned bigint, earliest_ordinal bigint NOT NULL, crc bigint NOT NULL, inline bytea,
  shard int NOT NULL DEFAULT 0);
{_STREAM_INDEXES}
CREATE INDEX ON penstock.stream (forked_from, path) WHERE forked_from IS NOT NULL;
CREATE TABLE penstock.producer (
  stream_id bigint NOT NULL, producer_id text COLLATE "C" NOT NULL, epoch bigint NOT NULL,
  seq bigint NOT NULL, crc bigint NOT NULL, PRIMARY KEY (stream_id, producer_id));
CREATE TABLE penstock.extent (
  stream_id bigint NOT NULL, base bigint NOT NULL, length bigint NOT NULL,
  first_ordinal bigint NOT NULL, open_ordinal bigint NOT NULL, open_time_us bigint NOT NULL,
  open_crc bigint NOT NULL, body bytea NOT NULL, index bytea NOT NULL,
  PRIMARY KEY (stream_id, base));
ALTER TABLE penstock.journal ALTER body SET STORAGE EXTERNAL;
ALTER TABLE penstock.extent ALTER body SET STORAGE EXTERNAL;
ALTER TABLE penstock.journal SET (autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
{_OBJECTS}"""
_MAKE_SHARDS: Final = """INSERT INTO penstock.shard
SELECT shard, 0, NULL, NULL, 0, 0, 0, 1, 0 FROM generate_series(0, $1::int - 1) AS shard"""
_MAKE_CLUSTER: Final = """INSERT INTO penstock.cluster (format, name, secret, shards, restored)
VALUES ($1, $2, $3, $4, $5)"""
_UPGRADES: Final = {
    1: """
ALTER TABLE penstock.cluster ADD COLUMN secret text;
UPDATE penstock.cluster SET secret = $1;
ALTER TABLE penstock.cluster ALTER secret SET NOT NULL;
ALTER TABLE penstock.node ADD COLUMN peer text NOT NULL DEFAULT '';
""",
    2: f"""
ALTER TABLE penstock.cluster ADD COLUMN extents text;
{_OBJECTS}
UPDATE penstock.extent e SET is_full = true WHERE EXISTS (SELECT FROM penstock.extent later
  WHERE later.stream_id = e.stream_id AND later.base > e.base);
""",
    3: f"""
ALTER TABLE penstock.cluster ADD COLUMN shards int NOT NULL DEFAULT 1;
ALTER TABLE penstock.node ADD COLUMN leaving boolean NOT NULL DEFAULT false;
ALTER TABLE penstock.stream DROP CONSTRAINT stream_path_key;
DROP INDEX penstock.stream_deadline_us_id_idx;
DROP INDEX penstock.stream_path_idx;
DROP INDEX penstock.stream_touched_us_id_idx;
{_STREAM_INDEXES}
""",
    4: """
ALTER TABLE penstock.cluster ADD COLUMN restored bigint NOT NULL DEFAULT 0;
""",
    5: """
ALTER TABLE penstock.node ADD COLUMN settings text NOT NULL DEFAULT '';
ALTER TABLE penstock.extent SET (autovacuum_vacuum_threshold = 50);
""",
}
"""What makes a cluster of a format one of the next; $1 is a new secret."""
_NAMES: Final = "SELECT tablename FROM pg_tables WHERE schemaname = 'penstock'"
_LOCK: Final = "SELECT pg_advisory_xact_lock(7368557)"
"""Two first nodes may arrive at once: the number is that of nothing else."""
_CLUSTER: Final = "SELECT format, name FROM penstock.cluster"
_MAY_WRITE: Final = """SELECT bool_and(has_table_privilege(format('penstock.%I', tablename),
'SELECT, INSERT, UPDATE, DELETE')) FROM pg_tables WHERE schemaname = 'penstock'"""


class About(NamedTuple):
    """What a cluster is since it was made."""

    secret: str
    """What nodes show each other to be believed."""
    shards: int
    restored: int = 0
    """The generation of the last restore of its database, if there was one."""


async def prepare(session: Session, name: str, shards: int) -> About:
    """Make the tables of a cluster with so many shards, or check those that are there.

    ClusterRefused, in one line, if the schema `penstock` belongs to something else.
    """
    try:
        async with session.transaction():
            tables = await lock(session)
            if not tables:
                await make_tables(session, shards)
                await make_cluster(session, name, shards)
            else:
                await _upgrade(session, tables)
                await check(session, await tables_of(session), name)
            about = "SELECT secret, shards, restored FROM penstock.cluster"
            return About(*(await session.fetch(about))[0])
    except Refused as error:
        raise ClusterRefused(
            f"PostgreSQL refuses to make or use the tables of the cluster ({error}). Grant the "
            "user CREATE on the database, or let it own the schema penstock."
        ) from None


async def make_tables(session: Session, shards: int) -> None:
    """Make empty tables of so many shards, in a transaction of the caller's. No node uses them
    before there is a row in `cluster`."""
    for statement in filter(str.strip, _MAKE.split(";\n")):
        await session.fetch(statement)
    await session.fetch(_MAKE_SHARDS, shards)


async def make_cluster(session: Session, name: str, shards: int, restored: int = 0) -> None:
    """Write the one row that lets nodes use the tables."""
    await session.fetch(_MAKE_CLUSTER, FORMAT, name, _new_secret(), shards, restored)


async def lock(session: Session) -> set[str]:
    """Keep others from making tables until the end of the transaction; return those there are."""
    await session.fetch(_LOCK)
    return await tables_of(session)


async def _upgrade(session: Session, tables: set[str]) -> None:
    """Bring the tables of an older format to this one; nodes of that format go on meanwhile."""
    if not tables >= _FIRST_TABLES:
        return
    rows = await session.fetch(_CLUSTER)
    version = rows[0][0] if len(rows) == 1 else FORMAT
    while version in _UPGRADES:
        for statement in filter(str.strip, _UPGRADES[version].split(";\n")):
            await session.fetch(statement, *([_new_secret()] if "$1" in statement else []))
        version += 1
        await session.fetch("UPDATE penstock.cluster SET format = $1", version)


def _new_secret() -> str:
    return secrets.token_urlsafe(24)


async def check(session: Session, tables: set[str], name: str | None) -> None:
    """Raise ClusterRefused unless `tables` are those of the cluster `name`, of this format; with
    None of any cluster."""
    if IMPORT in tables:
        raise ClusterRefused(
            "An import into the cluster was not finished. Run `penstock cluster import` again with "
            "the same folder, or drop the schema penstock."
        )
    if "cluster" not in tables or not tables >= TABLES:
        raise ClusterRefused(
            "The schema penstock of the database has tables that are not those of a cluster. Use "
            "another database."
        )
    rows = await session.fetch(_CLUSTER)
    if len(rows) != 1:
        raise ClusterRefused("The tables of the cluster are incomplete. Use another database.")
    version, found = rows[0]
    if version > FORMAT:
        raise ClusterRefused(
            f"The cluster has format {version}; this Penstock reads format {FORMAT}. Use the newer "
            "Penstock that made it."
        )
    if version < FORMAT:
        raise ClusterRefused(
            f"The cluster has the older format {version}; this Penstock reads format {FORMAT}. "
            "Export its streams with the Penstock that made it."
        )
    if name is not None and found != name:
        raise ClusterRefused(
            f"The database holds the cluster {found!r}, not {name!r}: a database holds one "
            "cluster. Use another database, or set cluster_name."
        )
    if not (await session.fetch(_MAY_WRITE))[0][0]:
        raise ClusterRefused(
            "The user may not read and write the tables of the schema penstock. Grant it SELECT, "
            "INSERT, UPDATE and DELETE on all of them."
        )


async def tables_of(session: Session) -> set[str]:
    return {row[0] for row in await session.fetch(_NAMES)}
