"""`penstock cluster import` and `export`: streams from a data folder into a cluster, and back; and
`restored`, after the database was restored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from penstock.cli import Failure
from penstock.cli.exits import USAGE
from penstock.cli.options import SettingsCommand, resolved, setting_flags
from penstock.cli.terminal import note
from penstock.cli.text import amount, size
from penstock.config.settings import Settings


def cluster_settings(options: dict[str, Any]) -> Settings:
    """Return the settings of a command that needs the database of a cluster."""
    settings = resolved(options).settings
    if not settings.cluster:
        raise Failure("Name the database: --cluster postgresql://…, or PENSTOCK_CLUSTER.", USAGE)
    return settings


@click.command("import", cls=SettingsCommand)
@click.argument("folder", type=click.Path(path_type=Path))
@setting_flags
def import_(folder: Path, **options: Any) -> None:
    """Copy the data folder of a stopped server into a new cluster.

    The database must not hold a cluster yet. Ids and positions are kept: every offset, cursor and
    ETag that clients hold stays valid, and producers, forks, TTLs, subscriptions and tokens come
    along. Everything is read back and compared before the cluster opens for nodes; a command that
    was interrupted goes on when it is run again. The folder stays as it is: do not serve it again.
    The cluster has a shard for each worker of the folder; `penstock reshard` changes their number.

    \b
    Example:
      penstock cluster import ./data --cluster postgresql://penstock@db/streams
    """
    settings = cluster_settings(options)
    from penstock.log.offline.cluster_import import import_folder  # `--help` loads no store

    copied = asyncio.run(import_folder(folder, settings, progress=note))
    click.echo(
        f"{folder}: {amount(copied.streams, 'stream')} with {amount(copied.messages, 'message')} "
        f"({size(copied.bytes)}) copied and compared; the cluster is open"
    )


@click.command("export", cls=SettingsCommand)
@click.argument("folder", type=click.Path(path_type=Path))
@setting_flags
def export(folder: Path, **options: Any) -> None:
    """Copy a stopped cluster into a new data folder.

    All nodes have to be stopped, in order. Ids and positions are kept, as by `penstock cluster
    import`, and the folder has a worker for each shard. It appears when every byte of it was
    checked; the cluster stays as it is.

    \b
    Example:
      penstock cluster export ./data --cluster postgresql://penstock@db/streams
    """
    settings = cluster_settings(options)
    from penstock.log.offline.cluster_export import export_folder  # `--help` loads no store

    copied = asyncio.run(export_folder(folder, settings, tell=note))
    click.echo(
        f"{folder}: {amount(copied.streams, 'stream')} with {amount(copied.messages, 'message')} "
        f"({size(copied.bytes)}) copied and checked"
    )


@click.command("restored", cls=SettingsCommand)
@setting_flags
def restored(**options: Any) -> None:
    """Renew the generations of streams after the database was restored to an earlier time.

    Clients may have seen what is lost. From now on an offset of it is refused with 410
    `stream-recreated`, also when the stream has grown beyond it, and no new stream is taken for a
    lost one. All nodes have to be stopped, in order. Not needed if the database was restored to its
    last commit.

    \b
    Example:
      penstock cluster restored --cluster postgresql://penstock@db/streams
    """
    settings = cluster_settings(options)
    from penstock.log.backup.cluster_restored import renew_cluster  # `--help` loads no store

    result = asyncio.run(renew_cluster(settings))
    click.echo(f"generation {result.generation}: {amount(result.streams, 'stream')} renewed")
