"""`penstock inspect`: show a data folder that no server is using, or one stream of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.commands.verify import as_indented_json, refusals
from penstock.cli.text import aligned, amount, size
from penstock.errors import StreamNotFound
from penstock.protocol.headers import format_expires_at, parse_stream_path

if TYPE_CHECKING:
    from penstock.log.offline.inspect import Overview, ProducerLine, StreamView

URL_PREFIX = "/v1/stream/"


@click.command("inspect")
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.argument("stream", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(data_dir: Path, stream: str | None, as_json: bool) -> None:
    """Show a data folder that no server is using, or one STREAM of it.

    Changes nothing. STREAM is a path such as orders/eu, as it stands in the stream's URL.
    """
    from penstock.log.offline.inspect import overview, stream_view  # late, as in every command

    with refusals():
        if stream is None:
            folder = overview(data_dir)
            click.echo(as_indented_json(folder) if as_json else "\n".join(_overview(folder)))
            return
        path = parse_stream_path(stream.removeprefix(URL_PREFIX).encode())
        try:
            found = stream_view(data_dir, path)
        except StreamNotFound as error:
            raise click.ClickException(error.detail) from None
    click.echo(as_indented_json(found) if as_json else "\n".join(_stream(found)))


def _overview(found: Overview) -> Iterator[str]:
    stopped = "stopped cleanly" if found.clean else "not stopped cleanly"
    yield from aligned(
        [
            ("folder", f"{found.folder} (format {found.format}, store {found.store_id})"),
            ("state", stopped),
            (
                "streams",
                f"{amount(found.streams, 'stream')}, {amount(found.messages, 'message')}, "
                f"{size(found.bytes)}",
            ),
            ("segments", f"{amount(found.segments, 'file')}, {size(found.segment_bytes)}"),
            ("catalog", f"{size(found.catalog_bytes)}, true up to record {found.checkpoint_lsn:,}"),
            (
                "journal",
                f"up to record {found.last_lsn:,}, {found.unapplied_records:,} not in the catalog",
            ),
        ]
    )
    yield from _warning(found.journal_problems)
    if found.journal:
        yield ""
        rows = [("JOURNAL FILE", "SIZE", "MODE", "FIRST RECORD", "LAST RECORD", "BATCHES")]
        rows += [
            (
                file.name,
                size(file.bytes),
                file.durability,
                f"{file.first_lsn:,}",
                f"{file.last_lsn:,}" if file.batches else "none",
                f"{file.batches:,}",
            )
            for file in found.journal
        ]
        yield from aligned(rows, right={1, 3, 4, 5})
    if found.spare_journal_files:
        yield f"and {amount(found.spare_journal_files, 'spare file')} to be used again"
    if found.largest:
        yield ""
        rows = [("LARGEST STREAMS", "SIZE", "MESSAGES", "CONTENT TYPE", "STATE", "ID")]
        rows += [
            (
                line.path,
                size(line.bytes),
                f"{line.messages:,}",
                line.content_type,
                "closed" if line.closed else "open",
                str(line.id),
            )
            for line in found.largest
        ]
        yield from aligned(rows, right={1, 2, 5})


def _stream(found: StreamView) -> Iterator[str]:
    only_journal = "nothing"
    if found.journal_bytes or found.journal_messages:
        only_journal = f"{size(found.journal_bytes)}, {amount(found.journal_messages, 'message')}"
    yield from aligned(
        [
            ("stream", f"{found.path} (id {found.id})"),
            ("content type", found.content_type),
            ("created", format_expires_at(found.created_us)),
            ("expires", _expiry(found)),
            ("state", _state(found)),
            ("forked from", _fork(found)),
            ("forks", f"{found.forks:,}"),
            ("offsets", f"{found.earliest} to {found.tail}"),
            ("content", f"{amount(found.messages, 'message')}, {size(found.bytes)}"),
            ("Stream-Seq", found.stream_seq or "none"),
            ("producers", f"{found.producer_count:,}"),
            ("in the catalog", size(found.inline_bytes) if found.inline_bytes else "no bytes"),
            ("in segments", size(sum(line.bytes for line in found.segments))),
            ("only in journal", only_journal),
        ]
    )
    yield from _warning(found.journal_problems)
    if found.producers:
        yield ""
        rows = [("PRODUCER", "EPOCH", "LAST SEQ")]
        rows += [(line.id, f"{line.epoch:,}", f"{line.seq:,}") for line in found.producers]
        yield from aligned(rows, right={1, 2})
        hidden = found.producer_count - len(found.producers)
        if hidden > 0:
            yield f"and {hidden:,} more"
    if found.segments:
        yield ""
        table = [("SEGMENT", "FIRST BYTE", "SIZE", "FIRST MESSAGE", "FILE")]
        table += [
            (
                line.file,
                f"{line.first_byte:,}",
                size(line.bytes),
                f"{line.first_message:,}",
                "missing" if line.file_bytes is None else size(line.file_bytes),
            )
            for line in found.segments
        ]
        yield from aligned(table, right={1, 2, 3, 4})
    yield from _preview(found)


def _preview(found: StreamView) -> Iterator[str]:
    shown = found.preview
    if shown.fault is not None:
        yield f"\nits content cannot be shown: {shown.fault}"
    for title, lines in (("FIRST", shown.first), ("LAST", shown.last)):
        if lines:
            yield f"\n{title}"
            yield from (f"  {line}" for line in lines)


def _expiry(found: StreamView) -> str:
    if found.deadline_us is None:
        return "never"
    when = format_expires_at(found.deadline_us)
    if found.is_expired:
        when += ", which has passed: the server deletes it"
    if found.ttl_s is None:
        return when
    touched = format_expires_at(found.touched_us)
    return f"{when} (TTL {amount(found.ttl_s, 'second')}, last used {touched})"


def _fork(found: StreamView) -> str:
    return "nothing" if found.forked_from is None else f"{found.forked_from} at {found.fork_offset}"


def _state(found: StreamView) -> str:
    if found.soft_deleted:
        return "deleted, kept for its forks"
    if not found.closed:
        return "open"
    return f"closed by {_producer(found.closed_by)}"


def _producer(line: ProducerLine | None) -> str:
    if line is None:
        return "a request without a producer"
    return f"producer {line.id}, epoch {line.epoch}, seq {line.seq}"


def _warning(journal_problems: int) -> Iterator[str]:
    if journal_problems:
        yield (
            f"the journal has {amount(journal_problems, 'problem')}, so what is shown may be "
            "incomplete: run `penstock verify`"
        )
