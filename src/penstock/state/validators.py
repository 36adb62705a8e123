"""The `Validator` protocol: one interface to check values, whatever library describes them.

`validator_for` takes a pydantic model or TypeAdapter, a msgspec.Struct, a dataclass, an attrs
class, any other type that msgspec supports, a JSON Schema document, or a function. Each library is
imported only when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from penstock import limits
from penstock.state.json import decode_value, encode_value
from penstock.state.schema_cost import TooCostly, measure

T_co = TypeVar("T_co", covariant=True)

_MESSAGE_CHARACTERS_MAX: Final = 300
_STEP: Final = re.compile(r"\.([^.\[]+)|\[([^\]]*)\]")


@runtime_checkable
class Validator(Protocol[T_co]):
    """Checks the values of one type of entity."""

    def load(self, raw: bytes) -> T_co:
        """Return the checked value in valid JSON; raise any exception if it is not acceptable."""

    def dump(self, value: Any) -> bytes:
        """Return the JSON of a value, which is of the library's own type or plain."""


class Reason(NamedTuple):
    """Why a value was refused: its path, the rule, and a message."""

    path: tuple[str | int, ...]
    rule: str
    message: str


def validator_for(schema: Any) -> Validator[Any]:
    """Return the validator for a schema of any supported kind."""
    if isinstance(schema, Mapping | bool):
        return JsonSchema(schema)
    is_class = isinstance(schema, type)
    if not is_class and isinstance(schema, Validator):
        return schema
    if is_class and hasattr(schema, "__pydantic_validator__"):
        from pydantic import TypeAdapter

        return _Pydantic(TypeAdapter(schema))
    if not is_class and hasattr(schema, "validate_json") and hasattr(schema, "dump_json"):
        return _Pydantic(schema)
    if _is_msgspec_type(schema):
        return _Typed(schema)
    if callable(schema):
        return _Function(schema)
    raise TypeError(
        f"{schema!r} cannot check values: pass a pydantic, msgspec, dataclass or attrs type, a "
        "JSON Schema, a function, or an object with load and dump."
    )


def reason_of(error: Any) -> Reason:
    """Return the path, rule and message of the error of any library."""
    if hasattr(error, "instance_path") and hasattr(error, "schema_path"):  # jsonschema-rs
        keyword = str(error.schema_path[-1]) if error.schema_path else "schema"
        return Reason(tuple(error.instance_path), keyword, _short(getattr(error, "message", error)))
    if callable(getattr(error, "errors", None)) and hasattr(error, "error_count"):  # pydantic
        first = error.errors(include_url=False)[0]
        more = error.error_count() - 1
        message = f"{first['msg']} (and {more} more)" if more else first["msg"]
        return Reason(tuple(first["loc"]), str(first["type"]), _short(message))
    if isinstance(error, msgspec.ValidationError):
        message, _, path = str(error).partition(" - at `$")
        return Reason(_path(path.removesuffix("`")), "type", _short(message))
    return Reason((), type(error).__name__, _short(error) or type(error).__name__)


class JsonSchema:
    """A JSON Schema document, of draft 4 to 2020-12, by its `$schema` (2020-12 without one).

    `format` is checked. References stay inside the document, so that no schema can make its host
    fetch a URL or read a file; patterns are matched in linear time, and a schema that means more
    work than `limits` allows is refused, so that none can hang it.
    """

    __slots__ = ("_check", "cost", "document")

    def __init__(self, document: Mapping[str, Any] | bool, *, patterns: int = 0) -> None:
        """`patterns` is the number of regular expressions that share the memory for them, if there
        are others beside those of this document."""
        import jsonschema_rs

        self.document = document if isinstance(document, bool) else dict(document)
        try:
            self.cost = measure(self.document)
        except (TooCostly, RecursionError) as error:
            raise ValueError(f"This JSON Schema cannot be used: {error}.") from None
        pattern_bytes = max(
            limits.SCHEMA_PATTERN_BYTES_MIN,
            limits.SCHEMA_PATTERN_BYTES // max(self.cost.patterns, patterns, 1),
        )
        try:
            validator = jsonschema_rs.validator_for(
                self.document,
                validate_formats=True,
                offline=True,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=pattern_bytes, dfa_size_limit=pattern_bytes
                ),
            )
        except (ValueError, TypeError, RecursionError) as error:
            where = "/".join(map(str, getattr(error, "instance_path", ())))
            message = _short(getattr(error, "message", error))
            if message.endswith('is not a "regex"'):
                message += f", or one that takes more than {pattern_bytes} bytes"
            raise ValueError(
                f"This is not a usable JSON Schema{where and f' at /{where}'}: {message}."
            ) from error
        if self.cost.unresolved is not None:
            raise ValueError(
                f"This JSON Schema cannot be used: the reference {self.cost.unresolved[:64]!r} "
                "leads out of the document; put what it names under $defs."
            )
        self._check = validator.validate

    def load(self, raw: bytes) -> Any:
        value = decode_value(raw)
        self._check(value)
        return value

    def dump(self, value: Any) -> bytes:
        return bytes(encode_value(value))


class _Typed:
    """Types that msgspec supports: structs, dataclasses, attrs, typed dicts, built-ins."""

    __slots__ = ("_decode",)

    def __init__(self, type: Any) -> None:
        self._decode = msgspec.json.Decoder(type).decode

    def load(self, raw: bytes) -> Any:
        return self._decode(raw)

    def dump(self, value: Any) -> bytes:
        return bytes(encode_value(value))


class _Pydantic:
    """A pydantic TypeAdapter."""

    __slots__ = ("_adapter",)

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def load(self, raw: bytes) -> Any:
        return self._adapter.validate_json(raw)

    def dump(self, value: Any) -> bytes:
        if isinstance(value, Mapping | list | str | int | float | None):
            return bytes(encode_value(value))
        # Written with its aliases, as it is read.
        data: bytes = self._adapter.dump_json(value, by_alias=True, warnings="error")
        return data


class _Function:
    """A function that returns the value to use, or raises.

    A function that only checks returns None or True to accept the value, and False to refuse it.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def load(self, raw: bytes) -> Any:
        value = decode_value(raw)
        result = self._function(value)
        if result is None or result is True:
            return value
        if result is False and value is not False:
            raise ValueError("The check returned False.")
        return result

    def dump(self, value: Any) -> bytes:
        return bytes(encode_value(value))


def _is_msgspec_type(schema: Any) -> bool:
    if schema is None:
        return False
    try:
        info = msgspec.inspect.type_info(schema)
    except (TypeError, NameError):
        return False
    return not isinstance(info, msgspec.inspect.CustomType)


def _path(text: str) -> tuple[str | int, ...]:
    """Return the steps of a path as msgspec writes it: `.tags[0]`, and `[...]` for a dict's key."""
    steps = (match[1] or match[2] for match in _STEP.finditer(text))
    return tuple(int(step) if step.isdigit() else step for step in steps)


def path_text(path: Iterable[str | int]) -> str:
    """Return a path as text to append to `value`: `.tags[0]`."""
    return "".join(
        f"[{step}]" if isinstance(step, int) or step == "..." else f".{step}" for step in path
    )


def _short(message: object) -> str:
    text = str(message)
    if len(text) > _MESSAGE_CHARACTERS_MAX:
        return text[:_MESSAGE_CHARACTERS_MAX] + "…"
    return text.rstrip(".")
