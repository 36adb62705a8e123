"""The commands of `penstock cluster`; `status` looks at a cluster through its database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import click

from penstock.cli import Failure
from penstock.cli.commands.cluster.demo import demo
from penstock.cli.commands.cluster.moving import cluster_settings, export, import_, restored
from penstock.cli.exits import FAILURE
from penstock.cli.options import SettingsCommand, setting_flags
from penstock.cli.terminal import printable
from penstock.cli.text import aligned, amount, size


@click.group("cluster")
def command() -> None:
    """Show, demonstrate and move a cluster: nodes over PostgreSQL."""


for each in (demo, import_, export, restored):
    command.add_command(each)


@command.command("status", cls=SettingsCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@setting_flags
def status(as_json: bool, **options: Any) -> None:
    """Show who owns which shard, which nodes live, and what PostgreSQL replicates.

    It reads the tables of the database that --cluster names (or PENSTOCK_CLUSTER), and needs no
    node. The exit code is 1 if a shard is owned by no node that lives.
    """
    settings = cluster_settings(options)
    from penstock.log.cluster.status import read_status  # here: `--help` loads no store

    state = asyncio.run(read_status(settings))
    if as_json:
        click.echo(json.dumps(state, indent=2))
    else:
        for line in lines_of(state):
            click.echo(printable(line))
    living = {node["name"] for node in state["nodes"] if node["lives"]}
    if any(shard["owner"] not in living for shard in state["shards"]):
        raise Failure("No node that lives owns some of the shards.", FAILURE)


def lines_of(state: dict[str, Any]) -> list[str]:
    """Return what a person is shown of the state of a cluster."""
    standbys = ", ".join(f"{each['name']} ({each['sync']})" for each in state["standbys"])
    lines = [
        f"Cluster {state['cluster']}, PostgreSQL {state['postgresql']}",
        f"Standbys: {standbys or 'none'}; "
        f"synchronous_standby_names: {state['synchronous_standby_names'] or 'empty'}",
    ]
    lines += [
        f"Shard {shard['shard']}: owned by {shard['owner'] or 'nobody'}, epoch {shard['epoch']}; "
        f"{amount(shard['batches'], 'batch', 'batches')} ({size(shard['journal_bytes'])}) since "
        f"checkpoint {shard['checkpoints']}"
        for shard in state["shards"]
    ]
    lines.append(f"{amount(state['streams_at_checkpoint'], 'stream')} at the last checkpoint")
    owned = Counter(shard["owner"] for shard in state["shards"])
    rows = [("NODE", "URL", "SHARDS", "LAST BEAT", "VERSION")]
    rows += [
        (
            node["name"],
            node["url"],
            str(owned[node["name"]]),
            f"{node['beat_age_s']:.1f} s ago"
            + (", leaving" if node["leaving"] else "" if node["lives"] else ", silent"),
            node["version"],
        )
        for node in state["nodes"]
    ]
    lines += aligned(rows)
    lines += [
        f"Nodes differ in the setting {name}: {' | '.join(map(', '.join, groups))}. Give all the "
        "same."
        for name, groups in state["differing_settings"].items()
    ]
    return lines
