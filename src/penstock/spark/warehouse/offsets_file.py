"""Where the source stands after a batch, if it reads so many streams that this is too long to be
repeated in every commit: then it is a file beside the table, and the commit has its name.
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

FOLDER: Final = "_positions"  # engines pass over names that begin so


class KeptPositions:
    """The files of a table."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        self.uri = f"{uri}/{FOLDER}"
        self._options = options

    @translates_storage_errors
    def put(self, batch: int, positions: Mapping[str, Any] | None) -> str | None:
        """The name that positions are kept by, or None if they are short enough for the commit."""
        text = msgspec.json.encode(positions)
        if positions is None or len(text) <= limits.PIPELINE_POSITIONS_BYTES:
            return None
        name = f"{batch:012d}-{uuid4()}.json"
        files, root = self._place()
        files.create_dir(root, recursive=True)
        with files.open_output_stream(f"{root}/{name}") as file:
            file.write(text)
        return name

    @translates_storage_errors
    def get(self, name: str) -> dict[str, Any] | None:
        """Positions by their name, or None if somebody has removed them."""
        files, root = self._place()
        try:
            with files.open_input_stream(f"{root}/{name}") as file:
                found: dict[str, Any] = msgspec.json.decode(file.read())
                return found
        except FileNotFoundError:
            return None

    @translates_storage_errors
    def forget(self, batch: int) -> None:
        """Remove what is older than the last ones up to a batch; now and then is enough."""
        if batch % limits.PIPELINE_POSITIONS_KEPT:
            return
        oldest = batch - limits.PIPELINE_POSITIONS_KEPT
        files, root = self._place()
        for each in files.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            number = each.base_name.partition("-")[0]
            if number.isdigit() and int(number) < oldest:
                files.delete_file(each.path)

    def _place(self) -> tuple[fs.FileSystem, str]:
        return filesystem(self.uri, self._options)
