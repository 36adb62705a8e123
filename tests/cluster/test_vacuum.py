"""The tables of a cluster level off under load: what is trimmed makes room for what comes."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from tests.cluster.workload import Cluster
from tests.helpers.postgres import WITH_FAULTS, shared

pytestmark = [*WITH_FAULTS, pytest.mark.soak]
ROUNDS = 90
APPENDS = 250
STREAMS = 10
MESSAGES = b"[" + b",".join([b'"' + b"x" * 990 + b'"'] * 10) + b"]"
KEPT_BYTES = 200_000
SIZES = """SELECT relname, pg_total_relation_size(c.oid) FROM pg_class c
JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'penstock' AND relkind = 'r'"""


def test_table_and_index_sizes_level_off() -> None:
    dsn = shared().fresh_database()
    name = dsn.rpartition("/")[2]
    sizes: list[dict[str, int]] = []
    args = ["--cluster-durability", "single", "--checkpoint-bytes", "1MiB"]
    args += ["--retention-interval", "1"]
    with ExitStack() as stack:
        cluster = Cluster(stack, dsn, *args)
        cluster.add()
        url = cluster.owner().url
        client = stack.enter_context(httpx.Client(timeout=30))
        headers = {"content-type": "application/json"}
        for number in range(STREAMS):
            stream = f"{url}/v1/stream/s/{number}"
            client.put(stream, headers=headers).raise_for_status()
            client.put(
                f"{stream}/__ds/retention", json={"bytes": KEPT_BYTES}, headers=headers
            ).raise_for_status()
        for _ in range(ROUNDS):
            for number in range(APPENDS):
                target = f"{url}/v1/stream/s/{number % STREAMS}"
                client.post(target, content=MESSAGES, headers=headers).raise_for_status()
                if number % 100 == 0:  # streams that come and go
                    short = f"{url}/v1/stream/short/{number}"
                    client.put(short, headers=headers).raise_for_status()
                    client.delete(short).raise_for_status()
            rows = [row.split("|") for row in shared().query(SIZES, name)]
            sizes.append({table: int(size) for table, size in rows})
    # Between two runs of vacuum a table grows: means of several are compared, after a warm-up.
    third = ROUNDS // 3
    for table in sizes[0]:
        middle, last = (
            sum(each[table] for each in sizes[start : start + third]) / third
            for start in (third, 2 * third)
        )
        # Without vacuum, or without trims, it would be 1.67 times as much.
        assert last <= 1.4 * middle + 100_000, (table, [each[table] for each in sizes])
