"""What must not change while a query lives, kept in its checkpoint: how rows are cut."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from pyarrow import fs

from penstock.errors import InvalidOption, InvalidPipeline
from penstock.spark.warehouse.storage import filesystem

FOLDER: Final = "penstock"


def keep_chunking(location: str | None, sink: str, chosen: dict[str, Any]) -> None:
    """Record the choice with the first batch; refuse another one later.

    A repeated batch that is cut otherwise would have new rows taken for ones that are stored.
    """
    if location is None:
        return  # Spark's own default place for checkpoints is not told to sinks
    files, folder = _opened(location)
    path = f"{folder.rstrip('/')}/{FOLDER}/sink-{sink}.json"
    known = _read(files, path)
    if known is None:
        files.create_dir(f"{folder.rstrip('/')}/{FOLDER}", recursive=True)
        with files.open_output_stream(path) as file:
            file.write(msgspec.json.encode(chosen))
        return
    changed = [name for name, value in chosen.items() if known.get(name) != value]
    if changed:
        name = changed[0]
        raise InvalidOption(
            f"Option {name} is {chosen[name]}, and was {known.get(name)} when this query began: a "
            "batch that is run again would be cut otherwise, and rows be lost. Set it back, or "
            "begin with a new checkpoint."
        )


def _opened(location: str) -> tuple[fs.FileSystem, str]:
    try:
        return filesystem(location)
    except InvalidPipeline as error:
        raise InvalidOption(
            f"The checkpoint cannot be opened from Python to keep the size of chunks in it. "
            f"{error.detail} Or name it by Spark's setting spark.sql.streaming.checkpointLocation "
            "instead of the option: then nothing is kept, and chunk sizes must stay as they are."
        ) from error


def _read(files: fs.FileSystem, path: str) -> dict[str, Any] | None:
    if files.get_file_info(path).type == fs.FileType.NotFound:
        return None
    with files.open_input_stream(path) as file:
        found: dict[str, Any] = msgspec.json.decode(file.read())
    return found
