"""`format("durable_streams")`: streams as DataFrames, in batches or live.

spark.readStream.format("durable_streams").option("url", "http://127.0.0.1:4437")
     .option("streams", "shop/**").load()

docs/spark.md lists the options. Spark creates the source in processes of its own, only to ask for
its columns: readers and sinks are imported when they are needed.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.errors import InvalidOption
from penstock.spark.columns import RAW, STATE, STATE_WITH_HEADERS
from penstock.spark.options import SourceOptions, source_options


class DurableStreamsSource(DataSource):
    """The data source that `penstock.spark.register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        return "durable_streams"

    def schema(self) -> StructType:
        return all_columns(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.source.readers import BatchReader

        options = source_options(self.options)
        return BatchReader(options, columns_of(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        from penstock.spark.source.readers import StreamReader

        options = source_options(self.options)
        if options.has_end:
            raise InvalidOption(
                "Options endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch "
                "reads: a streaming query has no end."
            )
        return StreamReader(options, columns_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from penstock.spark.sink.datasource import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from penstock.spark.sink.datasource import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


def all_columns(options: SourceOptions) -> StructType:
    if options.mode == "raw":
        return RAW
    return STATE_WITH_HEADERS if options.include_headers else STATE


def columns_of(options: SourceOptions, schema: StructType) -> tuple[str, ...] | None:
    """The columns that a reader returns; None for all.

    Spark does not say which columns a query uses, but a schema of the user's own does.
    """
    known = all_columns(options)
    if schema == known:
        return None
    types = {field.name: field.dataType for field in known}
    for field in schema:
        if types.get(field.name) != field.dataType:
            raise InvalidOption(
                f"The schema has the column {field.name} {field.dataType.simpleString()}: it takes "
                f"some of {', '.join(f'{name} {types[name].simpleString()}' for name in types)}."
            )
    return tuple(schema.names)
