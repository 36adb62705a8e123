"""The declaration of a state stream: a JSON Schema per type, and the mode for invalid events.

Pure rules: the document that clients send, the form that is stored with the stream, and the check
of appends. Knows neither HTTP nor the log.
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
"""The name of the stream's metadata that holds the declaration."""

Mode = Literal["reject", "warn"]

_MODES: Final = ("reject", "warn")
# Fields that GET adds to a document; a PUT may repeat them, and ignores them.
_READ_ONLY: Final = frozenset({"version", "offset", "ordinal"})
_COMPILED_MAX: Final = 1024


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """A stored declaration: the document, its version, and the offset where that version began."""

    version: int
    mode: Mode
    types: dict[str, Any]
    offset: str
    ordinal: int

    def says(self, mode: Mode, types: dict[str, Any]) -> bool:
        """Whether a document is the same as this declaration."""
        return self.mode == mode and same_json(self.types, types)


def encode(declaration: Declaration) -> bytes:
    return msgspec.json.encode(declaration)


def decode(value: bytes) -> Declaration:
    return msgspec.json.decode(value, type=Declaration)


def parse_document(body: bytes) -> tuple[Mode, dict[str, Any]]:
    """Return the mode and types of a client's document; every schema in it is valid."""
    if len(body) > limits.SCHEMA_BYTES_MAX:
        raise BodyTooLarge(f"A declaration has at most {limits.SCHEMA_BYTES_MAX} bytes.")
    frame(body, allow_empty=True)  # its error names what is wrong with the JSON
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidSchema(f"The document cannot be used: {error}.") from None
    if not isinstance(document, dict):
        raise InvalidSchema('The document must be an object: {"types": {"user": {"schema": {…}}}}.')
    for name in document:
        if name not in {"types", "mode"} | _READ_ONLY:
            raise InvalidSchema(f"{name[:64]!r} is unknown: use types and mode.", field=name)
    mode = document.get("mode", "reject")
    if mode not in _MODES:
        raise InvalidSchema("mode must be reject or warn.", field="mode")
    types = document.get("types")
    if not isinstance(types, dict):
        raise InvalidSchema("types must be an object with an entry for each type.", field="types")
    for name, entry in types.items():
        _check_type(name, entry)
    return cast("Mode", mode), types


def _check_type(name: str, entry: Any) -> None:
    field = f"types.{name[:64]}"
    if not name:
        raise InvalidSchema("The name of a type must not be empty.", field="types")
    if not isinstance(entry, dict) or entry.keys() != {"schema"}:
        raise InvalidSchema(
            f'{field} must be an object with one member: {{"schema": …}}.', field=field
        )
    schema = entry["schema"]
    field = f"{field}.schema"
    if not isinstance(schema, dict | bool):
        raise InvalidSchema(
            f"{field} must be a JSON Schema: an object, true or false.", field=field
        )
    try:
        JsonSchema(schema)
    except ValueError as error:
        raise InvalidSchema(f"{field}: {error}", field=field) from error


class Compiled:
    """A declaration whose schemas are compiled, to check events."""

    __slots__ = ("_collections", "mode")

    def __init__(self, declaration: Declaration) -> None:
        self.mode = declaration.mode
        self._collections = {
            name: Collection[Any](type=name, schema=entry["schema"])
            for name, entry in declaration.types.items()
        }

    def check(self, array: bytes) -> None:
        """Raise the error of the first invalid event of an array."""
        try:
            events = parse_many(array)
        except InvalidEvent as error:
            error.path = _pointer(error)
            raise
        for failure in self._failures(events):
            raise failure

    def count_invalid(self, array: bytes) -> int:
        """Return the number of invalid events of an array."""
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
                failure = in_array(error, index, event.to_json())
                failure.path = _pointer(failure)
                yield failure


class Checks:
    """The check of appends to declared streams. Calls `accepted` for each stream that passes."""

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
        """Return the compiled declaration, which is compiled once per version."""
        cached = self._compiled.get(stream_id)
        if cached is not None and cached[0] == value:
            return cached[1]
        if len(self._compiled) >= _COMPILED_MAX:
            self._compiled.clear()
        compiled = Compiled(decode(value))
        self._compiled[stream_id] = (value, compiled)
        return compiled


def _pointer(error: InvalidEvent) -> str:
    """Return the invalid field of an event as a JSON Pointer."""
    steps: list[Any] = (error.field or "").split(".") if error.field else []
    cause = error.__cause__
    if cause is not None and hasattr(cause, "instance_path"):
        steps = ["value", *cause.instance_path]
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
