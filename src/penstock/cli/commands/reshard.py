"""`penstock reshard`: changes the number of workers of a stopped folder."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.terminal import note
from penstock.cli.text import amount, size
from penstock.limits import WORKERS_MAX


@click.command("reshard")
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.option(
    "--workers",
    required=True,
    type=click.IntRange(1, WORKERS_MAX),
    metavar="N",
    help="Number of workers that the folder is for from now on.",
)
def command(data_dir: Path, workers: int) -> None:
    """Lay the data folder of a stopped server out for another number of workers.

    Ids, offsets and ETags stay valid. The new folders share the segments of the old ones, and are
    checked before they count. A command that was interrupted is run again with the same folder; no
    server starts on half of it.

    \b
    Examples:
      penstock reshard ./data --workers 4
      penstock reshard ./data --workers 1
    """
    from penstock.workers.reshard import reshard  # here, so that `--help` does not load the store

    result = reshard(data_dir, workers, progress=note)
    if result.before == result.after:
        click.echo(f"{data_dir} is laid out for {amount(workers, 'worker')} already")
        return
    click.echo(
        f"{data_dir}: laid out for {amount(workers, 'worker')} instead of {result.before}, "
        f"{amount(result.streams, 'stream')}, {size(result.bytes)}"
    )
