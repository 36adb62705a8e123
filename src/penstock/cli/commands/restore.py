"""`penstock restore`: writes a backup into an empty folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.commands.backup import percentage
from penstock.cli.terminal import note, printable
from penstock.cli.text import amount, size
from penstock.cli.values import Moment

if TYPE_CHECKING:
    from penstock.log.backup.repository import Repository


@click.command("restore")
@click.argument("dest")
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder to restore into: empty, or not there yet.",
)
@click.option(
    "--at",
    "at_ms",
    type=Moment(),
    metavar="TIME",
    help="Restore the newest backup that is not after this time, or not after an age such as 2h.  "
    "[default: the newest]",
)
@click.option("--backup", "id", metavar="ID", help="Restore this backup; see `backup list`.")
def command(dest: str, data_dir: Path, at_ms: int | None, id: str | None) -> None:
    """Restore a backup in DEST into an empty folder, for `penstock serve --data-dir DIR`.

    Every byte is compared with its checksum. A restore that was interrupted is run again with the
    same folder; no server starts on half of one. Offsets up to the backup stay valid; those of
    later messages, which are lost, are refused from now on (410).

    \b
    Examples:
      penstock restore /mnt/backups --data-dir ./restored
      penstock restore s3://backups/penstock --data-dir ./data --at 2027-01-15T08:00:00Z
      penstock restore s3://backups/penstock --data-dir ./data --at yesterday
    """
    if id is not None and at_ms is not None:
        raise click.UsageError("Use either --at or --backup.")
    # The whole millisecond: a time as `backup list` shows it finds its backup.
    at_us = None if at_ms is None else at_ms * 1000 + 999
    from penstock.log.backup.repository import Repository
    from penstock.log.backup.restore import find_backup, restore
    from penstock.object_store import open_store
    from penstock.protocol.headers import format_expires_at

    repository = Repository(open_store(dest))
    parts = worker_repositories(repository, dest)
    if parts:
        _restore_workers(parts, data_dir, at_us, id)
        return
    manifest = find_backup(repository, id=id, at_us=at_us)
    with percentage("restored") as on_progress:
        restore(repository, manifest, data_dir, on_progress=on_progress)
    click.echo(
        f"{data_dir}: restored backup {manifest.id} of {format_expires_at(manifest.cut_us)}, "
        f"{amount(manifest.streams, 'stream')}, {size(manifest.bytes)}"
    )
    for line in manifest.damaged:
        note(printable(f"damaged when it was backed up: {line}"))


def worker_repositories(repository: Repository, dest: str) -> list[Repository]:
    """Return the repositories of the workers of a server; none if DEST has backups of its own."""
    from penstock.log.backup.repository import Repository
    from penstock.object_store import open_store
    from penstock.workers.owners import worker_name

    if repository.ids():
        return []
    parts: list[Repository] = []
    while True:
        part = Repository(open_store(f"{dest.rstrip('/')}/{worker_name(len(parts))}"))
        if not part.ids():
            return parts
        parts.append(part)


def _restore_workers(
    parts: list[Repository], data_dir: Path, at_us: int | None, id: str | None
) -> None:
    from penstock.log.backup.restore import find_backup, restore_workers

    if id is not None:
        raise click.UsageError("The workers of a server have backups of their own: use --at.")
    manifests = [find_backup(each, id=None, at_us=at_us) for each in parts]
    workers = manifests[0].folder.get("workers")
    if workers != len(manifests):
        raise click.ClickException(
            f"The backup is of a server with {workers} workers, and there are parts of "
            f"{len(manifests)}."
        )
    with percentage("restored") as on_progress:
        restore_workers(parts, manifests, data_dir, on_progress=on_progress)
    streams, total = sum(m.streams for m in manifests), sum(m.bytes for m in manifests)
    click.echo(
        f"{data_dir}: restored {len(manifests)} workers, {amount(streams, 'stream')}, {size(total)}"
    )
