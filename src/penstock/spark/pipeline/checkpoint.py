"""Spark's checkpoint of a pipeline's query, as far as it has to match the warehouse: the id of the
query, and the positions of each batch. Only Spark writes it, and only the driver needs it: a
pipeline's query keeps no state there that tasks would read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyarrow import fs

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import InvalidPipeline, WarehouseMismatch
from penstock.spark.warehouse.events import EventsTable
from penstock.spark.warehouse.storage import filesystem, move_folder, parse_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ADVICE: Final = (
    "Nothing was changed. With --resume-from-warehouse the pipeline continues after the last batch "
    "of the warehouse, with a new checkpoint."
)
_OFFSET_LOG_VERSION: Final = "v1"
# The class that writes the files of checkpoints. Spark's default starts several programs for each
# file (`readlink`, `chmod`), since Java lacks these calls.
_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


class Checkpoint:
    """The folder in which Spark stores the progress of a query."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location  # as the user wrote it: Hadoop needs s3a://
        self._files, self._root = filesystem(location, options)

    def check_reach(self, spark: SparkSession) -> None:
        """Raise an error if Spark cannot write the checkpoint."""
        if parse_location(self.location).scheme is None:
            try:
                self._files.create_dir(self._root, recursive=True)
            except OSError as error:
                raise InvalidPipeline(
                    f"The checkpoint {self._root} cannot be written: {error.strerror or error}. "
                    "Set warehouse.checkpoint to a folder that the driver can write."
                ) from None
            return
        scheme = self.location.partition(":")[0]
        inner: Any = spark
        try:
            settings = inner.sparkContext._jsc.hadoopConfiguration()
            inner._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
        except Exception as error:  # of Java, and of several kinds
            raise InvalidPipeline(
                f"This Spark cannot write the checkpoint {self.location}: it has no file system "
                f"for {scheme}://. Leave warehouse.checkpoint out, or set it to a folder of the "
                "driver; or add Hadoop's package for it to [pipeline.spark]."
            ) from error

    @contextmanager
    def written_without_programs(self, spark: SparkSession) -> Iterator[None]:
        """A context in which queries that start write checkpoints without starting programs, if
        this one is a local folder: there a rename replaces a file atomically either way."""
        inner: Any = spark
        is_local = parse_location(self.location).scheme is None
        is_loadable = inner._jvm.org.apache.spark.util.Utils.classIsLoadable(_PLAIN_MANAGER)
        if not is_local or not is_loadable or spark.conf.get(_MANAGER, None) is not None:
            yield
            return
        spark.conf.set(_MANAGER, _PLAIN_MANAGER)
        try:
            yield
        finally:
            with suppress(Exception):  # Java may have ended
                spark.conf.unset(_MANAGER)

    @property
    def query(self) -> str | None:
        """The id of the query; None before it has begun."""
        text = self._read("metadata")
        return None if text is None else str(msgspec.json.decode(text)["id"])

    def positions(self, batch: int) -> dict[str, Any] | None:
        """The positions of the source at the end of a batch, or None if the batch was not
        planned."""
        name = f"offsets/{batch}"
        text = self._read(name)
        if text is None:
            return None
        try:
            return parse_offset_log(text)
        except ValueError as error:
            raise WarehouseMismatch(
                f"The file {name} of the checkpoint {self.location} is not one that Spark 4.2 "
                f"writes for a pipeline: {error}. Run the pipeline with the version of PySpark "
                f"that penstock-streams[spark] requires. If the file is damaged: {_ADVICE}"
            ) from None

    @property
    def done(self) -> int | None:
        """The last batch that Spark has finished."""
        selector = fs.FileSelector(f"{self._root}/commits", allow_not_found=True)
        names = [entry.base_name for entry in self._files.get_file_info(selector)]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def _read(self, name: str) -> str | None:
        path = f"{self._root}/{name}"
        if self._files.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with self._files.open_input_stream(path) as file:
            return bytes(file.read()).decode()

    def put_aside(self) -> None:
        """Rename the checkpoint, so that a new one begins in its place."""
        selector = fs.FileSelector(self._root, allow_not_found=True)
        if self._files.get_file_info(selector):
            move_folder(self._files, self._root, f"{self._root}-{SYSTEM_CLOCK.now_us()}")


def parse_offset_log(text: str) -> dict[str, Any]:
    """The positions in a file of Spark's offset log, of a query with one source.

    The file has a line with the version of its format, one with Spark's own metadata, and one for
    each source with the JSON that the source gave as its offset. A ValueError for anything else.
    """
    version, *lines = text.strip().split("\n")
    if version != _OFFSET_LOG_VERSION:
        raise ValueError(f"its version is {version[:20]!r} instead of {_OFFSET_LOG_VERSION!r}")
    if len(lines) != 2:  # the metadata and the source
        raise ValueError(f"it has {max(len(lines) - 1, 0)} sources instead of 1")
    try:
        return msgspec.json.decode(lines[1], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"the offset of its source is no JSON object ({error})") from None


def check_match(checkpoint: Checkpoint, events: EventsTable) -> None:
    """Raise an error unless checkpoint and warehouse are at the same batch of the same query."""
    query, done = checkpoint.query, checkpoint.done
    record = events.record
    batch = record.query_batch
    if batch is None:
        if done is not None:
            raise _mismatch(
                "the checkpoint has batches that the warehouse lacks: it is empty, or was replaced",
                checkpoint,
            )
        return
    if query is None:
        raise _mismatch("the warehouse has events, and there is no checkpoint", checkpoint)
    if query != record.query:
        raise _mismatch("the checkpoint is of another query than the warehouse", checkpoint)
    done = -1 if done is None else done
    if batch < done:
        raise _mismatch(
            f"the warehouse ends with batch {batch} and the checkpoint with {done}: the warehouse "
            "is older",
            checkpoint,
        )
    planned = checkpoint.positions(batch)
    if batch > done + 1 or planned is None:
        raise _mismatch(
            f"the warehouse ends with batch {batch} and the checkpoint with {done}: the checkpoint "
            "is older",
            checkpoint,
        )
    committed = events.positions()
    if committed is not None and planned != committed:
        raise _mismatch(f"they have other positions for batch {batch}", checkpoint)


def _mismatch(what: str, checkpoint: Checkpoint) -> WarehouseMismatch:
    return WarehouseMismatch(
        f"Checkpoint {checkpoint.location} and warehouse do not match: {what}. {_ADVICE}"
    )
