"""An hour of a cluster with a trio and three nodes: faults of all kinds at random, the history of
what was written and read checked after each round, and tables whose sizes level off.

`CLUSTER_SOAK_S` is how long it runs, `CLUSTER_SOAK_SEED` which faults there are. With
`-o log_cli=true --log-cli-level=INFO` each round is shown."""

from __future__ import annotations

import logging
import os
import random
import time
from contextlib import ExitStack

import pytest

from tests.cluster.faults import RandomFaults
from tests.cluster.lives import Lives
from tests.cluster.workload import QUICK, Cluster, Workload
from tests.helpers.postgres import WITH_FAULTS, Trio, running_trio

log = logging.getLogger(__name__)
pytestmark = [*WITH_FAULTS, pytest.mark.soak]
SECONDS = float(os.environ.get("CLUSTER_SOAK_S", "3600"))
SEED = int(os.environ.get("CLUSTER_SOAK_SEED", str(time.time_ns() % 10**6)))
ROUND_S = min(60.0, SECONDS / 6)
ROUNDS_TO_COMPARE = 9
"""With fewer rounds there is nothing to say about sizes: vacuum runs now and then."""
SIZES = """SELECT relname, pg_total_relation_size(c.oid) FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname = 'penstock' AND relkind = 'r' AND relname <> 'journal'
UNION ALL SELECT 'journal', pg_table_size('penstock.journal')"""
# The index of the journal is left out: a claim stays for ever, and with it the page that it is in.
# Here every fortieth slot is a claim; test_vacuum.py has the index without them.
EVIDENCE = (
    "SELECT * FROM penstock.node",
    "SELECT * FROM penstock.shard",
    "SELECT application_name, state, sync_state, sent_lsn, flush_lsn FROM pg_stat_replication",
    """SELECT pid, backend_start, state, wait_event, clock_timestamp() - state_change,
    pg_blocking_pids(pid), left(query, 80) FROM pg_stat_activity WHERE datname IS NOT NULL""",
)
"""What the primary is asked when appends do not go on."""
REFUSALS = 30
"""Last refusals that a failure shows."""


def test_nothing_is_lost_in_an_hour_of_faults_and_tables_level_off() -> None:
    # With each round shown, an hour of requests would be kept by pytest.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    chance = random.Random(SEED)
    sizes: list[dict[str, int]] = []
    done: list[str] = []
    messages = lives = 0
    with running_trio() as trio:
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            more = _round(trio, chance, len(sizes), done)
            messages, lives = messages + more[0], lives + more[1]
            rows = [row.split("|") for row in trio.primary.query(SIZES)]
            sizes.append({table: int(size) for table, size in rows})
            log.info("Seed %d, round %d: %s, %s, %s", SEED, len(sizes), more, done, sizes[-1])
    assert messages > SECONDS, "hardly anything was written"
    assert lives > len(sizes), "hardly any stream lived"
    if len(sizes) >= ROUNDS_TO_COMPARE:
        _check_sizes(sizes)


def _round(trio: Trio, chance: random.Random, number: int, done: list[str]) -> tuple[int, int, int]:
    """Start three nodes, let things fail for a while, and check what was written and read; return
    how many messages were acknowledged, how many streams have lived, and how many were there again
    by a late creation. All of them are deleted."""
    args = (*chance.choice(((), QUICK)), "--checkpoint-bytes", "256KiB")
    with ExitStack() as stack:
        cluster = Cluster(stack, trio.dsn, *args)
        faults = RandomFaults(stack, trio, cluster, chance)
        faults.start_behind_proxies()
        cluster.start(2)
        cluster.settle()
        prefix = f"round-{number}/"
        with (
            Workload(cluster, writers=4, prefix=prefix) as work,
            Lives(work, prefix, seed=chance.random()) as lives,
        ):
            ends = time.monotonic() + ROUND_S
            while time.monotonic() < ends:
                try:
                    faults.next(work)
                except AssertionError:
                    log.error("%s", _evidence(trio, work, faults))
                    raise
        done[:] = faults.done
        work.check()
        lives.check()
        for path in work.paths:
            work.delete(path)
        return work.total, lives.total, lives.returns


def _evidence(trio: Trio, work: Workload, faults: RandomFaults) -> str:
    """Return what is known of a cluster that does not go on."""
    lines = [f"faults: {faults.done}", "refused:", *work.refused[-REFUSALS:]]
    for statement in EVIDENCE:
        lines += [statement, *trio.primary.query(statement)]
    return "\n".join(lines)


def _check_sizes(sizes: list[dict[str, int]]) -> None:
    """What is deleted makes room for what comes: rounds write about as much each."""
    third = len(sizes) // 3
    for table in sizes[0]:
        middle, last = (
            sum(each[table] for each in sizes[start : start + third]) / third
            for start in (third, 2 * third)
        )
        # Without vacuum it would be 1.67 times as much.
        assert last <= 1.4 * middle + 200_000, (table, [each[table] for each in sizes])
