"""The description of an operation as values: parameters, body, answers and errors.

Every dialect describes its operations with these, in its `operations` module; `document` renders
them. Knows no routes and no handlers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from penstock.errors import (
    BadRequest,
    BodyTooLarge,
    ByteRateLimited,
    ClusterUnavailable,
    ColdDataUnavailable,
    DiskFull,
    HeadersTooLarge,
    HostRefused,
    InternalError,
    InvalidPath,
    JsonTooDeep,
    KeysUnavailable,
    KeyUnknown,
    LiveReadersFull,
    MessageTooLarge,
    NotAllowed,
    NotOwner,
    OriginRefused,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    RateLimited,
    RequestTimeout,
    RouteNotFound,
    ShuttingDown,
    StoreReadOnly,
    StreamNotFound,
    TooManyConnections,
    TooManyLiveReaders,
    Unauthorized,
    UnsupportedCoding,
    UnsupportedType,
    UriTooLong,
)

Schema = Mapping[str, Any]
Errors = tuple[type[PenstockError], ...]
Where = Literal["path", "query", "header"]

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"

ALWAYS: Final[Errors] = (
    BadRequest,
    Unauthorized,
    KeyUnknown,
    NotAllowed,
    OriginRefused,
    RequestTimeout,
    BodyTooLarge,
    UriTooLong,
    UnsupportedCoding,
    HostRefused,
    RateLimited,
    ByteRateLimited,
    TooManyConnections,
    HeadersTooLarge,
    InternalError,
    ClusterUnavailable,
    KeysUnavailable,
    NotOwner,
    Overloaded,
    ShuttingDown,
)
"""Every operation may end so: decided on the head of a request, or while it arrives."""
AT_PATH: Final[Errors] = (InvalidPath, RouteNotFound, StreamNotFound, ColdDataUnavailable)
"""Errors of operations with a path in their URL. To whoever may do nothing at a path, no stream is
there. What an operation has to read of a stream may be in an object store."""
CONTROLS: Final[Errors] = (UnsupportedType,)
"""Errors of POSTs to control APIs, `…/__ds/…`, which are JSON."""
WRITES: Final[Errors] = (StoreReadOnly, DiskFull)
"""Errors of operations that write to the log."""
GROWS: Final[Errors] = (JsonTooDeep, MessageTooLarge, QuotaExceeded)
"""Errors of operations that add messages to streams."""
LIVE: Final[Errors] = (TooManyLiveReaders, LiveReadersFull)
"""Errors of operations whose responses may stay open."""

NO_SECURITY: Final[tuple[str, ...]] = ()


class Parameter(NamedTuple):
    """A parameter of a request."""

    name: str
    where: Where
    description: str
    schema: Schema
    required: bool = False
    example: Any = None


class Header(NamedTuple):
    """A header of a response."""

    name: str
    description: str
    schema: Schema
    required: bool = True


class Content(NamedTuple):
    """A body of one media type; without a schema it is any bytes."""

    media: str
    schema: Schema | None = None
    example: Any = None


class Link(NamedTuple):
    """An operation that follows from an answer: its id, and where its parameters come from."""

    name: str
    operation: str
    parameters: Mapping[str, str]


class Answer(NamedTuple):
    """A response that is no error."""

    status: int
    description: str
    headers: tuple[Header, ...] = ()
    content: tuple[Content, ...] = ()
    links: tuple[Link, ...] = ()


class Body(NamedTuple):
    """The body of a request."""

    content: tuple[Content, ...]
    description: str = ""
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A method at a path template.

    `security` names the schemes of which a request needs one; None are those of the server, an
    empty tuple is none at all.
    """

    method: str
    path: str
    id: str
    summary: str
    tag: str
    answers: tuple[Answer, ...]
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    errors: Errors = ()
    security: tuple[str, ...] | None = None


class Description(NamedTuple):
    """What a dialect says of itself: its operations, and the schemas that they refer to by name."""

    operations: Sequence[Operation] = ()
    components: Mapping[str, Schema] = MappingProxyType({})


def optional(*headers: Header) -> tuple[Header, ...]:
    """Return headers that a response may have."""
    return tuple(header._replace(required=False) for header in headers)


def required(*parameters: Parameter) -> tuple[Parameter, ...]:
    """Return parameters that a request has to have."""
    return tuple(parameter._replace(required=True) for parameter in parameters)


def json(schema: Schema, example: Any = None) -> tuple[Content, ...]:
    """Return the content of a JSON document."""
    return (Content(JSON, schema, example),)
