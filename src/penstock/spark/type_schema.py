"""What the values of a declared type have to look like, and how they become typed columns.

One strict reader serves both: a value that passes the check has its columns, one that does not is
a dead letter. No Spark here, so that every engine gets the same columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import InvalidPipeline
from penstock.spark.ddl import parse_ddl
from penstock.state.validators import JsonSchema, reason_of

# Columns with this in front are the pipeline's own, all others are the user's.
OWN: Final = "_"
_JSON_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_JSON_TEXT: Final = {b"penstock": b"json"}  # a column that holds JSON of any shape
_ERRORS: Final = (msgspec.DecodeError, RecursionError, pa.ArrowException, OverflowError)


class TypeSchema:
    """The declared columns of one type of entity."""

    def __init__(self, fields: Sequence[pa.Field], given: str | Mapping[str, Any]) -> None:
        document = None if isinstance(given, str) else given
        self.given = given
        for field in fields:
            if field.name.startswith(OWN):
                raise InvalidPipeline(
                    f"A column is called {field.name}: names that begin with {OWN} are kept for "
                    "the pipeline's own columns."
                )
        self.fields = list(fields)
        spelled = [(each.name, str(each.type), each.nullable) for each in self.fields]
        told = repr((spelled, None if document is None else msgspec.json.encode(document)))
        self.version = hashlib.sha256(told.encode()).hexdigest()[:12]
        self._row = _struct("Value", self.fields, strict=document is None)
        self._one = msgspec.json.Decoder(self._row)
        # mypy knows no types that are made at run time, here and below.
        self._many = msgspec.json.Decoder(list[self._row])  # type: ignore[name-defined]
        self._json_schema = None if document is None else JsonSchema(document)
        self._narrow = any(_is_narrow(each.type) for each in self.fields)

    @property
    def nullable(self) -> list[pa.Field]:
        """The columns as a table has them: a deleted or an old row may lack any of them."""
        return [pa.field(each.name, _bare(each.type)) for each in self.fields]

    def __reduce__(self) -> tuple[Any, ...]:
        return type_schema, (self.given,)  # made anew where it is sent to

    def problems(self, values: Sequence[str]) -> list[str | None]:
        """For each JSON value why it is refused, or None."""
        if self._json_schema is not None:
            return [self._problem(value) for value in values]
        try:
            rows = self._many.decode(f"[{','.join(values)}]")
            if len(rows) == len(values):  # a value may not look like two
                if self._narrow:
                    self._arrays(rows)
                return [None] * len(values)
        except _ERRORS:
            pass
        return [self._problem(value) for value in values]

    def _problem(self, value: str) -> str | None:
        try:
            if self._json_schema is not None:
                self._json_schema.load(value.encode())
            self._arrays([self._one.decode(value)])
        except Exception as error:  # noqa: BLE001 - whatever a validator raises is its reason
            return _words(error)
        return None

    def columns(self, values: Sequence[str | None]) -> list[pa.Array]:
        """The typed columns of JSON values. What does not fit the type is null, never an error:
        values that were stored under an earlier schema may not fit a new column."""
        given = ["{}" if value is None else value for value in values]
        rows: list[Any]
        try:
            rows = self._lenient.decode(f"[{','.join(given)}]")
            if len(rows) == len(given):
                return self._arrays(rows)
        except _ERRORS:
            pass
        return [
            pa.array([self._lone(value, number) for value in given], field.type)
            for number, field in enumerate(self.nullable)
        ]

    @cached_property
    def _lenient(self) -> msgspec.json.Decoder[Any]:
        relaxed = [pa.field(each.name, each.type, metadata=each.metadata) for each in self.fields]
        row = _struct("Stored", relaxed, strict=False)
        return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]

    def _lone(self, value: str, number: int) -> Any:
        """One column of one value, if it has it."""
        field = self.fields[number]
        relaxed = pa.field(field.name, field.type, metadata=field.metadata)
        try:
            row = msgspec.json.decode(value, type=_struct("Lone", [relaxed], strict=False))
            return _arrays([row], [relaxed])[0][0].as_py()
        except _ERRORS:
            return None

    def _arrays(self, rows: Sequence[Any]) -> list[pa.Array]:
        return _arrays(rows, self.fields)


def _arrays(rows: Sequence[Any], fields: Sequence[pa.Field]) -> list[pa.Array]:
    found = []
    for number, field in enumerate(fields):
        attribute = f"column_{number}"
        values = [getattr(row, attribute) for row in rows]
        if field.metadata == _JSON_TEXT:
            values = [None if each is None else bytes(each).decode() for each in values]
            values = [None if each == "null" else each for each in values]
        elif pa.types.is_nested(field.type):
            values = [_plain(each) for each in values]
        found.append(pa.array(values, _bare(field.type)))
    return found


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value, builtin_types=_KEPT)


_KEPT: Final = (datetime, date, Decimal)


def type_schema(given: str | Mapping[str, Any]) -> TypeSchema:
    """From a column list, or from a JSON Schema document."""
    if isinstance(given, str):
        return TypeSchema(parse_ddl(given), given)
    properties = given.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise InvalidPipeline(
            "The JSON Schema has no properties, so there is nothing to make columns of."
        )
    fields = [_json_field(name, each) for name, each in properties.items()]
    try:
        return TypeSchema(fields, given)
    except ValueError as error:
        raise InvalidPipeline(f"The JSON Schema cannot be used: {error}") from None


def _json_field(name: str, schema: Any) -> pa.Field:
    told = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [told] if isinstance(told, str) else list(told or [])
    named = [kind for kind in kinds if kind != "null"]
    if len(named) == 1 and named[0] in _JSON_TYPES:
        return pa.field(name, _JSON_TYPES[named[0]])
    return pa.field(name, pa.string(), metadata=_JSON_TEXT)


def _struct(name: str, fields: Sequence[pa.Field], *, strict: bool) -> type[msgspec.Struct]:
    """A msgspec struct that reads these fields; the names of JSON need not be names of Python."""
    members: list[Any] = []
    for number, field in enumerate(fields):
        column = f"column_{number}"
        if field.metadata == _JSON_TEXT:
            members.append((column, msgspec.Raw, None))
            continue
        kind = _python(field.type, strict=strict)
        members.append(
            (column, kind) if strict and not field.nullable else (column, kind | None, None)
        )
    renamed = {f"column_{number}": field.name for number, field in enumerate(fields)}
    return msgspec.defstruct(name, members, rename=renamed, kw_only=True, gc=False)


_INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


def _python(kind: pa.DataType, *, strict: bool) -> Any:
    if kind in _INTEGER_BITS:
        most = 1 << (_INTEGER_BITS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_struct(kind):
        nested = [kind.field(number) for number in range(kind.num_fields)]
        return _struct("Nested", nested, strict=strict)
    if pa.types.is_map(kind):
        return dict[str, _python(kind.item_type, strict=strict) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        return list[_python(kind.value_type, strict=strict) | None]  # type: ignore[misc]
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind):
        return Annotated[datetime, msgspec.Meta(tz=True)]
    simple = {pa.string(): str, pa.bool_(): bool, pa.date32(): date}
    return simple.get(kind, float)


def _is_narrow(kind: pa.DataType) -> bool:
    """Whether Arrow may refuse what the reader lets pass."""
    return bool(pa.types.is_decimal(kind) or pa.types.is_nested(kind) or pa.types.is_temporal(kind))


def _bare(kind: pa.DataType) -> pa.DataType:
    """A type without NOT NULL anywhere in it."""
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return pa.struct([pa.field(each.name, _bare(each.type)) for each in fields])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _bare(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_type))
    return kind


def _words(error: Exception) -> str:
    """`value.total: expected a number`, for whatever was raised."""
    reason = reason_of(error)
    path = list(reason.path)
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"value{place}: {' '.join(reason.message.split())}"
