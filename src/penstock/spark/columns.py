"""The columns of the sources, as schemas of Spark and of Arrow. Knows no server and no reader."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_LOCATION: Final[tuple[tuple[str, DataType], ...]] = (
    ("stream", StringType()),
    ("generation", LongType()),
    ("position", LongType()),
    ("seq", LongType()),
    ("offset", StringType()),
)
_RAW: Final = (*_LOCATION, ("payload", BinaryType()))
_STATE: Final = (
    *_LOCATION,
    ("kind", StringType()),
    ("type", StringType()),
    ("key", StringType()),
    ("operation", StringType()),
    ("value", StringType()),
    ("old_value", StringType()),
    ("txid", StringType()),
    ("timestamp", StringType()),
    ("control", StringType()),
    ("control_offset", StringType()),
    ("error", StringType()),
)
_STP: Final = (
    ("table", StringType()),
    ("seq", LongType()),
    ("timestamp", TimestampType()),
    ("action", StringType()),
    ("key", StringType()),
    ("record", StringType()),
    ("error", StringType()),
)
_ARROW: Final[dict[type[DataType], pa.DataType]] = {
    StringType: pa.string(),
    LongType: pa.int64(),
    BinaryType: pa.binary(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def _spark(columns: tuple[tuple[str, DataType], ...]) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in columns])


def _arrow(columns: tuple[tuple[str, DataType], ...]) -> pa.Schema:
    return pa.schema([pa.field(name, _ARROW[type(kind)]) for name, kind in columns])


RAW: Final = _spark(_RAW)
STATE: Final = _spark(_STATE)
STP: Final = _spark(_STP)
RAW_ARROW: Final = _arrow(_RAW)
STATE_ARROW: Final = _arrow(_STATE)
STP_ARROW: Final = _arrow(_STP)
