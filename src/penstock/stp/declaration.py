"""The declaration of tables: which type of a state stream is shown as rows, how, and under which
schema id.

Pure rules: the document that clients send and the form that is stored with the stream. The name of
a table is what follows the path of its stream: "" is the table at the same path, "user" the one at
`<stream>/user`. Knows neither HTTP nor the log.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec

from penstock import limits
from penstock.errors import BodyTooLarge, InvalidTable
from penstock.protocol.json_mode import frame
from penstock.stp.content_type import format_content_type, is_schema_id

META: Final = "tables"
"""The meta value with the tables of a stream."""

Codec = Literal["text", "json"]

_CODECS: Final = ("text", "json")
_MEMBERS: Final = frozenset({"schema", "version", "type", "record", "escape", "stream"})
# Members that GET adds to a document. A PUT may have them, and they mean nothing there.
_READ_ONLY: Final = frozenset({"table", "ordinal"})


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of one table, with its defaults."""

    schema: str
    version: int
    type: str
    record: Codec = "text"
    escape: bool = False

    @property
    def content_type(self) -> str:
        return format_content_type(self.schema, self.version, escape=self.escape)


Tables = dict[str, Table]
"""The tables of one stream, by name."""


def encode(tables: Tables) -> bytes:
    return msgspec.json.encode(tables)


def decode(value: bytes) -> Tables:
    return msgspec.json.decode(value, type=Tables)


def parse_document(body: bytes) -> tuple[Table, str | None]:
    """Return the table that a client declares, and the stream that it names."""
    if len(body) > limits.SCHEMA_BYTES_MAX:
        raise BodyTooLarge(f"A declaration has at most {limits.SCHEMA_BYTES_MAX} bytes.")
    frame(body, allow_empty=True)  # Raises if the body is not JSON.
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidTable(f"The document cannot be used: {error}.") from None
    if not isinstance(document, dict):
        raise InvalidTable('The document is an object: {"schema": "endpoint_manifest"}.')
    for name in document:
        if name not in _MEMBERS | _READ_ONLY:
            members = ", ".join(sorted(_MEMBERS))
            raise InvalidTable(f"{name[:64]!r} is unknown; use {members}.", field=name[:64])
    schema = document.get("schema")
    if not isinstance(schema, str) or not is_schema_id(schema):
        raise InvalidTable(
            f"schema is the id of the schema: at most {limits.TABLE_SCHEMA_BYTES_MAX} letters, "
            "digits, `_`, and inside it `.` and `-`.",
            field="schema",
        )
    stream = document.get("stream")
    if stream is not None and not (isinstance(stream, str) and stream):
        raise InvalidTable("stream is the path of a stream.", field="stream")
    return _table(schema, document), stream


def _table(schema: str, document: dict[str, Any]) -> Table:
    version = document.get("version", 1)
    if type(version) is not int or not 0 <= version <= limits.TABLE_VERSION_MAX:
        raise InvalidTable(
            f"version is a whole number from 0 to {limits.TABLE_VERSION_MAX}.", field="version"
        )
    entity = document.get("type", schema)
    if not isinstance(entity, str) or not entity:
        raise InvalidTable("type is the entity type of the events: a text.", field="type")
    record = document.get("record", "text")
    if record not in _CODECS:
        raise InvalidTable("record is text or json.", field="record")
    escape = document.get("escape", False)
    if not isinstance(escape, bool):
        raise InvalidTable("escape is true or false.", field="escape")
    return Table(
        schema=schema,
        version=version,
        type=entity,
        record=cast("Codec", record),
        escape=escape,
    )


def table_location(path: str, stream: str | None) -> tuple[str, str]:
    """Return the stream and the name of the table at `path`, declared for `stream`."""
    if stream is None or stream == path:
        return path, ""
    name = path.removeprefix(stream + "/")
    if name == path or "/" in name:
        raise InvalidTable(
            f"A table of the stream {stream!r} is at /v1/table/{stream} or at "
            f"/v1/table/{stream}/<name>, not at {path!r}.",
            field="stream",
        )
    return stream, name


def table_locations(path: str) -> list[tuple[str, str]]:
    """Return every (stream, name) that the table at `path` can be, the likeliest first."""
    parent, slash, name = path.rpartition("/")
    return [(path, ""), (parent, name)] if slash else [(path, "")]


def differs(existing: Table, declared: Table) -> str | None:
    """Return the first member in which two declarations differ."""
    for name in Table.__struct_fields__:
        if getattr(existing, name) != getattr(declared, name):
            return name
    return None


def allows_only_strings(schema: Any) -> bool:
    """Whether a JSON Schema allows strings only."""
    if not isinstance(schema, dict):
        return False
    if schema.get("type") in ("string", ["string"]):
        return True
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return isinstance(allowed, list) and all(isinstance(value, str) for value in allowed)
