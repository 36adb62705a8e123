"""`penstock pipeline`: run a pipeline, and look at what it keeps without starting Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock import DISTRIBUTION, limits
from penstock.cli import Failure
from penstock.cli.commands.pipeline.output import print_status, print_table
from penstock.cli.connection import json_option
from penstock.cli.exits import FAILURE
from penstock.cli.terminal import Progress, note, printable
from penstock.cli.text import aligned, amount

if TYPE_CHECKING:
    from penstock.spark.config import Pipeline
    from penstock.spark.pipeline.progress import Progress as Told
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.sql import Until

file_argument: Callable[[Any], Any] = click.argument(
    "file", metavar="FILE", type=click.Path(path_type=Path)
)
format_option: Callable[[Any], Any] = click.option(
    "--format",
    "output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="How rows are printed.  [default: table]",
)


@click.group("pipeline")
def command() -> None:
    """Streams into tables and back: run, look at and check a pipeline.

    FILE is the pipeline's settings, as pipeline.toml; docs/pipeline.md has them all. Only `run`
    starts Spark.

    \b
    Examples:
      penstock pipeline validate pipeline.toml
      penstock pipeline run pipeline.toml --once
      penstock pipeline show pipeline.toml user
      penstock pipeline sql pipeline.toml 'SELECT city, count(*) FROM state_user GROUP BY city'
    """


@command.command("validate")
@file_argument
def validate(file: Path) -> None:
    """Check a pipeline's settings and schemas; nothing is started or asked."""
    pipeline = load(file)
    streams = ", ".join(pipeline.source.streams)
    click.echo(f"{file}: in order")
    click.echo(f"  reads      {streams} of {pipeline.source.url}")
    click.echo(f"  keeps      {pipeline.warehouse.path}")
    for name, schema in pipeline.types.items():
        columns = ", ".join(f"{field.name} {field.type}" for field in schema.fields)
        click.echo(f"  type       {name}: {columns}")
    for name, publish in pipeline.publish.items():
        click.echo(f"  publishes  {name} to {publish.to}")


@command.command("run")
@file_argument
@click.option("--once", is_flag=True, help="Stop at the end that the streams have now.")
@click.option("--master", metavar="URL", help="A Spark cluster; this machine without it.")
@click.option(
    "--resume-from-warehouse",
    is_flag=True,
    help="Go on from where the warehouse stands, with a new checkpoint.",
)
def run(file: Path, once: bool, master: str | None, resume_from_warehouse: bool) -> None:
    """Run a pipeline until Ctrl-C, or with --once to the end of its streams."""
    pipeline = load(file)
    from penstock.spark.pipeline.run import run_pipeline

    with Progress(str(file)) as line:

        def show(told: Told) -> None:
            line.text(told.line())

        last = run_pipeline(
            pipeline,
            once=once,
            master=master,
            resume_from_warehouse=resume_from_warehouse,
            on_progress=show,
            on_note=line.note,
        )
    note(f"{file}: {last.line()}" if last.batches else f"{file}: there was nothing new")


@command.command("status")
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(file: Path, as_json: bool) -> None:
    """Show where a pipeline stands: batches, events, lag, dead letters, tables."""
    pipeline = load(file)
    from penstock.spark.pipeline.status import status_of

    print_status(status_of(pipeline), as_json=as_json)


@command.command("show")
@file_argument
@click.argument("name")
@click.option("--key", metavar="KEY", help="Only this key.")
@click.option("--history", "past", is_flag=True, help="Every value it has had, oldest first.")
@click.option("--at", metavar="OFFSET", help="The state as of this offset; needs --stream.")
@click.option("--stream", metavar="PATH", help="The stream that --at is an offset of.")
@click.option("--batch", type=int, metavar="N", help="The state as of this batch.")
@click.option("--limit", type=int, default=100, metavar="N", help="[default: 100]")
@format_option
def show(file: Path, name: str, key: str | None, past: bool, limit: int, **given: Any) -> None:
    """Show the state of the type NAME; or the table `events` or `dead_letters`."""
    pipeline = load(file)
    output = given.pop("output")
    duck = _duck(pipeline)
    try:
        until = _until(**given)
        chosen = ""
        if key is not None:
            from penstock.spark.warehouse.sql import literal

            column = "key" if name in ("events", "dead_letters") else "_key"
            chosen = f"WHERE x.{column} = {literal(key)} "
        order = f"ORDER BY {_order(name, past=past)}"
        rows = _rows(duck, name, f"{chosen}{order} LIMIT {max(limit, 0)}", past=past, until=until)
        query = f"SELECT x.* FROM {rows} x {order}"
        print_table(duck.sql(query), output)
    finally:
        duck.close()


def _rows(duck: Duck, name: str, chosen: str, *, past: bool, until: Until | None) -> str:
    """The rows to be shown, as something to select from."""
    if name in ("events", "dead_letters"):
        return f"(SELECT x.* FROM {name} x {chosen})"
    names = duck.view_names()
    if name not in names:
        known = ", ".join(names) or "none yet"
        raise Failure(f"there is no type {name!r} in the warehouse; there are: {known}", FAILURE)
    if past:
        from penstock.spark.warehouse.sql import NOW

        return duck.history(name, until or NOW, chosen=chosen)
    if until is not None:
        return duck.state_at(name, until, chosen=chosen)
    return f"(SELECT x.* FROM state_{names[name]} x {chosen})"


def _order(name: str, *, past: bool) -> str:
    if name in ("events", "dead_letters"):
        return "x.stream, x.generation, x.ordinal"
    return "x._key, x._stream, x._generation, x._from_ordinal" if past else "x._key, x._stream"


def _until(*, at: str | None, stream: str | None, batch: int | None) -> Until | None:
    from penstock.spark.warehouse.sql import Until, until_offset

    if at is None:
        return None if batch is None else Until(batch=batch)
    if stream is None:
        raise click.UsageError("--at needs --stream: an offset is of one stream")
    return until_offset(stream, at)._replace(batch=batch)


@command.command("sql")
@file_argument
@click.argument("query")
@format_option
def sql(file: Path, query: str, output: str) -> None:
    """Ask the tables in SQL: events, dead_letters, state_TYPE, by_key_TYPE, history_TYPE.

    collisions_TYPE has the keys of a type that more than one stream has, collisions those of all.
    """
    duck = _duck(load(file))
    try:
        print_table(duck.sql(query), output)
    finally:
        duck.close()


@command.command("replay-dead-letters")
@file_argument
def replay_dead_letters(file: Path) -> None:
    """Try the invalid events again after a fix of the schemas; not while the pipeline runs."""
    pipeline = load(file)
    from penstock.spark.warehouse.dead_letters import replay_dead_letters

    done, left = replay_dead_letters(pipeline)
    click.echo(f"{done:,} replayed, {left:,} still invalid")


@command.command("vacuum")
@file_argument
@click.option(
    "--hours",
    type=click.IntRange(min=0),
    metavar="N",
    help="Versions so old may still be read.  [default: keep_hours of the pipeline, or 6]",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
def vacuum(file: Path, hours: int | None, dry_run: bool) -> None:
    """Remove files of the tables that nobody needs; not while the pipeline runs.

    A running pipeline does this by itself. Files of versions that were the newest within the last N
    hours stay, for those who still read them; all others go, also what a killed run has left.

    \b
    Examples:
      penstock pipeline vacuum pipeline.toml --dry-run
      penstock pipeline vacuum pipeline.toml --hours 1
    """
    pipeline = load(file)
    from penstock.spark.warehouse.vacuum import vacuum

    found = vacuum(pipeline, hours=hours, dry_run=dry_run)
    for line in aligned([(name, f"{count:,}") for name, count in found.items()], right={1}):
        click.echo(printable(line))
    files = amount(sum(found.values()), "file")
    click.echo(f"{files} would be removed" if dry_run else f"{files} removed")


@command.command("rewrite")
@file_argument
@click.argument("stream")
@click.option("--to", required=True, metavar="NAME", help="The new stream.")
@click.option("--keep-open", is_flag=True, help="Do not close STREAM for its writers.")
@click.option("--trim", is_flag=True, help="Let go of all in STREAM but what leads to the new one.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=limits.PIPELINE_SWITCH_ATTEMPTS_MAX,
    metavar="N",
    help="To find a moment without a write.  [default: 100]",
)
@json_option
def rewrite(file: Path, stream: str, to: str, as_json: bool, attempts: int, **given: bool) -> None:
    """Write the state of STREAM to a new stream, and lead its readers there.

    For state that is too large for `penstock compact`. It is taken from the warehouse and sent as a
    snapshot; what came since is copied; then STREAM gets a reset that names the new stream, and is
    closed. A rewrite that was interrupted goes on when it is run again.

    \b
    Examples:
      penstock pipeline rewrite pipeline.toml shop/users --to shop/users-2
    """
    pipeline = load(file)
    from penstock.spark.pipeline.rewrite import rewrite

    with Progress(stream) as line:
        done = rewrite(pipeline, stream, to, attempts_max=attempts, on_progress=line.text, **given)
    if as_json:
        click.echo(json.dumps(done._asdict()))
        return
    click.echo(
        printable(
            f"{done.stream} goes on in {done.to}: {amount(done.entities, 'entity', 'entities')}, "
            f"and {amount(done.copied, 'message')} since"
        )
    )
    if not done.is_read:
        note(f"the pipeline does not read {done.to}: add it to source.streams in {file}")


def load(file: Path) -> Pipeline:
    """The pipeline of a file, or one line about the packages that it needs."""
    try:
        from penstock.spark.config import load_pipeline
    except ModuleNotFoundError as error:
        raise missing_package(error.name) from None
    return load_pipeline(file)


def missing_package(name: str | None) -> Failure:
    """The line for somebody who has installed Penstock without its extra `spark`."""
    install = f"pip install '{DISTRIBUTION}[spark]'"
    return Failure(f"a pipeline needs the package {name}: {install}", FAILURE)


def _duck(pipeline: Pipeline) -> Duck:
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.warehouse import Warehouse

    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    return Duck(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
