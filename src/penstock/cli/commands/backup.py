"""`penstock backup`: backs up a server or a folder, and lists and checks backups."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import Failure
from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.exits import FAILURE
from penstock.cli.terminal import note, printable
from penstock.cli.text import aligned, amount, size
from penstock.units import SIZE

if TYPE_CHECKING:
    from penstock.client.sync.client import Client
    from penstock.log.backup.jobs import BackupJob
    from penstock.log.backup.manifest import Manifest

PATH: Final = "/v1/backup"
POLL_S: Final = 0.2


class Size(click.ParamType[int]):
    """``10MiB``: a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            return int(SIZE.parse(str(value)))
        except ValueError:
            self.fail(f"{value!r} is not {SIZE.expects}.", param, ctx)


class _Group(click.Group):
    """A group whose command `run` needs no name: `penstock backup DEST`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group("backup", cls=_Group)
def command() -> None:
    """Back up a server while it serves, and list and check backups.

    DEST is an absolute path on the machine of the server, or an object store: s3://BUCKET/PREFIX,
    gs://… or az://CONTAINER/PREFIX, with the credentials of the server's environment. Everything
    that was acknowledged before the command is in the backup. What DEST has already is not copied
    again. The server needs a token with admin:__ds/backup, if it has access rules.

    \b
    Examples:
      penstock backup /mnt/backups
      penstock backup s3://backups/penstock --keep 14
      penstock backup /mnt/backups --data-dir ./data   # of a stopped server
      penstock backup list /mnt/backups
      penstock backup verify s3://backups/penstock
    """


@command.command("run")
@click.argument("dest")
@click.option(
    "--keep",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Remove all but the newest backups, so many, afterwards.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0, min_open=True),
    metavar="DAYS",
    help="Remove backups that are older, afterwards. With --keep only those that both let go.",
)
@click.option(
    "--rate",
    type=Size(),
    metavar="SIZE",
    help="Maximum bytes a second.  [default: backup_bytes_per_s of the server; 0: no limit]",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Back up the data folder of a stopped server instead.",
)
@click.option("--no-wait", is_flag=True, help="Return when the backup has begun.")
@json_option
@server_options
def run(
    server: Server,
    dest: str,
    keep: int | None,
    keep_days: float | None,
    rate: int | None,
    data_dir: Path | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Back up a server to DEST. `run` can be left out.

    If the command is interrupted, the backup goes on; `penstock backup cancel` stops it.
    """
    dest = _absolute(dest)
    wish = {"destination": dest, "keep": keep, "keep_days": keep_days, "rate": rate}
    if data_dir is not None:
        job = _offline_all(data_dir, wish)
    else:
        with server.client() as client:
            job = _ask(client, "POST", {k: v for k, v in wish.items() if v is not None})
            if no_wait:
                click.echo(json.dumps(job) if as_json else f"The backup to {dest} has begun.")
                return
            job = _follow(client, job)
    _finish(job, as_json=as_json)


@command.command("cancel")
@server_options
def cancel(server: Server) -> None:
    """Stop the backup that a server runs. Earlier backups stay as they are."""
    with server.client() as client:
        job = _ask(client, "DELETE")
        is_running = job["state"] == "running"
        while job["state"] == "running":
            time.sleep(POLL_S)  # the server tells of progress only when it is asked
            job = _ask(client, "GET")
    click.echo("The backup was stopped." if is_running else "No backup is running.")


@command.command("list")
@click.argument("dest")
@json_option
def list_(dest: str, as_json: bool) -> None:
    """List the backups in DEST, the oldest first. Reads DEST from this machine."""
    from penstock.http.maintenance.backup import shown_manifest

    manifests, faults = _repository(dest).manifests()
    if as_json:
        for manifest in manifests:
            click.echo(json.dumps(shown_manifest(manifest)))
    elif manifests:
        click.echo("\n".join(map(printable, _table(manifests))))
    else:
        click.echo(f"There are no backups in {dest}.")
    for fault in faults:
        note(printable(fault))
    if faults:
        raise Failure(f"{amount(len(faults), 'backup')} cannot be read.", FAILURE)


@command.command("verify")
@click.argument("dest")
@click.option("--backup", "id", metavar="ID", help="Only this backup.  [default: all]")
def verify(dest: str, id: str | None) -> None:
    """Read every byte of the backups in DEST and compare it with its checksum.

    Reads DEST from this machine. The exit code is 1 if something is missing or damaged, or if there
    is no backup at all.
    """
    from penstock.log.backup.restore import verify_backup

    repository = _repository(dest)
    if id is not None:
        manifests, faults = [repository.manifest(id)], []
    else:
        manifests, faults = repository.manifests()
        if not manifests and not faults:
            raise Failure(f"{dest} has no backup.", FAILURE)
    with percentage("checked") as on_progress:
        faults += verify_backup(repository, manifests, on_progress=on_progress)
    for fault in faults:
        click.echo(f"problem: {printable(fault)}")
    total = amount(len(manifests), "backup")
    if faults:
        raise Failure(f"{amount(len(faults), 'problem')} found in {total}.", FAILURE)
    click.echo(f"{total}, no problems found")


@contextmanager
def percentage(verb: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far something is."""
    shown, is_terminal = -1, sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if is_terminal and percent != shown:
            shown = percent
            click.echo(f"\r{verb} {percent}%", nl=False, err=True)

    try:
        yield show
    finally:
        if shown >= 0:
            click.echo("\r" + " " * 24 + "\r", nl=False, err=True)


def _absolute(dest: str) -> str:
    return dest if "://" in dest else str(Path(dest).expanduser().absolute())


def _repository(dest: str) -> Any:
    from penstock.log.backup.repository import Repository
    from penstock.object_store import open_store

    return Repository(open_store(dest))


def _ask(client: Client, method: str, wish: dict[str, Any] | None = None) -> dict[str, Any]:
    from penstock.client.requests import JSON, Request

    url = client.url.rstrip("/") + PATH
    headers = {} if wish is None else {"Content-Type": JSON}
    body = b"" if wish is None else json.dumps(wish).encode()
    answer = client.request(Request(method, url, headers, body=body))
    job: dict[str, Any] = json.loads(answer.body)
    return job


def _follow(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a backup that a server runs."""
    try:
        with percentage("backed up") as show:
            while job["state"] == "running":
                time.sleep(POLL_S)  # as above
                job = _ask(client, "GET")
                show(job["bytes_done"], job["bytes_total"])
    except KeyboardInterrupt:
        note("The backup goes on. `penstock backup cancel` stops it.")
        raise
    return job


def _offline_all(data_dir: Path, wish: dict[str, Any]) -> dict[str, Any]:
    """Back a stopped folder up; of one with several workers each has its own place."""
    from penstock.http.forwarding.merging import job
    from penstock.log.disk.files import Files
    from penstock.log.disk.worker_folders import worker_folders
    from penstock.workers.owners import worker_name

    folders = worker_folders(Files(), data_dir)
    if len(folders) == 1 and folders[0] == data_dir:
        return _offline(data_dir, wish)
    parts: dict[str, dict[str, Any]] = {}
    for index, folder in enumerate(folders):
        name = worker_name(index)
        dest = f"{wish['destination'].rstrip('/')}/{name}"
        parts[name] = _offline(folder, {**wish, "destination": dest})
    return job(parts)


def _offline(data_dir: Path, wish: dict[str, Any]) -> dict[str, Any]:
    import asyncio

    from penstock.http.maintenance.backup import shown_job
    from penstock.log.backup.jobs import back_up_folder
    from penstock.log.backup.repository import Keep

    async def main() -> BackupJob:
        with percentage("backed up") as show:

            def on_start(job: BackupJob) -> None:
                async def watch() -> None:
                    while True:
                        show(job.progress.bytes_done, job.progress.bytes_total)
                        await asyncio.sleep(POLL_S)

                watching.append(asyncio.create_task(watch()))

            watching: list[asyncio.Task[None]] = []
            try:
                return await back_up_folder(
                    data_dir,
                    wish["destination"],
                    keep=Keep(wish["keep"], wish["keep_days"]),
                    rate_bytes_s=wish["rate"] or 0,
                    on_start=on_start,
                )
            finally:
                for task in watching:
                    task.cancel()

    return shown_job(asyncio.run(main()))


def _finish(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job))
    if job["state"] == "canceled":
        raise Failure("The backup was stopped.", FAILURE)
    if job["error"] is not None:
        raise Failure(f"The backup failed: {job['error']['detail']}", FAILURE)
    backup = job["backup"]
    if not as_json:
        click.echo(
            f"{backup['id']}: {amount(backup['streams'], 'stream')}, {size(backup['bytes'])}, of "
            f"which {size(backup['new_bytes'])} are new"
        )
        for line in backup["damaged"]:
            click.echo(printable(f"damaged: {line}"))
    if backup["damaged"]:
        raise Failure(
            "The backup is complete, but what is listed was damaged in the data folder already. "
            "Keep the earlier backups, and run `penstock verify` on the stopped folder.",
            FAILURE,
        )


def _table(manifests: list[Manifest]) -> Iterator[str]:
    from penstock.protocol.headers import format_expires_at

    lines = [("ID", "TIME", "STREAMS", "SIZE", "NEW", "VERSION")]
    lines += [
        (
            each.id,
            format_expires_at(each.cut_us),
            f"{each.streams:,}",
            size(each.bytes),
            size(each.new_bytes),
            each.version + (" (damaged)" if each.damaged else ""),
        )
        for each in manifests
    ]
    return aligned(lines, right={2, 3, 4})
