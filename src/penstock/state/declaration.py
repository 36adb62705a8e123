"""The declaration of a state stream: a JSON Schema a type, and what becomes of what breaks it.

Pure rules: the document that clients send, the form that is kept with the stream, and the check of
what is appended. Knows neither HTTP nor the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from penstock import limits
from penstock.errors import BodyTooLarge, InvalidEvent, InvalidSchema, ValidationFailed
from penstock.protocol.json_mode import frame, unframe
from penstock.state.collection import Collection
from penstock.state.event import ChangeEvent
from penstock.state.json import same_json
from penstock.state.parsing import in_array, parse_many
from penstock.state.validators import JsonSchema

if TYPE_CHECKING:
    from penstock.log.requests import Proposal
    from penstock.log.stream import Stream

META: Final = "state"
"""The name under which a stream keeps its declaration."""

Mode = Literal["reject", "warn"]

_MODES: Final = ("reject", "warn")
# What GET adds to a document may come back in a PUT, and means nothing there.
_GIVEN_BACK: Final = frozenset({"version", "offset", "ordinal"})
_COMPILED_MAX: Final = 1024


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream keeps: the document, its version, and where in the stream that began."""

    version: int
    mode: Mode
    types: dict[str, Any]
    offset: str
    ordinal: int

    def says(self, mode: Mode, types: dict[str, Any]) -> bool:
        """Whether a document would change nothing."""
        return self.mode == mode and same_json(self.types, types)


def encode(declaration: Declaration) -> bytes:
    return msgspec.json.encode(declaration)


def decode(value: bytes) -> Declaration:
    return msgspec.json.decode(value, type=Declaration)


def parse_document(body: bytes) -> tuple[Mode, dict[str, Any]]:
    """The mode and types of a document that a client sent; every schema in it is usable."""
    if len(body) > limits.SCHEMA_BYTES_MAX:
        raise BodyTooLarge(f"A declaration has at most {limits.SCHEMA_BYTES_MAX} bytes.")
    frame(body, allow_empty=True)  # says what is wrong with the JSON itself
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidSchema(f"The document cannot be used: {error}.") from None
    if not isinstance(document, dict):
        raise InvalidSchema('The document is an object: {"types": {"user": {"schema": {…}}}}.')
    for name in document:
        if name not in {"types", "mode"} | _GIVEN_BACK:
            raise InvalidSchema(f"{name[:64]!r} is unknown: use types and mode.", field=name)
    mode = document.get("mode", "reject")
    if mode not in _MODES:
        raise InvalidSchema("mode is reject or warn.", field="mode")
    types = document.get("types")
    if not isinstance(types, dict):
        raise InvalidSchema("types is an object with an entry for each type.", field="types")
    for name, entry in types.items():
        _check_type(name, entry)
    return cast("Mode", mode), types


def _check_type(name: str, entry: Any) -> None:
    field = f"types.{name[:64]}"
    if not name:
        raise InvalidSchema("The name of a type must not be empty.", field="types")
    if not isinstance(entry, dict) or entry.keys() != {"schema"}:
        raise InvalidSchema(f'{field} is an object with one member: {{"schema": …}}.', field=field)
    schema = entry["schema"]
    field = f"{field}.schema"
    if not isinstance(schema, dict | bool):
        raise InvalidSchema(f"{field} is a JSON Schema: an object, true or false.", field=field)
    try:
        JsonSchema(schema)
    except ValueError as error:
        raise InvalidSchema(f"{field}: {error}.", field=field) from error


class Compiled:
    """A declaration that is ready to check events."""

    __slots__ = ("_collections", "mode")

    def __init__(self, declaration: Declaration) -> None:
        self.mode = declaration.mode
        self._collections = {
            name: Collection[Any](type=name, schema=entry["schema"])
            for name, entry in declaration.types.items()
        }

    def check(self, array: bytes) -> None:
        """Refuse an array that has an invalid event, naming the first."""
        try:
            events = parse_many(array)
        except InvalidEvent as error:
            error.path = _pointer(error)
            raise
        for failure in self._failures(events):
            raise failure

    def count_invalid(self, array: bytes) -> int:
        invalid: list[InvalidEvent] = []
        events = parse_many(array, on_invalid=invalid.append)
        return len(invalid) + sum(1 for _ in self._failures(events))

    def _failures(self, events: list[Any]) -> Iterator[InvalidEvent]:
        collections = self._collections
        for index, event in enumerate(events):
            if not isinstance(event, ChangeEvent):
                continue
            collection = collections.get(event.type)
            if collection is None:
                continue
            try:
                collection.load(event)
            except ValidationFailed as error:
                found = in_array(error, index, event.to_json())
                found.path = _pointer(found)
                yield found


class Checks:
    """Checks what is appended to declared streams, and tells of what may be appended."""

    def __init__(self, accepted: Callable[[Stream], None]) -> None:
        self._accepted = accepted
        self._compiled: dict[int, tuple[bytes, Compiled]] = {}
        self.refused = 0
        self.warnings = 0

    def __call__(self, proposal: Proposal) -> None:
        stream = proposal.stream
        compiled = self._of(stream.id, proposal.value)
        array = unframe(proposal.wire)
        if compiled.mode == "warn":
            self.warnings += compiled.count_invalid(array)
        else:
            try:
                compiled.check(array)
            except InvalidEvent:
                self.refused += 1
                raise
        self._accepted(stream)

    def _of(self, stream_id: int, value: bytes) -> Compiled:
        """Compiled once a version: another version is another value."""
        known = self._compiled.get(stream_id)
        if known is not None and known[0] == value:
            return known[1]
        if len(self._compiled) >= _COMPILED_MAX:
            self._compiled.clear()
        compiled = Compiled(decode(value))
        self._compiled[stream_id] = (value, compiled)
        return compiled


def _pointer(error: InvalidEvent) -> str:
    """Where in its item an event is wrong, as a JSON Pointer."""
    steps: list[Any] = (error.field or "").split(".") if error.field else []
    cause = error.__cause__
    if cause is not None and hasattr(cause, "instance_path"):
        steps = ["value", *cause.instance_path]
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
