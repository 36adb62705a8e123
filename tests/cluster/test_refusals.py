"""What a node refuses, in one line each, and what it never shows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import Settings, secrets_of
from penstock.errors import ClusterRefused
from penstock.log.cluster import database, schema
from penstock.log.cluster.database import Database
from penstock.log.cluster.node import Node
from penstock.log.cluster.status import read_status
from tests.helpers.postgres import ON_POSTGRES, running_postgres, shared

pytestmark = list(ON_POSTGRES)
SECRET = "hunter2-and-more"


def refusal(dsn: str, **options: Any) -> str:
    settings = Settings(cluster=dsn, **{"cluster_durability": "single", **options})

    async def join() -> None:
        node = Node(settings)
        try:
            await node.join("1")
        finally:
            await node.leave()

    with pytest.raises(ClusterRefused) as caught:
        asyncio.run(join())
    message = caught.value.detail
    assert "\n" not in message
    assert SECRET not in message
    return message


def join(dsn: str, *, shards: int = 1, **options: Any) -> None:
    settings = Settings(cluster=dsn, **{"cluster_durability": "single", **options})

    async def run() -> None:
        node = Node(settings)
        await node.join("1", shards=shards)
        await node.leave()

    asyncio.run(run())


def cli(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def query(dsn: str, text: str) -> None:
    shared().query(text, dsn.rpartition("/")[2])


def test_without_a_synchronous_standby_it_has_to_be_declared() -> None:
    dsn = shared().fresh_database()
    assert "synchronous_standby_names" in refusal(dsn, cluster_durability="replicated")
    join(dsn, cluster_durability="managed")
    join(dsn, cluster_durability="single")


def test_a_wrong_url_is_refused() -> None:
    assert "no such database" in refusal(shared().dsn.replace("/streams", "/nothing"))
    assert "URL of --cluster" in refusal("mysql://here/there")


def test_a_password_is_not_shown_when_nobody_listens() -> None:
    message = refusal(f"postgresql://me:{SECRET}@127.0.0.1:1/streams")
    assert "127.0.0.1:1/streams" in message
    assert "cannot be reached" in message


def test_a_wrong_password_and_a_user_who_may_not_come_in_are_refused() -> None:
    server = shared()
    dsn = server.fresh_database()
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    query(dsn, "CREATE ROLE keyed LOGIN PASSWORD 'another one'")
    query(dsn, "CREATE ROLE barred LOGIN")
    lines = ("host all keyed all scram-sha-256", "host all barred all reject")
    rules.write_text("\n".join([*lines, before]))
    query(dsn, "SELECT pg_reload_conf()")
    try:
        wrong = dsn.replace("penstock@", f"keyed:{SECRET}@")
        assert "refuses the password" in refusal(wrong)
        assert "refuses the user" in refusal(dsn.replace("penstock@", "barred@"))
    finally:
        rules.write_text(before)
        query(dsn, "SELECT pg_reload_conf()")


def test_a_quorum_without_a_standby_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_S", 1.0)
    with running_postgres() as server:
        server.configure(synchronous_standby_names="ANY 1 (gone)")
        server.query("SELECT pg_reload_conf()")
        assert "Is a synchronous standby connected?" in refusal(
            server.dsn, cluster_durability="replicated"
        )


def test_an_old_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "VERSION_MIN", 990000)
    assert "a cluster needs 99" in refusal(shared().fresh_database())


def test_missing_rights_are_refused() -> None:
    dsn = shared().fresh_database()
    query(dsn, "DROP ROLE IF EXISTS guest")
    query(dsn, "CREATE ROLE guest LOGIN")
    guest = dsn.replace("penstock@", "guest@")
    assert "CREATE" in refusal(guest)
    join(dsn)
    query(dsn, "GRANT USAGE ON SCHEMA penstock TO guest")
    query(dsn, "GRANT SELECT ON penstock.cluster TO guest")
    assert "INSERT" in refusal(guest)


def test_tables_of_something_else_are_refused() -> None:
    dsn = shared().fresh_database()
    query(dsn, "CREATE SCHEMA penstock")
    query(dsn, "CREATE TABLE penstock.orders (id int)")
    assert "not those of a cluster" in refusal(dsn)


def test_a_second_cluster_in_the_database_is_refused() -> None:
    dsn = shared().fresh_database()
    join(dsn)
    assert "one cluster" in refusal(dsn, cluster_name="other")


@pytest.mark.parametrize(("version", "word"), [(0, "older format"), (schema.FORMAT + 1, "newer")])
def test_another_format_is_refused(version: int, word: str) -> None:
    dsn = shared().fresh_database()
    join(dsn)
    query(dsn, f"UPDATE penstock.cluster SET format = {version}")
    assert word in refusal(dsn)


FIRST_FORMAT = (
    "ALTER TABLE penstock.cluster DROP COLUMN secret, DROP COLUMN shards, DROP COLUMN extents, "
    "DROP COLUMN restored",
    "ALTER TABLE penstock.node DROP COLUMN peer, DROP COLUMN leaving, DROP COLUMN settings",
    "ALTER TABLE penstock.extent DROP COLUMN is_full, DROP COLUMN object",
    "ALTER TABLE penstock.extent DROP COLUMN object_length",
    "DROP TABLE penstock.garbage",
    "DROP INDEX penstock.stream_shard_path, penstock.stream_shard_deadline, "
    "penstock.stream_shard_meta, penstock.stream_shard_touched",
    "ALTER TABLE penstock.stream ADD CONSTRAINT stream_path_key UNIQUE (path)",
    "CREATE INDEX ON penstock.stream (deadline_us, id) WHERE deadline_us IS NOT NULL",
    "CREATE INDEX ON penstock.stream (path) WHERE meta IS NOT NULL",
    "CREATE INDEX ON penstock.stream (touched_us, id) WHERE tail > earliest AND soft_deleted = 0",
    "UPDATE penstock.cluster SET format = 1",
)
"""What makes the tables those of the first format again."""


def test_a_cluster_of_the_first_format_is_brought_to_this_one() -> None:
    dsn = shared().fresh_database()
    join(dsn)
    for statement in FIRST_FORMAT:
        query(dsn, statement)
    join(dsn, shards=5)
    text = "SELECT format, secret, shards FROM penstock.cluster"
    [row] = shared().query(text, dsn.rpartition("/")[2])
    version, secret, shards = row.split("|")
    assert int(version) == schema.FORMAT
    assert len(secret) > 20
    assert shards == "1"


def test_two_first_nodes_make_the_tables_once() -> None:
    dsn = shared().fresh_database()
    settings = Settings(cluster=dsn, cluster_durability="single")

    async def prepare() -> None:
        session = await Database(settings).open()
        await schema.prepare(session, "penstock", 3)
        session.abort()

    async def both() -> None:
        await asyncio.gather(prepare(), prepare())

    asyncio.run(both())
    assert "no node" not in str(asyncio.run(read_status(settings))["nodes"])


def test_a_server_says_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/streams"
    done = cli(tmp_path, "serve", "--port", "0", "--cluster", url)
    assert done.returncode != 0
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_the_password_is_a_secret(tmp_path: Path) -> None:
    url = f"postgresql://me:{SECRET}@127.0.0.1:1/streams"
    assert SECRET in secrets_of(Settings(cluster=url))
    done = cli(tmp_path, "config", "--cluster", url)
    assert done.returncode == 0
    assert SECRET not in done.stdout + done.stderr


def test_status_shows_the_nodes(tmp_path: Path) -> None:
    dsn = shared().fresh_database()
    status = ("cluster", "status", "--cluster", dsn, "--cluster-durability", "single")
    empty = cli(tmp_path, *status)
    assert empty.returncode != 0
    assert "holds no cluster" in empty.stderr
    join(dsn)
    done = cli(tmp_path, *status)
    assert "Shard 0: owned by nobody" in done.stdout
    assert done.returncode == 1
