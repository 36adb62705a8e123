"""Prints the tables and the status of a pipeline. Does not know how they are read."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.system import columns
from penstock.cli.terminal import printable, styled
from penstock.cli.text import aligned, amount, size

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.pipeline.status import Details, Status

_CELL_MAX = 60
_WIDTH_MIN = 40


def print_table(rows: pa.Table, output: str) -> None:
    """Print rows as a table for a person, or as JSON or CSV for a program."""
    if output == "json":
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            click.echo(json.dumps(row, ensure_ascii=False, default=str))
        return
    if output == "csv":
        _print_csv(rows)
        return
    if not rows.column_names:
        return
    cells = [[_cell(value) for value in row.values()] for row in rows.to_pylist()]
    first, *rest = aligned([[name.upper() for name in rows.column_names], *cells])
    width = max(columns(), _WIDTH_MIN) if sys.stdout.isatty() else None
    click.echo(styled(first[:width], bold=True))
    for line in rest:
        click.echo(line[:width])


def _print_csv(rows: pa.Table) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    writer.writerow(rows.column_names)
    for row in rows.to_pylist(maps_as_pydicts="strict"):
        writer.writerow(["" if value is None else _text(value) for value in row.values()])


def _text(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = printable(" ".join(_text(value).split()))
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"


def print_status(status: Status, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(status))
        return
    behind = (
        amount(status.lag, "message") if status.lag is not None else f"unknown: {status.trouble}"
    )
    lines = [
        ("warehouse", status.warehouse),
        ("batch", f"{status.batch:,}"),
        ("events", f"{status.events:,} of {amount(status.streams, 'stream')}"),
        ("dead letters", f"{status.dead_letters:,}"),
        ("lag", behind),
        ("files", f"{status.files:,}"),
    ]
    for line in aligned(lines):
        click.echo(printable(line))
    if status.types:
        click.echo()
        head = ("TYPE", "CHANGES", "ROWS", "FOLDED TO", "")
        rows = [
            (
                each.name,
                f"{each.changes:,}",
                f"{each.rows:,}",
                f"{each.folded:,}",
                "typed" if each.declared else "JSON",
            )
            for each in status.types
        ]
        for line in aligned([head, *rows], right={1, 2, 3}):
            click.echo(printable(line))
    if status.published:
        click.echo()
        results = [
            (name, f"{count:,}", f"{status.unkeyed[name]:,}")
            for name, count in status.published.items()
        ]
        titles = ("PUBLISHED", "KEYS", "ROWS WITHOUT KEY")
        for line in aligned([titles, *results], right={1, 2}):
            click.echo(printable(line))
    _print_rules(status)
    if status.details is not None:
        _print_details(status.details)


def _print_rules(status: Status) -> None:
    """Print expectations, results that are not up to date, and drift."""
    if status.expectations:
        click.echo()
        expectations = [
            (
                each.name,
                f"{each.violated:,}",
                "" if each.last_batch is None else f"{each.last_batch:,}",
                each.action,
                each.sql,
            )
            for each in status.expectations
        ]
        heads = ("EXPECTATION", "VIOLATED", "LAST BATCH", "ACTION", "CONDITION")
        for line in aligned([heads, *expectations], right={1, 2}):
            click.echo(printable(line))
    for name, reason in status.failing.items():
        click.echo(printable(f"\npublish.{name} is not up to date: {reason}"))
    for name, change in status.drift.items():
        click.echo(printable(f"\ntypes.{name}: the server's declaration has changed: {change}"))


def _print_details(details: Details) -> None:
    """Print runs, streams and the reasons of dead letters."""
    click.echo(f"\n{'running' if details.is_running else 'not running'}")
    runs = [
        (
            f"{each.run:,}",
            f"{each.started_at:%Y-%m-%d %H:%M:%S}",
            f"{each.committed_at:%Y-%m-%d %H:%M:%S}",
            f"{each.first_batch:,}-{each.last_batch:,}",
            f"{each.events:,}",
        )
        for each in details.runs
    ]
    streams = [
        (
            name,
            "?" if each.lag_messages is None else f"{each.lag_messages:,}",
            "?" if each.lag_bytes is None else size(each.lag_bytes),
            "?" if each.messages_per_s is None else f"{each.messages_per_s:,.1f}/s",
            "?" if each.bytes_per_s is None else f"{size(round(each.bytes_per_s))}/s",
        )
        for name, each in details.streams.items()
    ]
    reasons = [(f"{count:,}", reason) for reason, count in details.reasons.items()]
    for head, rows, right in (
        (("RUN", "STARTED (UTC)", "LAST COMMIT (UTC)", "BATCHES", "EVENTS"), runs, {0, 4}),
        (("STREAM", "BEHIND", "BYTES BEHIND", "READ", "BYTES READ"), streams, {1, 2, 3, 4}),
        (("DEAD LETTERS", "REASON"), reasons, {0}),
    ):
        if rows:
            click.echo()
            for line in aligned([head, *rows], right=right):
                click.echo(printable(line))
