"""The chunk sizes of a query, recorded in its checkpoint: they must not change while it lives."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pyarrow import fs

from penstock.errors import InvalidOption, InvalidPipeline
from penstock.spark.warehouse.storage import filesystem

FOLDER: Final = "penstock"


def record_chunking(location: str | None, sink: str, chunking: dict[str, Any]) -> None:
    """Record the chunking with the first batch, and raise InvalidOption if it differs later.

    A repeated batch with other chunks would have numbers that the server has stored other rows
    under, and new rows would be taken for stored ones.
    """
    if location is None:
        return  # Spark does not pass the location of its default checkpoints to sinks.
    files, folder = _open_checkpoint(location)
    path = f"{folder.rstrip('/')}/{FOLDER}/sink-{sink}.json"
    recorded = _read(files, path)
    if recorded is None:
        files.create_dir(f"{folder.rstrip('/')}/{FOLDER}", recursive=True)
        with files.open_output_stream(path) as file:
            file.write(msgspec.json.encode(chunking))
        return
    changed = [name for name, value in chunking.items() if recorded.get(name) != value]
    if changed:
        name = changed[0]
        raise InvalidOption(
            f"Option {name} is {chunking[name]}, and was {recorded.get(name)} when this query "
            "began: a repeated batch would have other chunks, and rows would be lost. Set it back, "
            "or begin with a new checkpoint."
        )


def _open_checkpoint(location: str) -> tuple[fs.FileSystem, str]:
    try:
        return filesystem(location)
    except InvalidPipeline as error:
        raise InvalidOption(
            f"The checkpoint cannot be opened from Python to record chunk sizes in it. "
            f"{error.detail} Or set it with Spark's spark.sql.streaming.checkpointLocation instead "
            "of the option: then nothing is recorded, and you must not change chunk sizes."
        ) from error


def _read(files: fs.FileSystem, path: str) -> dict[str, Any] | None:
    if files.get_file_info(path).type == fs.FileType.NotFound:
        return None
    with files.open_input_stream(path) as file:
        recorded: dict[str, Any] = msgspec.json.decode(file.read())
    return recorded
