"""`penstock pipeline`: runs a pipeline, and queries its tables without starting Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock import DISTRIBUTION, limits
from penstock.cli import Failure
from penstock.cli.commands.pipeline.output import print_status, print_table
from penstock.cli.connection import json_option
from penstock.cli.exits import FAILURE
from penstock.cli.system import stdin_bytes
from penstock.cli.terminal import Progress, note, printable
from penstock.cli.text import aligned, amount

if TYPE_CHECKING:
    from penstock.spark.config import Pipeline
    from penstock.spark.pipeline.progress import Progress as PipelineProgress
    from penstock.spark.warehouse.duckdb import Duck
    from penstock.spark.warehouse.sql import Until

D = TypeVar("D", bound="Duck")

file_argument: Callable[[Any], Any] = click.argument(
    "file", metavar="FILE", type=click.Path(path_type=Path)
)
format_option: Callable[[Any], Any] = click.option(
    "--format",
    "output",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    help="Format of the rows.  [default: table]",
)


@click.group("pipeline")
def command() -> None:
    """Run and query a Spark pipeline from streams to tables.

    FILE holds the settings of the pipeline (pipeline.toml); docs/pipeline.md describes them. Only
    `run` starts Spark.

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
    """Check the settings and schemas of a pipeline, without running anything."""
    pipeline = load(file, noted=False)
    streams = ", ".join(pipeline.source.streams)
    click.echo(f"{file}: OK")
    click.echo(f"  reads      {streams} of {pipeline.source.url}")
    click.echo(f"  writes     {pipeline.warehouse.path}")
    for name, schema in pipeline.types.items():
        columns = ", ".join(f"{field.name} {field.type}" for field in schema.fields)
        click.echo(f"  type       {name}: {columns}")
    for name in pipeline.server_types:
        click.echo(f"  type       {name}: as its streams declare it")
    for name, expectations in pipeline.expect.items():
        for each in expectations:
            click.echo(f"  expects    {name}.{each.name}: {each.sql} ({each.action})")
    for name, publish in pipeline.publish.items():
        click.echo(f"  publishes  {name} to {publish.to}")


@command.command("run")
@file_argument
@click.option("--once", is_flag=True, help="Stop at the current end of the streams.")
@click.option("--master", metavar="URL", help="URL of a Spark cluster.  [default: this machine]")
@click.option(
    "--resume-from-warehouse",
    is_flag=True,
    help="Continue from the offsets of the warehouse, with a new checkpoint.",
)
def run(file: Path, once: bool, master: str | None, resume_from_warehouse: bool) -> None:
    """Run a pipeline until Ctrl-C, or with --once until the end of its streams."""
    pipeline = load(file, noted=False)
    from penstock.spark.pipeline.run import run_pipeline

    with Progress(str(file)) as line:

        def show(progress: PipelineProgress) -> None:
            line.text(progress.line())

        last = run_pipeline(
            pipeline,
            once=once,
            master=master,
            resume_from_warehouse=resume_from_warehouse,
            on_progress=show,
            on_note=line.note,
        )
    note(f"{file}: {last.line()}" if last.batches else f"{file}: no new messages")


@command.command("status")
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--details",
    is_flag=True,
    help="Add runs, lag and rate of streams, and the reasons of dead letters; in JSON also batches "
    "with their times, and columns.",
)
def status(file: Path, as_json: bool, details: bool) -> None:
    """Show the progress of a pipeline: batches, events, lag, dead letters, tables."""
    pipeline = load(file)
    from penstock.spark.pipeline.status import status_of

    print_status(status_of(pipeline, details=details), as_json=as_json)


@command.command("show")
@file_argument
@click.argument("name")
@click.option("--key", metavar="KEY", help="Only this key.")
@click.option("--history", "past", is_flag=True, help="Show every value of each key, oldest first.")
@click.option("--at", metavar="OFFSET", help="The state at this offset; needs --stream.")
@click.option("--stream", metavar="PATH", help="The stream of the offset --at.")
@click.option("--batch", type=int, metavar="N", help="The state after this batch.")
@click.option("--time", metavar="TIME", help="The state that the tables had at this time.")
@click.option(
    "--limit", type=int, default=100, metavar="N", help="Maximum number of rows.  [default: 100]"
)
@format_option
def show(file: Path, name: str, key: str | None, past: bool, limit: int, **options: Any) -> None:
    """Show the state of the type NAME, or the table `events` or `dead_letters`."""
    pipeline = load(file)
    output = options.pop("output")
    duck = _duck(pipeline)
    try:
        until = _until(**options)
        condition = ""
        if key is not None:
            from penstock.spark.warehouse.sql import literal

            column = "key" if name in ("events", "dead_letters") else "_key"
            condition = f"WHERE x.{column} = {literal(key)} "
        order = f"ORDER BY {_order(name, past=past)}"
        clauses = f"{condition}{order} LIMIT {max(limit, 0)}"
        rows = _rows(duck, name, clauses, past=past, until=until)
        query = f"SELECT x.* FROM {rows} x {order}"
        print_table(duck.sql(query), output)
    finally:
        duck.close()


def _rows(duck: Duck, name: str, clauses: str, *, past: bool, until: Until | None) -> str:
    """Return the relation of the rows to show."""
    if name in ("events", "dead_letters"):
        return f"(SELECT x.* FROM {name} x {clauses})"
    names = duck.view_names()
    if name not in names:
        types = ", ".join(names) or "none"
        raise Failure(f"There is no type {name!r} in the warehouse (types: {types}).", FAILURE)
    if past:
        from penstock.spark.warehouse.sql import NOW

        return duck.history(name, until or NOW, chosen=clauses)
    if until is not None:
        return duck.state_at(name, until, chosen=clauses)
    return f"(SELECT x.* FROM state_{names[name]} x {clauses})"


def _order(name: str, *, past: bool) -> str:
    if name in ("events", "dead_letters"):
        return "x.stream, x.generation, x.ordinal"
    return (
        "x._key, x._stream, x._generation, x._valid_from_ordinal" if past else "x._key, x._stream"
    )


def _until(
    *, at: str | None, stream: str | None, batch: int | None, time: str | None
) -> Until | None:
    from penstock.spark.warehouse.sql import Until, parse_time, until_offset

    ingested = None if time is None else parse_time(time)
    if at is None:
        is_now = batch is None and ingested is None
        return None if is_now else Until(batch=batch, ingested=ingested)
    if stream is None:
        raise click.UsageError("--at needs --stream, because an offset belongs to one stream.")
    return until_offset(stream, at)._replace(batch=batch, ingested=ingested)


@command.command("sql")
@file_argument
@click.argument("query")
@format_option
def sql(file: Path, query: str, output: str) -> None:
    """Query the tables in SQL: events, dead_letters, state_TYPE, by_key_TYPE, history_TYPE.

    collisions_TYPE lists the keys of a type that occur in more than one stream; collisions lists
    those of all types.
    """
    duck = _duck(load(file))
    try:
        print_table(duck.sql(query), output)
    finally:
        duck.close()


@command.command("query")
@file_argument
@click.option(
    "--rows",
    type=click.IntRange(min=1),
    default=limits.PIPELINE_QUERY_ROWS_MAX,
    metavar="N",
    help=f"Maximum number of rows.  [default: {limits.PIPELINE_QUERY_ROWS_MAX}]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=limits.PIPELINE_QUERY_TIMEOUT_S,
    metavar="N",
    help=f"Maximum duration.  [default: {limits.PIPELINE_QUERY_TIMEOUT_S:g}]",
)
def query(file: Path, rows: int, seconds: float) -> None:
    """Run one SELECT from stdin for somebody else, in a sandbox.

    The query reaches the tables that `sql` has, and neither files nor the network. The output is
    one JSON object: the columns, the rows as arrays, and whether there are more; or the error of a
    query that cannot be run. The console of a server runs its queries with this.
    """
    import msgspec

    from penstock.errors import QueryFailed

    pipeline = load(file)
    from penstock.spark.warehouse.sandbox import SandboxedDuck, limit_memory

    limit_memory()
    text = stdin_bytes().decode("utf-8", "replace")
    duck = _relations(pipeline, SandboxedDuck)
    try:
        result: object = duck.query(
            text,
            rows_max=rows,
            bytes_max=limits.PIPELINE_QUERY_BYTES_MAX,
            seconds_max=seconds,
        )
    except QueryFailed as error:
        result = {"error": error.detail}
    finally:
        duck.close()
    click.echo(msgspec.json.encode(result))


def selection_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options that choose dead letters."""
    for name, words in {
        "--key": "Only those of this key.",
        "--stream": "Only those of this stream.",
        "--type": "Only those of this type.",
        "--reason": "Only those with this error, spelled as it is shown.",
    }.items():
        function = click.option(name, metavar="TEXT", help=words)(function)
    return function


@command.command("dead-letters")
@file_argument
@selection_options
@click.option("--list", "is_listed", is_flag=True, help="List the events, not the reasons.")
@click.option(
    "--limit", type=int, default=100, metavar="N", help="Maximum number of rows.  [default: 100]"
)
@format_option
def dead_letters(
    file: Path, is_listed: bool, limit: int, output: str, **selection: str | None
) -> None:
    """Show the invalid events of a pipeline: how many there are for each reason, or the events.

    \b
    Examples:
      penstock pipeline dead-letters pipeline.toml
      penstock pipeline dead-letters pipeline.toml --type user --list
      penstock pipeline dead-letters pipeline.toml --reason 'value.age: Expected `int`, got `str`'
    """
    duck = _duck(load(file))
    from penstock.spark.warehouse.dead_letters import Selection

    chosen = Selection(**selection)
    where = f"FROM dead_letters d WHERE {chosen.condition('d')}"
    last = f"LIMIT {max(limit, 0)}"
    query = (
        "SELECT d.error AS reason, count(*) AS events, count(DISTINCT d.stream) AS streams, "
        f"any_value(d.type) AS type, any_value(d.key) AS key {where} GROUP BY d.error "
        f"ORDER BY events DESC, reason {last}"
    )
    if is_listed or chosen.reason is not None or chosen.key is not None:
        query = f"SELECT d.* {where} ORDER BY d.stream, d.generation, d.ordinal {last}"
    try:
        print_table(duck.sql(query), output)
    finally:
        duck.close()


@command.command("replay-dead-letters")
@file_argument
@selection_options
@click.option(
    "--fix", metavar="SQL", help="An expression over a dead letter that gives its new value."
)
@click.option("--discard", is_flag=True, help="Settle them without making them events.")
@click.option("--dry-run", is_flag=True, help="Only count what would be done.")
@json_option
def replay_dead_letters(
    file: Path,
    fix: str | None,
    discard: bool,
    dry_run: bool,
    as_json: bool,
    **selection: str | None,
) -> None:
    """Apply invalid events again after the schemas have been corrected, or with corrected values.

    The pipeline must not run at the same time. Corrected values are checked like any other; the
    invalid event stays in the table events.

    \b
    Examples:
      penstock pipeline replay-dead-letters pipeline.toml --dry-run
      penstock pipeline replay-dead-letters pipeline.toml --type user \\
        --fix "json_merge_patch(value, '{\"name\": \"unknown\"}')"
    """
    if fix is not None and discard:
        raise click.UsageError("--fix and --discard exclude each other.")
    pipeline = load(file)
    from penstock.spark.warehouse.dead_letters import Selection, replay_dead_letters

    replayed, invalid, discarded = replay_dead_letters(
        pipeline, Selection(**selection), fix=fix, discard=discard, dry_run=dry_run
    )
    if as_json:
        counts = {"replayed": replayed, "invalid": invalid, "discarded": discarded}
        click.echo(json.dumps(counts))
        return
    would = "would be " if dry_run else ""
    done = f"{discarded:,} {would}discarded" if discard else f"{replayed:,} {would}replayed"
    click.echo(f"{done}, {invalid:,} still invalid")


@command.command("rebuild")
@file_argument
@click.argument("name", metavar="TYPE")
@click.option("--from-events", is_flag=True, help="Fold all events again; no run may be writing.")
@click.option("--stage-only", is_flag=True, help="Leave the switch to the next run.")
@json_option
def rebuild(file: Path, name: str, from_events: bool, stage_only: bool, as_json: bool) -> None:
    """Rebuild the state table of TYPE for a schema that removes, renames or changes columns.

    The new table is written beside the current one, which stays in use, and replaces it in one
    commit. While a run writes the warehouse, the new table waits: restart the pipeline with the new
    schema. Run an interrupted rebuild again to continue it.

    \b
    Examples:
      penstock pipeline rebuild pipeline.toml user
      penstock pipeline rebuild pipeline.toml user --from-events
    """
    if from_events and stage_only:
        raise click.UsageError("--from-events cannot be staged.")
    pipeline = load(file, noted=False)
    from penstock.spark.pipeline.declarations import with_declarations
    from penstock.spark.warehouse.rebuild import rebuild_table
    from penstock.spark.warehouse.warehouse import Warehouse

    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    pipeline = with_declarations(pipeline, warehouse, note)
    with Progress(name) as line:
        done = rebuild_table(
            pipeline, name, from_events=from_events, stage_only=stage_only, on_progress=line.text
        )
    if as_json:
        click.echo(json.dumps(done._asdict()))
        return
    misfits = f", {done.misfits:,} with values that do not fit" if done.misfits else ""
    rows = f"{amount(done.rows, 'row')} as of batch {done.batch:,}{misfits}"
    click.echo(printable(f"{name}: {rows}, {'switched' if done.is_switched else 'staged'}"))
    if not done.is_switched:
        note("The current table stays in use until a run starts with the new schema.")


@command.command("optimize")
@file_argument
def optimize(file: Path) -> None:
    """Merge small files of the table events, ordered by the columns of `pipeline.cluster`.

    A running pipeline does this by itself every `pipeline.optimize_batches` batches; the command
    must not run at the same time.
    """
    pipeline = load(file)
    from penstock.spark.warehouse.optimize import optimize

    before, after = optimize(pipeline)
    click.echo(f"{amount(before, 'file')} before, {amount(after, 'file')} after")


@command.command("catalog")
@file_argument
def catalog(file: Path) -> None:
    """Print SQL that registers the tables in a catalog of Spark with Delta's jar.

    With `warehouse.catalog` a run registers them by itself. The statements are for other sessions:
    pass them to spark-sql, or to a notebook.
    """
    pipeline = load(file)
    from penstock.spark.warehouse.catalog import statements
    from penstock.spark.warehouse.warehouse import Warehouse

    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    for statement in statements(pipeline, warehouse).values():
        click.echo(f"{statement};")


@command.command("iceberg")
@file_argument
@json_option
def iceberg(file: Path, as_json: bool) -> None:
    """Write Iceberg metadata for the current version of the tables, over the same data files.

    `[warehouse.iceberg]` has the properties of a catalog as PyIceberg takes them; the package
    `pyiceberg` has to be installed. Run it again for later versions.
    """
    pipeline = load(file)
    from penstock.spark.warehouse.iceberg import export

    tables = export(pipeline)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in tables]))
        return
    for each in tables:
        click.echo(printable(f"{each.name}: version {each.version}, {amount(each.rows, 'row')}"))


@command.command("vacuum")
@file_argument
@click.option(
    "--hours",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep versions of the last N hours.  [default: keep_hours of the pipeline, or 6]",
)
@click.option("--dry-run", is_flag=True, help="Only count the files that would be removed.")
def vacuum(file: Path, hours: int | None, dry_run: bool) -> None:
    """Remove unreferenced files of the tables.

    A running pipeline does this by itself; the command must not run at the same time. Files of
    versions that were current within the last N hours stay for their readers. All other files are
    removed, also those of killed runs.

    \b
    Examples:
      penstock pipeline vacuum pipeline.toml --dry-run
      penstock pipeline vacuum pipeline.toml --hours 1
    """
    pipeline = load(file)
    from penstock.spark.warehouse.vacuum import vacuum

    counts = vacuum(pipeline, hours=hours, dry_run=dry_run)
    for line in aligned([(name, f"{count:,}") for name, count in counts.items()], right={1}):
        click.echo(printable(line))
    files = amount(sum(counts.values()), "file")
    click.echo(f"{files} would be removed" if dry_run else f"{files} removed")


@command.command("rewrite")
@file_argument
@click.argument("stream")
@click.option("--to", required=True, metavar="NAME", help="Path of the new stream.")
@click.option("--keep-open", is_flag=True, help="Do not close STREAM.")
@click.option("--trim", is_flag=True, help="Delete all messages of STREAM except the redirect.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=limits.PIPELINE_SWITCH_ATTEMPTS_MAX,
    metavar="N",
    help="Attempts to redirect readers between two writes.  [default: 100]",
)
@json_option
def rewrite(
    file: Path, stream: str, to: str, as_json: bool, attempts: int, **options: bool
) -> None:
    """Write the state of STREAM to a new stream, and redirect its readers there.

    Use it for a state that is too large for `penstock compact`. The state is read from the
    warehouse and appended as a snapshot. Later messages are copied. Then STREAM gets a reset that
    names the new stream, and is closed. Run an interrupted rewrite again to continue it.

    \b
    Examples:
      penstock pipeline rewrite pipeline.toml shop/users --to shop/users-2
    """
    pipeline = load(file)
    from penstock.spark.pipeline.rewrite import rewrite

    with Progress(stream) as line:
        done = rewrite(
            pipeline, stream, to, attempts_max=attempts, on_progress=line.text, **options
        )
    if as_json:
        click.echo(json.dumps(done._asdict()))
        return
    click.echo(
        printable(
            f"{done.stream} redirects to {done.to}: {amount(done.entities, 'entity', 'entities')} "
            f"and {amount(done.copied, 'later message')}"
        )
    )
    if not done.is_read:
        note(f"The pipeline does not read {done.to}. Add it to source.streams in {file}.")


def load(file: Path, *, noted: bool = True) -> Pipeline:
    """Return the pipeline of a file, or raise Failure if a package is missing. Schemas of the
    server are those of the last run; not `noted`: they are left out."""
    try:
        from penstock.spark.config import load_pipeline
    except ModuleNotFoundError as error:
        raise missing_package(error.name) from None
    pipeline = load_pipeline(file)
    if noted and pipeline.server_types:
        from penstock.spark.warehouse.declared import with_noted

        return with_noted(pipeline)
    return pipeline


def missing_package(name: str | None) -> Failure:
    """Return the failure of an installation without the extra `spark`."""
    install = f"pip install '{DISTRIBUTION}[spark]'"
    return Failure(f"A pipeline needs the package {name}. Install it with {install}.", FAILURE)


def _duck(pipeline: Pipeline) -> Duck:
    from penstock.spark.warehouse.duckdb import Duck

    return _relations(pipeline, Duck)


def _relations(pipeline: Pipeline, kind: type[D]) -> D:
    """Return the relations of a pipeline in DuckDB, or raise NoWarehouse."""
    from penstock.spark.warehouse.warehouse import Warehouse

    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    return kind(warehouse, pipeline.types, replaces=pipeline.run.snapshots == "replace")
