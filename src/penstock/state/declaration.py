"""The declaration of a state stream: a JSON Schema and a pattern of keys per type, whether other
types are refused, and the mode for invalid events.

Pure rules: the document that clients send, the form that is stored with the stream, and the check
of appends. Knows neither HTTP nor the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

import msgspec

from penstock import limits
from penstock.errors import BodyTooLarge, InvalidEvent, InvalidSchema, ValidationFailed
from penstock.log.requests import NotYet
from penstock.protocol.json_mode import frame, nesting, slices, unframe
from penstock.state import expiry
from penstock.state.collection import Collection
from penstock.state.event import ChangeEvent
from penstock.state.json import same_json
from penstock.state.parsing import in_array, parse_many
from penstock.state.schema_cost import TooCostly, measure
from penstock.state.validators import JsonSchema

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.log.requests import Proposal
    from penstock.log.stream import Stream

META: Final = "state"
"""The name of the stream's metadata that holds the declaration."""

Mode = Literal["reject", "warn"]
UnknownTypes = Literal["keep", "refuse"]

_MODES: Final = ("reject", "warn")
_UNKNOWN_TYPES: Final = ("keep", "refuse")
# Fields that GET adds to a document; a PUT may repeat them, and ignores them.
_READ_ONLY: Final = frozenset({"version", "offset", "ordinal"})
_COMPILED_MAX: Final = 1024
_TYPES_NAMED_MAX: Final = 10

INLINE_STEPS_MAX: Final = 100_000
"""Steps of a check, as its schemas' cost counts them, up to which it is done within the append."""
VALUE_STEPS_MAX: Final = 100_000
"""Steps up to which one value is checked in this process, which cannot do anything else
meanwhile."""

CheckCostly = Callable[[bytes, bytes], None]
"""Checks one event, in JSON, against a stored declaration where it holds up nobody; raises
ValidationFailed."""


class Document(NamedTuple):
    """A declaration as a client writes it. Every type has a `schema`, and may have a
    `key_pattern`."""

    mode: Mode
    types: dict[str, Any]
    unknown_types: UnknownTypes


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored declaration: the document, its version, and the offset where that version began."""

    version: int
    mode: Mode
    types: dict[str, Any]
    offset: str
    ordinal: int
    unknown_types: UnknownTypes = "keep"

    def says(self, document: Document) -> bool:
        """Whether a document is the same as this declaration."""
        mode, types, unknown_types = document
        if (self.mode, self.unknown_types) != (mode, unknown_types):
            return False
        return same_json(self.types, types)


def encode(declaration: Declaration) -> bytes:
    return msgspec.json.encode(declaration)


def decode(value: bytes) -> Declaration:
    return msgspec.json.decode(value, type=Declaration)


def parse_document(body: bytes) -> Document:
    """Return a client's document; every schema and pattern in it is valid."""
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
        if name not in {"types", "mode", "unknown_types"} | _READ_ONLY:
            raise InvalidSchema(
                f"{name[:64]!r} is unknown: use types, unknown_types and mode.", field=name
            )
    mode = document.get("mode", "reject")
    if mode not in _MODES:
        raise InvalidSchema("mode must be reject or warn.", field="mode")
    unknown_types = document.get("unknown_types", "keep")
    if unknown_types not in _UNKNOWN_TYPES:
        raise InvalidSchema("unknown_types must be keep or refuse.", field="unknown_types")
    types = document.get("types")
    if not isinstance(types, dict):
        raise InvalidSchema("types must be an object with an entry for each type.", field="types")
    try:
        patterns = _count_patterns(types)
    except TooCostly as error:
        raise InvalidSchema(f"The types cannot be used: {error}.", field="types") from None
    for name, entry in types.items():
        _check_type(name, entry, patterns)
    # msgspec leaves out a default by identity, so the value is one of the literals here.
    return Document(cast("Mode", mode), types, "refuse" if unknown_types == "refuse" else "keep")


def _count_patterns(types: dict[str, Any]) -> int:
    """Return the number of regular expressions of all types; raise TooCostly if there are too
    many."""
    patterns = 0
    for entry in types.values():
        if isinstance(entry, dict):
            patterns += "key_pattern" in entry
            try:
                patterns += measure(entry.get("schema")).patterns
            except TooCostly:
                pass  # the check of the type says so
    if patterns > limits.SCHEMA_PATTERNS_MAX:
        raise TooCostly(
            f"they have {patterns} regular expressions together, more than "
            f"{limits.SCHEMA_PATTERNS_MAX}; share or leave out some"
        )
    return patterns


def _check_type(name: str, entry: Any, patterns: int) -> None:
    field = f"types.{name[:64]}"
    if not name:
        raise InvalidSchema("The name of a type must not be empty.", field="types")
    if not isinstance(entry, dict) or entry.keys() - {"key_pattern"} != {"schema"}:
        raise InvalidSchema(
            f'{field} must be an object with a "schema", which may be true, and at most a '
            '"key_pattern" beside it.',
            field=field,
        )
    if "key_pattern" in entry:
        _check_pattern(entry["key_pattern"], f"{field}.key_pattern", patterns)
    schema = entry["schema"]
    field = f"{field}.schema"
    if not isinstance(schema, dict | bool):
        raise InvalidSchema(
            f"{field} must be a JSON Schema: an object, true or false.", field=field
        )
    try:
        JsonSchema(schema, patterns=patterns)
    except ValueError as error:
        raise InvalidSchema(f"{field}: {error}", field=field) from error


def _check_pattern(pattern: Any, field: str, patterns: int) -> None:
    if not isinstance(pattern, str):
        raise InvalidSchema(f"{field} must be a regular expression.", field=field)
    try:
        # Alone, so that it cannot end the group around it.
        JsonSchema({"pattern": pattern}, patterns=patterns)
        KeyPattern(pattern, patterns)
    except ValueError as error:
        raise InvalidSchema(f"{field}: {error}", field=field) from error


class KeyPattern:
    """A regular expression for whole keys, matched in linear time like those of JSON Schemas."""

    __slots__ = ("_load", "pattern")

    def __init__(self, pattern: str, patterns: int) -> None:
        """`patterns` is the number of regular expressions of the declaration."""
        self.pattern = pattern
        self._load = JsonSchema({"pattern": f"^(?:{pattern})$"}, patterns=patterns).load

    def check(self, event: ChangeEvent) -> None:
        try:
            self._load(msgspec.json.encode(event.key))
        except ValueError:
            key = event.key[:64]
            raise ValidationFailed(
                f"{event.type} {key!r}: key {key!r} does not match {self.pattern[:64]}.",
                field="key",
                rule="pattern",
            ) from None


class Compiled:
    """A declaration whose schemas are compiled, to check events.

    With `check_costly` it checks the events that would take long.
    """

    __slots__ = (
        "_branches",
        "_collections",
        "_costs",
        "_key_patterns",
        "_refuses_unknown",
        "_steps",
        "mode",
    )

    def __init__(self, declaration: Declaration) -> None:
        self.mode = declaration.mode
        self._refuses_unknown = declaration.unknown_types == "refuse"
        patterns = _count_patterns(declaration.types)
        self._key_patterns = {
            name: KeyPattern(entry["key_pattern"], patterns)
            for name, entry in declaration.types.items()
            if "key_pattern" in entry
        }
        schemas = {
            name: JsonSchema(entry["schema"], patterns=patterns)
            for name, entry in declaration.types.items()
        }
        self._collections = {
            name: Collection[Any](type=name, schema=schema) for name, schema in schemas.items()
        }
        self._costs = {name: schema.cost for name, schema in schemas.items()}
        costs = self._costs.values()
        self._steps = max([cost.steps + cost.patterns for cost in costs], default=0)
        self._branches = max([cost.branches for cost in costs], default=0)

    def is_cheap(self, wire: bytes) -> bool:
        """Whether messages can be checked at once, by their size alone."""
        # A value for every four bytes is more than real messages have.
        steps = len(wire) // 4 * self._steps
        if self._branches > 1 and steps <= INLINE_STEPS_MAX:
            steps *= self._branches ** nesting(wire, depth_max=64)
        return steps <= INLINE_STEPS_MAX and len(wire) <= INLINE_STEPS_MAX

    def check(
        self,
        array: bytes,
        *,
        trusts_deletes: bool = False,
        check_costly: Callable[[bytes], None] | None = None,
    ) -> None:
        """Raise the error of the first invalid event of an array. With `trusts_deletes` a delete
        may be of any type and key."""
        try:
            events = parse_many(array)
        except InvalidEvent as error:
            error.path = _pointer(error)
            raise
        for failure in self._failures(events, check_costly, trusts_deletes=trusts_deletes):
            raise failure

    def count_invalid(
        self, array: bytes, *, check_costly: Callable[[bytes], None] | None = None
    ) -> int:
        """Return the number of invalid events of an array."""
        invalid: list[InvalidEvent] = []
        events = parse_many(array, on_invalid=invalid.append)
        return len(invalid) + sum(1 for _ in self._failures(events, check_costly))

    def _failures(
        self,
        events: list[Any],
        check_costly: Callable[[bytes], None] | None,
        *,
        trusts_deletes: bool = False,
    ) -> Iterator[InvalidEvent]:
        for index, event in enumerate(events):
            if not isinstance(event, ChangeEvent):
                continue
            if trusts_deletes and event.operation == "delete":
                continue
            try:
                if check_costly is not None and self._is_costly(event):
                    check_costly(event.to_json())
                else:
                    self._check(event)
            except InvalidEvent as error:
                failure = in_array(error, index, event.to_json())
                failure.path = error.path or _pointer(failure)
                yield failure

    def _is_costly(self, event: ChangeEvent) -> bool:
        raw, cost = event.raw_value, self._costs.get(event.type)
        return raw is not None and cost is not None and cost.of(raw) > VALUE_STEPS_MAX

    def _check(self, event: ChangeEvent) -> None:
        if event.headers.ttl or event.headers.expires_at:
            expiry.check(event)
        collection = self._collections.get(event.type)
        if collection is None:
            if self._refuses_unknown:
                raise self._unknown_type(event.type)
            return
        if event.type in self._key_patterns:
            self._key_patterns[event.type].check(event)
        collection.load(event)

    def _unknown_type(self, type: str) -> ValidationFailed:
        types = ", ".join(list(self._collections)[:_TYPES_NAMED_MAX])
        more = "" if len(self._collections) <= _TYPES_NAMED_MAX else ", …"
        return ValidationFailed(
            f"type {type[:64]!r} is not one of those that are declared: {types or 'none'}{more}.",
            field="type",
            rule="unknown-type",
        )


class Question(NamedTuple):
    """An append whose check takes long. `value` is the stored declaration."""

    compiled: Compiled
    value: bytes
    wire: bytes
    trusts_deletes: bool
    now_us: int


class Verdict(NamedTuple):
    """The result of a check that took long, and what was checked. `changed` is to be appended
    instead."""

    value: bytes
    wire: bytes
    error: InvalidEvent | None = None
    warnings: int = 0
    changed: bytes | None = None


def judge(question: Question, check_costly: CheckCostly) -> Verdict:
    """Check many messages, or costly ones, a slice at a time: other threads can run meanwhile."""
    compiled, value, wire, trusts_deletes, now_us = question
    warnings, first, is_changed = 0, 0, False
    pieces: list[bytes] = []
    check = partial(check_costly, value)
    for piece in slices(wire):
        array = unframe(piece)
        if compiled.mode == "warn":
            warnings += compiled.count_invalid(array, check_costly=check)
        else:
            try:
                compiled.check(array, trusts_deletes=trusts_deletes, check_costly=check)
            except InvalidEvent as error:
                return Verdict(value, wire, _moved(error, first))
        first += piece.count(b"\n")
        changed = expiry.with_deadlines(piece, now_us)
        is_changed = is_changed or changed is not None
        pieces.append(piece if changed is None else changed)
    return Verdict(value, wire, None, warnings, b"".join(pieces) if is_changed else None)


def _moved(error: InvalidEvent, first: int) -> InvalidEvent:
    """Return the error of an event whose slice begins with event `first` of its append."""
    if error.index is None or not first:
        return error
    index = error.index + first
    detail = error.detail.replace(f"Event {error.index}:", f"Event {index}:", 1)
    moved = type(error)(detail, field=error.field, rule=error.rule, index=index, raw=error.raw)
    moved.path = error.path
    return moved


Judge = Callable[[Question], Awaitable[Verdict]]
"""Runs `judge` off the event loop."""


class Checks:
    """The check of appends to declared streams. Calls `accepted` for each stream that passes.

    A check that would take long is left to `judge`, and the append waits for it.
    """

    def __init__(self, accepted: Callable[[Stream], None], judge: Judge, *, clock: Clock) -> None:
        self._accepted = accepted
        self._judge = judge
        self._clock = clock
        self._compiled: dict[int, tuple[bytes, Compiled]] = {}
        self.refused = 0
        self.warnings = 0

    def __call__(self, proposal: Proposal) -> tuple[bytes, int] | None:
        stream = proposal.stream
        compiled = self._of(stream.id, proposal.value)
        if not compiled.is_cheap(proposal.wire):
            return self._apply(self._verdict(compiled, proposal), proposal)
        array = unframe(proposal.wire)
        if compiled.mode == "warn":
            self.warnings += compiled.count_invalid(array)
        else:
            try:
                # What has expired is deleted even if it is no longer allowed.
                compiled.check(array, trusts_deletes=proposal.is_by_server)
            except InvalidEvent:
                self.refused += 1
                raise
        self._accepted(stream)
        wire = expiry.with_deadlines(proposal.wire, self._clock.now_us())
        return None if wire is None else (wire, proposal.messages)

    def _verdict(self, compiled: Compiled, proposal: Proposal) -> Verdict:
        """Return the result of a check that takes long; raise NotYet if it was not made yet."""
        verdict = proposal.notes.get(META)
        if (
            not isinstance(verdict, Verdict)
            or verdict.value != proposal.value
            or verdict.wire != proposal.wire
        ):
            raise NotYet(partial(self._check_later, compiled, proposal), blocks=True)
        return verdict

    async def _check_later(self, compiled: Compiled, proposal: Proposal) -> None:
        proposal.notes[META] = await self._judge(
            Question(
                compiled,
                proposal.value,
                proposal.wire,
                proposal.is_by_server,
                self._clock.now_us(),
            )
        )

    def _apply(self, verdict: Verdict, proposal: Proposal) -> tuple[bytes, int] | None:
        self.warnings += verdict.warnings
        if verdict.error is not None:
            self.refused += 1
            raise verdict.error
        self._accepted(proposal.stream)
        return None if verdict.changed is None else (verdict.changed, proposal.messages)

    def _of(self, stream_id: int, value: bytes) -> Compiled:
        """Return the compiled declaration, which is compiled once per version."""
        cached = self._compiled.get(stream_id)
        if cached is not None and cached[0] == value:
            return cached[1]
        if len(self._compiled) >= _COMPILED_MAX:
            self._compiled.clear()
        try:
            compiled = Compiled(decode(value))
        except ValueError as error:  # it was declared before there were such limits
            raise InvalidSchema(
                f"The declaration of the stream cannot be used: {error} Declare it anew."
            ) from error
        self._compiled[stream_id] = (value, compiled)
        return compiled


def _pointer(error: InvalidEvent) -> str:
    """Return the invalid field of an event as a JSON Pointer."""
    steps: list[Any] = (error.field or "").split(".") if error.field else []
    cause = error.__cause__
    if cause is not None and hasattr(cause, "instance_path"):
        steps = ["value", *cause.instance_path]
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)
