"""The schema of a declared type: it validates values, and converts them to typed columns.

One strict decoder serves both: a value that passes has its columns, one that does not is a dead
letter. Uses no Spark, so that every engine gets the same columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from penstock.errors import InvalidPipeline
from penstock.spark.ddl import parse_ddl
from penstock.state.validators import JsonSchema, reason_of

# Columns with this prefix are the pipeline's own, all others are the user's.
OWN: Final = "_"
_JSON_TYPES: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
}
_JSON_TEXT: Final = {b"penstock": b"json"}  # a column that holds JSON of any shape
_ERRORS: Final = (msgspec.DecodeError, RecursionError, pa.ArrowException, OverflowError, ValueError)


class TypeSchema:
    """The declared columns of one type of entity."""

    def __init__(self, fields: Sequence[pa.Field], source: str | Mapping[str, Any]) -> None:
        document = None if isinstance(source, str) else source
        self.source = source
        for field in fields:
            if field.name.startswith(OWN):
                raise InvalidPipeline(
                    f"A column is called {field.name}. Names that begin with {OWN} are reserved "
                    "for the pipeline's own columns."
                )
        self.fields = list(fields)
        columns = [(field.name, str(field.type), field.nullable) for field in self.fields]
        content = repr((columns, None if document is None else msgspec.json.encode(document)))
        self.version = hashlib.sha256(content.encode()).hexdigest()[:12]
        self._row = _struct("Value", self.fields, strict=document is None)
        self._one = msgspec.json.Decoder(self._row)
        # mypy does not know types that are created at run time, here and below.
        self._many = msgspec.json.Decoder(list[self._row])  # type: ignore[name-defined]
        self._json_schema = None if document is None else JsonSchema(document)
        self._narrow = any(_is_narrow(each.type) for each in self.fields)

    @property
    def nullable(self) -> list[pa.Field]:
        """The columns of a table: nullable, as a deleted or an old row may lack any of them."""
        return [pa.field(each.name, _bare(each.type)) for each in self.fields]

    def __reduce__(self) -> tuple[Any, ...]:
        return type_schema, (self.source,)  # decoders cannot be pickled

    def problems(self, values: Sequence[str]) -> list[str | None]:
        """For each JSON value the reason why it is invalid, or None."""
        if self._json_schema is not None:
            return [self._problem(value) for value in values]
        try:
            rows = self._many.decode(f"[{','.join(values)}]")
            if len(rows) == len(values):  # a value with a comma may decode as two
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
            return _reason(error)
        return None

    def columns(self, values: Sequence[str | None]) -> list[pa.Array]:
        """The typed columns of JSON values. A field that does not fit its type is null, never an
        error: values that were stored under an earlier schema may not fit a new column."""
        objects = ["{}" if value is None else value for value in values]
        rows: list[Any]
        try:
            rows = self._lenient.decode(f"[{','.join(objects)}]")
            if len(rows) == len(objects):
                return self._arrays(rows)
        except _ERRORS:
            pass
        return [
            pa.array([self._single(value, number) for value in objects], field.type)
            for number, field in enumerate(self.nullable)
        ]

    @cached_property
    def _lenient(self) -> msgspec.json.Decoder[Any]:
        relaxed = [pa.field(each.name, each.type, metadata=each.metadata) for each in self.fields]
        row = _struct("Stored", relaxed, strict=False)
        return msgspec.json.Decoder(list[row])  # type: ignore[valid-type]  # made at run time

    def _single(self, value: str, number: int) -> Any:
        """One column of one value, or None if it does not fit."""
        field = self.fields[number]
        relaxed = pa.field(field.name, field.type, metadata=field.metadata)
        try:
            row = msgspec.json.decode(value, type=_struct("Single", [relaxed], strict=False))
            return _arrays([row], [relaxed])[0][0].as_py()
        except _ERRORS:
            return None

    def _arrays(self, rows: Sequence[Any]) -> list[pa.Array]:
        return _arrays(rows, self.fields)


def _arrays(rows: Sequence[Any], fields: Sequence[pa.Field]) -> list[pa.Array]:
    arrays = []
    for number, field in enumerate(fields):
        attribute = f"column_{number}"
        values = [getattr(row, attribute) for row in rows]
        if field.metadata == _JSON_TEXT:
            values = [None if each is None else bytes(each).decode() for each in values]
            values = [None if each == "null" else each for each in values]
        elif pa.types.is_nested(field.type):
            values = [_plain(each) for each in values]
        _check_range(field.name, field.type, values)
        arrays.append(pa.array(values, _bare(field.type)))
    return arrays


def _check_range(name: str, kind: pa.DataType, values: Iterable[Any]) -> None:
    """Raise an error for what Arrow stores and nobody can show: a time that is outside the calendar
    in UTC, or a number that is infinite as FLOAT."""
    present = (value for value in values if value is not None)
    if pa.types.is_timestamp(kind):
        for value in present:
            if value.year in _EDGES:
                try:
                    value.astimezone(UTC)
                except OverflowError:
                    raise ValueError(
                        f"{name}: {value.isoformat()} is outside the years 1 to 9999 in UTC"
                    ) from None
    elif kind == pa.float32():
        if any(abs(value) > _FLOAT_MAX for value in present):
            raise ValueError(f"{name}: a number is out of the range of FLOAT")
    elif pa.types.is_struct(kind) and _has_range(kind):
        rows = list(present)
        for field in kind:
            _check_range(f"{name}.{field.name}", field.type, (row.get(field.name) for row in rows))
    elif pa.types.is_list(kind) and _has_range(kind):
        _check_range(name, kind.value_type, (item for row in present for item in row))
    elif pa.types.is_map(kind) and _has_range(kind):
        _check_range(name, kind.item_type, (item for row in present for item in row.values()))


def _has_range(kind: pa.DataType) -> bool:
    """Whether a type has a column whose range is checked, at any depth."""
    if pa.types.is_struct(kind):
        return any(_has_range(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_range(kind.item_type)
    if pa.types.is_list(kind):
        return _has_range(kind.value_type)
    return bool(pa.types.is_timestamp(kind) or kind == pa.float32())


_FLOAT_MAX: Final = 3.4028234663852886e38
_EDGES: Final = (1, 9999)


def _plain(value: Any) -> Any:
    return None if value is None else msgspec.to_builtins(value, builtin_types=_ARROW_TYPES)


_ARROW_TYPES: Final = (datetime, date, Decimal)


def type_schema(source: str | Mapping[str, Any]) -> TypeSchema:
    """The schema of a column list, or of a JSON Schema document."""
    if isinstance(source, str):
        return TypeSchema(parse_ddl(source), source)
    properties = source.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        raise InvalidPipeline(
            "The JSON Schema has no properties, so that there are no columns. Declare some."
        )
    fields = [_json_field(name, each) for name, each in properties.items()]
    try:
        return TypeSchema(fields, source)
    except ValueError as error:
        raise InvalidPipeline(f"The JSON Schema cannot be used: {error}") from None


def _json_field(name: str, schema: Any) -> pa.Field:
    declared = schema.get("type") if isinstance(schema, Mapping) else None
    types = [declared] if isinstance(declared, str) else list(declared or [])
    types = [each for each in types if each != "null"]
    if len(types) == 1 and types[0] in _JSON_TYPES:
        return pa.field(name, _JSON_TYPES[types[0]])
    return pa.field(name, pa.string(), metadata=_JSON_TEXT)


def _struct(name: str, fields: Sequence[pa.Field], *, strict: bool) -> type[msgspec.Struct]:
    """A msgspec struct for these fields. Its attributes are numbered, since names in JSON need not
    be valid in Python."""
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
    # mypy does not know types that are created at run time.
    if pa.types.is_map(kind):
        return dict[str, _python(kind.item_type, strict=strict) | None]  # type: ignore[misc]
    if pa.types.is_list(kind):
        # As above.
        return list[_python(kind.value_type, strict=strict) | None]  # type: ignore[misc]
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind):
        return Annotated[datetime, msgspec.Meta(tz=True)]
    simple = {pa.string(): str, pa.bool_(): bool, pa.date32(): date}
    return simple.get(kind, float)


def _is_narrow(kind: pa.DataType) -> bool:
    """Whether a column may refuse what the decoder accepts."""
    return bool(
        pa.types.is_decimal(kind)
        or pa.types.is_nested(kind)
        or pa.types.is_temporal(kind)
        or kind == pa.float32()
    )


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


def _reason(error: Exception) -> str:
    """The reason of an error with its path, as in `value.total: expected a number`."""
    reason = reason_of(error)
    steps = list(reason.path)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return f"value{path}: {' '.join(reason.message.split())}"
