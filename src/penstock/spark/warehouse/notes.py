"""Notes of a pipeline beside its tables: small JSON documents in `_penstock/`, each replaced as a
whole. Knows nothing of what they say.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from uuid import uuid4

import msgspec
from pyarrow import fs

from penstock.errors import WarehouseBroken
from penstock.spark.error_text import translates_storage_errors
from penstock.spark.warehouse.storage import filesystem

FOLDER: Final = "_penstock"
T = TypeVar("T")


class Note:
    """One document, or none."""

    def __init__(self, warehouse: str, name: str, options: dict[str, str]) -> None:
        self.uri = f"{warehouse}/{FOLDER}/{name}"
        self._files, self._path = filesystem(self.uri, options)

    @translates_storage_errors
    def read(self, kind: type[T]) -> T | None:
        """The document, or None if there is none."""
        if self._files.get_file_info(self._path).type == fs.FileType.NotFound:
            return None
        with self._files.open_input_stream(self._path) as file:
            text = file.read()
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise WarehouseBroken(
                f"{self.uri} is damaged: {error}. Delete it; the next command writes it again."
            ) from None

    @translates_storage_errors
    def write(self, document: Any) -> None:
        """Replace the document; a reader sees the old one or the new one."""
        self._files.create_dir(self._path.rpartition("/")[0], recursive=True)
        if not isinstance(self._files, fs.LocalFileSystem):  # a store replaces objects as a whole
            self._put(self._path, document)
            return
        draft = f"{self._path}.{uuid4().hex}"
        self._put(draft, document)
        self._files.move(draft, self._path)

    def _put(self, path: str, document: Any) -> None:
        with self._files.open_output_stream(path) as file:
            file.write(msgspec.json.encode(document))

    @translates_storage_errors
    def remove(self) -> None:
        if self._files.get_file_info(self._path).type != fs.FileType.NotFound:
            self._files.delete_file(self._path)
