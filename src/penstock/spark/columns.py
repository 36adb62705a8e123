"""The columns of the sources, as schemas of Spark. Knows no server, no reader and no Arrow, which
takes a while to load."""

from __future__ import annotations

from typing import Final

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


def _spark(columns: tuple[tuple[str, DataType], ...]) -> StructType:
    return StructType([StructField(name, kind, True) for name, kind in columns])


RAW: Final = _spark(_RAW)
STATE: Final = _spark(_STATE)
STATE_WITH_HEADERS: Final = _spark((*_STATE, ("headers", StringType())))
STP: Final = _spark(_STP)
