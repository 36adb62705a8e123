"""The cost of checking values against a JSON Schema: an upper bound, from the schema alone.

A reference stands for everything it names, so a schema of a few lines can mean more work than any
machine does. Pure: knows the keywords that apply schemas, and nothing of the library that checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from penstock import limits
from penstock.protocol.json_mode import nesting

# Keywords whose subschemas apply to the same place of a value as the schema itself.
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE_MAPS: Final = ("dependentSchemas", "dependencies")
# Keywords whose subschemas may all apply to the same member of a value.
_MEMBERS: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_META_SCHEMAS: Final = ("http://json-schema.org/", "https://json-schema.org/")

# Steps are about 25 ns each; the weights are measured.
_STEPS_OF_ALTERNATIVE: Final = 32
"""An alternative that does not hold becomes a part of the error."""
_STEPS_OF_PATTERN: Final = 8
_STEPS_OF_CONTAINER: Final = 16
"""Comparing an object or an array with one of `enum`; scalars are looked up."""
_UNEVALUATED: Final = 3
"""How often `unevaluated…` repeats the subschemas beside it."""
_META_STEPS: Final = 2000

_NODE_MARKS: Final = (b",", b"[", b"{")


class TooCostly(ValueError):
    """A schema that no server should check values against."""


class SchemaCost(NamedTuple):
    """What a schema costs at most.

    `steps` is the work for one place of a value. `branches` is how often one level of a recursion
    leads to the same place: from 2 on, the work doubles with every level of a value. `patterns` is
    the number of regular expressions.
    """

    steps: int
    branches: int
    patterns: int
    unresolved: str | None = None
    """A reference that leads out of the document, so that its cost is unknown."""

    def of(self, raw: bytes) -> int:
        """Return the steps of checking a value in JSON."""
        steps = self.steps * nodes(raw) + self.patterns * len(raw) // 8
        if self.branches > 1:
            steps *= self.branches ** nesting(raw, depth_max=64)
        return steps


def nodes(raw: bytes) -> int:
    """Return how many values are in JSON, at most."""
    return 1 if raw[:1] == b'"' else 1 + sum(map(raw.count, _NODE_MARKS))


def measure(document: Any) -> SchemaCost:
    """Return the cost of a JSON Schema; raise TooCostly if it is beyond the limits."""
    if not isinstance(document, dict):
        return SchemaCost(1, 0, 0)
    walk = _Walk(document)
    cost = walk.cost(document, 0)
    return SchemaCost(cost.steps, walk.branches, walk.patterns, walk.unresolved)


class _Cost(NamedTuple):
    steps: int
    recursions: int
    """How many references lead back to a schema that is being applied, for one place."""


_LEAF: Final = _Cost(1, 0)
_RECURSION: Final = _Cost(1, 1)


class _Walk:
    """One document: its schemas by identity, and what they cost.

    Where it is not certain which schema a reference names, all candidates count.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._bases: dict[int, str] = {}
        self._resources: dict[str, list[Any]] = {"": [document]}
        self._anchors: dict[tuple[str, str], list[Any]] = {}
        self._dynamic: dict[str, list[Any]] = {}
        self._costs: dict[int, _Cost] = {}
        self._open: set[int] = set()
        self.branches = 0
        self.patterns = 0
        self.unresolved: str | None = None
        self._collect(document)

    # -- names

    def _collect(self, document: Any) -> None:
        """Find every schema that has a name, and the base of its references."""
        pending = [(document, "")]
        while pending:
            value, base = pending.pop()
            if isinstance(value, dict):
                base = self._name(value, base)
                self._bases[id(value)] = base
            pending += [(each, base) for each in _members(value)]

    def _name(self, schema: dict[str, Any], base: str) -> str:
        for keyword in ("$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str):
                address, anchor = urldefrag(_join(base, name))
                if anchor:
                    self._anchors.setdefault((address, anchor), []).append(schema)
                if not name.startswith("#"):
                    base = address
                    self._resources.setdefault(base, []).append(schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._anchors.setdefault((base, name), []).append(schema)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(name, []).append(schema)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(schema)
        return base

    def _targets(self, schema: dict[str, Any], keyword: str) -> list[Any]:
        """Return the schemas that a reference may name."""
        reference = schema.get(keyword)
        if not isinstance(reference, str) or _is_meta(reference):
            return []
        address, fragment = urldefrag(_join(self._bases.get(id(schema), ""), reference))
        resources = self._resources.get(address, [])
        if not fragment:
            targets = list(resources)
        else:
            pointed = [_at_pointer(each, unquote(fragment)) for each in resources]
            targets = [each for each in pointed if each is not None]
            targets += self._anchors.get((address, fragment), [])
        if keyword != "$ref":
            targets += self._dynamic.get(fragment, [])
        if not targets:
            self.unresolved = self.unresolved or reference
        return targets

    # -- costs

    def cost(self, schema: Any, depth: int) -> _Cost:
        if not isinstance(schema, dict):
            return _LEAF
        key = id(schema)
        known = self._costs.get(key)
        if known is not None:
            return known
        if key in self._open:
            return _RECURSION
        if depth > limits.SCHEMA_DEPTH_MAX:
            raise TooCostly(
                f"its subschemas and references are more than {limits.SCHEMA_DEPTH_MAX} levels "
                "deep; make them flatter"
            )
        self._open.add(key)
        cost = self._cost(schema, depth + 1)
        self._open.discard(key)
        if cost.steps > limits.SCHEMA_STEPS_MAX:
            raise TooCostly(
                "its subschemas, with every reference replaced by what it names, can apply more "
                f"than {limits.SCHEMA_STEPS_MAX} times to one value; nest fewer of them"
            )
        self.branches = max(self.branches, cost.recursions)
        self._costs[key] = cost
        return cost

    def _cost(self, schema: dict[str, Any], depth: int) -> _Cost:
        in_place = [self.cost(each, depth) for each in self._applied_here(schema)]
        steps = 1 + self._own_steps(schema) + sum([cost.steps for cost in in_place])
        recursions = sum([cost.recursions for cost in in_place])
        if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
            steps, recursions = _UNEVALUATED * steps, _UNEVALUATED * recursions
        # A member of a value has one name and one index, so that one of these applies to it.
        exclusive = [self.cost(each, depth) for each in _exclusive(schema)]
        steps += max([cost.steps for cost in exclusive], default=0)
        recursions += max([cost.recursions for cost in exclusive], default=0)
        shared = [self.cost(each, depth) for each in _shared(schema)]
        steps += sum([cost.steps for cost in shared])
        recursions += sum([cost.recursions for cost in shared])
        return _Cost(steps, recursions)

    def _applied_here(self, schema: dict[str, Any]) -> Iterator[Any]:
        for keyword in _IN_PLACE:
            if keyword in schema:
                yield schema[keyword]
        for keyword in _IN_PLACE_LISTS:
            yield from _list(schema.get(keyword))
        for keyword in _IN_PLACE_MAPS:
            yield from _values(schema.get(keyword))
        for keyword in _REFERENCES:
            yield from self._targets(schema, keyword)

    def _own_steps(self, schema: dict[str, Any]) -> int:
        """Return the steps of a schema's keywords that apply no other schema."""
        steps = 0
        for keyword in ("anyOf", "oneOf"):
            steps += _STEPS_OF_ALTERNATIVE * len(_list(schema.get(keyword)))
        choices = _list(schema.get("enum"))
        if len(choices) > limits.SCHEMA_ENUM_MAX:
            raise TooCostly(
                f"an enum has {len(choices)} values, more than {limits.SCHEMA_ENUM_MAX}; use a "
                "pattern or a range"
            )
        for choice in [*choices, schema.get("const")]:
            if isinstance(choice, dict | list):
                steps += _STEPS_OF_CONTAINER * (1 + len(choice))
        patterns = len(_values(schema.get("patternProperties")))
        patterns += isinstance(schema.get("pattern"), str)
        self.patterns += patterns
        if self.patterns > limits.SCHEMA_PATTERNS_MAX:
            raise TooCostly(
                f"it has more than {limits.SCHEMA_PATTERNS_MAX} regular expressions (pattern, "
                "patternProperties); share or leave out some"
            )
        if any(_is_meta(schema.get(keyword)) for keyword in _REFERENCES):
            steps += _META_STEPS
        return steps + _STEPS_OF_PATTERN * patterns


def _exclusive(schema: dict[str, Any]) -> Iterator[Any]:
    yield from _values(schema.get("properties"))
    yield from _list(schema.get("prefixItems"))
    yield from _list(schema.get("items"))


def _shared(schema: dict[str, Any]) -> Iterator[Any]:
    yield from _values(schema.get("patternProperties"))
    for keyword in _MEMBERS:
        if isinstance(schema.get(keyword), dict):
            yield schema[keyword]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else []


def _members(value: Any) -> list[Any]:
    return [each for each in _list(value) or _values(value) if isinstance(each, dict | list)]


def _is_meta(reference: Any) -> bool:
    return isinstance(reference, str) and reference.startswith(_META_SCHEMAS)


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:  # it is no URI; the compiler of schemas says so
        return reference


def _at_pointer(value: Any, pointer: str) -> Any:
    """Return the value at a JSON Pointer; None if there is none."""
    if not pointer.startswith("/"):
        return None
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value
