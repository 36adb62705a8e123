"""The columns of the sources, as schemas of Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.spark.columns import RAW, STATE, STP

_ARROW: Final[dict[type[DataType], pa.DataType]] = {
    StringType: pa.string(),
    LongType: pa.int64(),
    BinaryType: pa.binary(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}


def _arrow(schema: StructType) -> pa.Schema:
    return pa.schema([pa.field(each.name, _ARROW[type(each.dataType)]) for each in schema])


RAW_ARROW: Final = _arrow(RAW)
STATE_ARROW: Final = _arrow(STATE)
STP_ARROW: Final = _arrow(STP)
