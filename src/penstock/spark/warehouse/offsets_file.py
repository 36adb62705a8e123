"""Files for the positions of the source after a batch, where it reads so many streams that their
positions are too long to be repeated in every commit. The commit has the name of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
from pyarrow import fs

from penstock import limits
from penstock.spark.error_text import translates_storage_errors
from penstock.spark.warehouse.storage import filesystem

FOLDER: Final = "_positions"  # engines ignore folders that begin with _


class PositionFiles:
    """The files of positions beside one table."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = f"{uri}/{FOLDER}"
        self._options = options

    @translates_storage_errors
    def put(self, batch: int, positions: Mapping[str, Any] | None) -> str | None:
        """Write positions and return the name of the file; None if they are short enough for the
        commit."""
        text = msgspec.json.encode(positions)
        if positions is None or len(text) <= limits.PIPELINE_POSITIONS_BYTES:
            return None
        name = f"{batch:012d}-{uuid4()}.json"
        files, root = self._folder()
        files.create_dir(root, recursive=True)
        with files.open_output_stream(f"{root}/{name}") as file:
            file.write(text)
        return name

    @translates_storage_errors
    def get(self, name: str) -> dict[str, Any] | None:
        """The positions of a file, or None if somebody has removed it."""
        files, root = self._folder()
        try:
            with files.open_input_stream(f"{root}/{name}") as file:
                return msgspec.json.decode(file.read(), type=dict[str, Any])
        except FileNotFoundError:
            return None

    @translates_storage_errors
    def remove_old(self, batch: int) -> None:
        """Remove old files, every so many batches."""
        if batch % limits.PIPELINE_POSITIONS_KEPT:
            return
        oldest = batch - limits.PIPELINE_POSITIONS_KEPT
        files, root = self._folder()
        for entry in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = entry.base_name.partition("-")[0]
            if number.isdigit() and int(number) < oldest:
                files.delete_file(entry.path)

    def _folder(self) -> tuple[fs.FileSystem, str]:
        return filesystem(self.uri, self._options)
