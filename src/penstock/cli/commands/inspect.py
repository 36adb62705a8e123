"""`penstock inspect`: shows the data folder of a stopped server, or one stream of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.commands.verify import as_indented_json, refusals
from penstock.cli.text import aligned, amount, size
from penstock.errors import StreamNotFound
from penstock.protocol.headers import format_expires_at, parse_stream_path
from penstock.protocol.shards import shard_of

if TYPE_CHECKING:
    from penstock.log.offline.inspect import Overview, ProducerLine, SegmentLine, StreamView

URL_PREFIX = "/v1/stream/"


@click.command("inspect")
@click.argument("data_dir", type=click.Path(path_type=Path))
@click.argument("stream", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(data_dir: Path, stream: str | None, as_json: bool) -> None:
    """Show the data folder of a stopped server, or one STREAM of it.

    The command changes nothing. STREAM is a path such as orders/eu, as in the URL of the stream.
    """
    from penstock.log.disk.files import Files
    from penstock.log.disk.worker_folders import worker_folders
    from penstock.log.offline.inspect import overview, stream_view  # late, as in every command

    with refusals():
        folders = worker_folders(Files(), data_dir)
        if stream is None:
            parts = [overview(each) for each in folders]
            if as_json:
                click.echo(as_indented_json(parts if len(parts) > 1 else parts[0]))
            else:
                click.echo("\n\n".join("\n".join(_overview(each)) for each in parts))
            return
        path = parse_stream_path(stream.removeprefix(URL_PREFIX).encode())
        view = _find(folders, path, stream_view)
    click.echo(as_indented_json(view) if as_json else "\n".join(_stream(view)))


def _find(
    folders: list[Path], path: str, stream_view: Callable[[Path, str], StreamView]
) -> StreamView:
    """Return the stream at a path, whichever worker has it."""
    missing: StreamNotFound | None = None
    # That of its path first; a fork is where its source is.
    home = shard_of(path, len(folders))
    for folder in [folders[home], *folders[:home], *folders[home + 1 :]]:
        try:
            return stream_view(folder, path)
        except StreamNotFound as error:
            missing = missing or error
    assert missing is not None
    raise click.ClickException(missing.detail)


def _overview(folder: Overview) -> Iterator[str]:
    stopped = "stopped cleanly" if folder.clean else "not stopped cleanly"
    yield from aligned(
        [
            ("folder", f"{folder.folder} (format {folder.format}, store {folder.store_id})"),
            ("state", stopped),
            (
                "streams",
                f"{amount(folder.streams, 'stream')}, {amount(folder.messages, 'message')}, "
                f"{size(folder.bytes)}",
            ),
            ("segments", f"{amount(folder.segments, 'segment')}, {size(folder.segment_bytes)}"),
            ("of them cold", _cold(folder)),
            (
                "catalog",
                f"{size(folder.catalog_bytes)}, complete up to record {folder.checkpoint_lsn:,}",
            ),
            (
                "journal",
                f"up to record {folder.last_lsn:,}, "
                f"{folder.unapplied_records:,} not in the catalog",
            ),
        ]
    )
    yield from _warning(folder.journal_problems)
    if folder.journal:
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
            for file in folder.journal
        ]
        yield from aligned(rows, right={1, 3, 4, 5})
    if folder.spare_journal_files:
        yield f"and {amount(folder.spare_journal_files, 'spare file')} for reuse"
    if folder.largest:
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
            for line in folder.largest
        ]
        yield from aligned(rows, right={1, 2, 5})


def _stream(view: StreamView) -> Iterator[str]:
    only_journal = "nothing"
    if view.journal_bytes or view.journal_messages:
        only_journal = f"{size(view.journal_bytes)}, {amount(view.journal_messages, 'message')}"
    yield from aligned(
        [
            ("stream", f"{view.path} (id {view.id})"),
            ("content type", view.content_type),
            ("created", format_expires_at(view.created_us)),
            ("expires", _expiry(view)),
            ("state", _state(view)),
            ("forked from", _fork(view)),
            ("forks", f"{view.forks:,}"),
            ("offsets", f"{view.earliest} to {view.tail}"),
            ("content", f"{amount(view.messages, 'message')}, {size(view.bytes)}"),
            ("Stream-Seq", view.stream_seq or "none"),
            ("producers", f"{view.producer_count:,}"),
            ("in the catalog", size(view.inline_bytes) if view.inline_bytes else "no bytes"),
            ("in segments", size(sum(line.bytes for line in view.segments))),
            ("only in journal", only_journal),
        ]
    )
    yield from _warning(view.journal_problems)
    if view.producers:
        yield ""
        rows = [("PRODUCER", "EPOCH", "LAST SEQ")]
        rows += [(line.id, f"{line.epoch:,}", f"{line.seq:,}") for line in view.producers]
        yield from aligned(rows, right={1, 2})
        hidden = view.producer_count - len(view.producers)
        if hidden > 0:
            yield f"and {hidden:,} more"
    if view.segments:
        yield ""
        table = [("SEGMENT", "FIRST BYTE", "SIZE", "FIRST MESSAGE", "FILE")]
        table += [
            (
                line.file,
                f"{line.first_byte:,}",
                size(line.bytes),
                f"{line.first_message:,}",
                _file(line),
            )
            for line in view.segments
        ]
        yield from aligned(table, right={1, 2, 3, 4})
    yield from _preview(view)


def _cold(folder: Overview) -> str:
    if not folder.cold_segments:
        return "none"
    amounts = f"{amount(folder.cold_segments, 'segment')}, {size(folder.cold_bytes)}"
    return f"{amounts} in {folder.cold_url}"


def _file(line: SegmentLine) -> str:
    if line.file_bytes is not None:
        return size(line.file_bytes)
    return "missing" if line.object is None else "cold"


def _preview(view: StreamView) -> Iterator[str]:
    shown = view.preview
    if shown.fault is not None:
        yield f"\nThe content cannot be shown: {shown.fault}"
    for title, lines in (("FIRST", shown.first), ("LAST", shown.last)):
        if lines:
            yield f"\n{title}"
            yield from (f"  {line}" for line in lines)


def _expiry(view: StreamView) -> str:
    if view.deadline_us is None:
        return "never"
    when = format_expires_at(view.deadline_us)
    if view.is_expired:
        when += " (expired: the server will delete it)"
    if view.ttl_s is None:
        return when
    touched = format_expires_at(view.touched_us)
    return f"{when} (TTL {amount(view.ttl_s, 'second')}, last used {touched})"


def _fork(view: StreamView) -> str:
    return "none" if view.forked_from is None else f"{view.forked_from} at {view.fork_offset}"


def _state(view: StreamView) -> str:
    if view.soft_deleted:
        return "deleted; its forks still use the data"
    if not view.closed:
        return "open"
    return f"closed by {_producer(view.closed_by)}"


def _producer(line: ProducerLine | None) -> str:
    if line is None:
        return "a request without a producer"
    return f"producer {line.id}, epoch {line.epoch}, seq {line.seq}"


def _warning(journal_problems: int) -> Iterator[str]:
    if journal_problems:
        yield (
            f"The journal has {amount(journal_problems, 'problem')}, so this output may be "
            "incomplete. Run `penstock verify`."
        )
