"""Parameters and headers that operations of several dialects share."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.http.openapi.model import Header, Parameter, Schema
from penstock.protocol.offsets import BEGINNING

_DIGITS: Final = f"[0-9]{{{limits.OFFSET_DIGITS}}}"
TOKEN: Final[Schema] = {"type": "string", "pattern": f"^{_DIGITS}_{_DIGITS}$"}
"""An offset as the server makes it."""
OFFSET_TEXT: Final[Schema] = {"type": "string", "pattern": f"^(-1|now|{_DIGITS}_{_DIGITS})$"}
EXAMPLE_OFFSET: Final = "0000000000000007_0000000000000042"
COUNT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 10**15}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": limits.INTEGER_MAX}
TEXT: Final[Schema] = {"type": "string"}
TRUE: Final[Schema] = {"const": "true"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
# Characters that need no escape; a segment is not empty, and not `.` or `..`.
_SEGMENT: Final = "[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
PATH_TEXT: Final[Schema] = {
    "type": "string",
    "pattern": f"^{_SEGMENT}(/{_SEGMENT})*$",
    "maxLength": limits.PATH_BYTES_MAX,
}

# -- In the path

STREAM: Final = Parameter(
    "path",
    "path",
    "The path of a stream. It may have several segments, whose slashes are sent as they are; other "
    "characters are percent-encoded. `__ds` is reserved.",
    PATH_TEXT,
    required=True,
    example="chat/42",
)
TABLE: Final = STREAM._replace(
    description="The path of a table: that of its stream, or one segment more."
)

# -- In the query

OFFSET: Final = Parameter(
    "offset",
    "query",
    "Where to begin: a `Stream-Next-Offset` as it was returned, `-1` for the start, `now` for the "
    "tail.",
    OFFSET_TEXT,
    example="-1",
)
PREFIX: Final = Parameter("prefix", "query", "Only names that begin with this.", TEXT)
AFTER: Final = Parameter("after", "query", "The `next` of the page before.", TEXT)
LIMIT: Final = Parameter("limit", "query", "The most entries of a page.", COUNT, example=100)

# -- Headers of requests

IF_NONE_MATCH: Final = Parameter(
    "If-None-Match", "header", "An `ETag`: 304 if that is what there still is.", TEXT
)
IF_MATCH: Final = Parameter(
    "If-Match", "header", "The offset at which the tail has to be, or `*`.", TEXT, example=BEGINNING
)
STREAM_SEQ: Final = Parameter(
    "Stream-Seq",
    "header",
    "Text that is greater, byte by byte, than that of every append before.",
    {"type": "string", "pattern": "^[!-~]+$", "maxLength": limits.STREAM_SEQ_BYTES_MAX},
)
PRODUCER: Final = (
    Parameter(
        "Producer-Id",
        "header",
        "The name of an idempotent producer; its three headers come together.",
        {"type": "string", "pattern": "^[!-~]+$", "maxLength": limits.PRODUCER_ID_BYTES_MAX},
        example="worker-1",
    ),
    Parameter(
        "Producer-Epoch",
        "header",
        "A number that grows when the producer restarts; a lower one is fenced.",
        WHOLE,
        example=0,
    ),
    Parameter(
        "Producer-Seq",
        "header",
        "The number of this request in its epoch, from 0; a repeat is not appended again.",
        WHOLE,
        example=0,
    ),
)

# -- Headers of responses

ETAG: Final = Header("ETag", "The tag of the content.", TEXT)
CACHE_CONTROL: Final = Header("Cache-Control", "How long a cache may store this.", TEXT)
NEXT_OFFSET: Final = Header("Stream-Next-Offset", "Where to read on.", TOKEN)
FILTERED: Final = Header("Stream-Filter", "The filters that were applied: `type`, `key`.", TEXT)
START_OFFSET: Final = Header("Stream-Start-Offset", "What `at` or `tail` stands for.", TOKEN)
EARLIEST_OFFSET: Final = Header("Stream-Earliest-Offset", "The first retained offset.", TOKEN)
UP_TO_DATE: Final = Header("Stream-Up-To-Date", "The response ends at the tail.", TRUE)
CLOSED: Final = Header("Stream-Closed", "The stream takes no more appends.", TRUE)
SUCCESSOR: Final = Header("Stream-Successor", "The stream in which this one goes on.", TEXT)
CURSOR: Final = Header(
    "Stream-Cursor", "To be sent as `cursor` with the next request.", {"pattern": "^[0-9]+$"}
)
LOCATION: Final = Header("Location", "The URL of what was created.", TEXT)
PRODUCER_EPOCH: Final = Header("Producer-Epoch", "The producer's epoch.", WHOLE)
PRODUCER_SEQ: Final = Header("Producer-Seq", "The highest accepted sequence number.", WHOLE)
VARY: Final = Header("Vary", "Headers of the request on which the response depends.", TEXT)
RETRY_AFTER: Final = Header("Retry-After", "Seconds to wait.", WHOLE)
AUTHENTICATE: Final = Header("WWW-Authenticate", "How to authenticate.", TEXT)
ALLOW: Final = Header("Allow", "The methods that are served here.", TEXT)
