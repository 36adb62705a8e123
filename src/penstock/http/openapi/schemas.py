"""JSON schemas of documents: those of msgspec structs, and a few helpers to write others.

Components are collected by name; `reference` names one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock.http.openapi.model import Schema

_TEMPLATE: Final = "#/components/schemas/{name}"

NULL: Final[Schema] = {"type": "null"}
TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}

PROBLEM: Final[Schema] = {
    "type": "object",
    "description": "RFC 9457 problem details. `code` is stable; `detail` is for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "pattern": "^/problems/[a-z-]+$"},
        "title": TEXT,
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": TEXT,
        "code": {"type": "string", "pattern": "^[a-z-]+$"},
    },
}


def reference(name: str) -> Schema:
    """Return a schema that is the component `name`."""
    return {"$ref": _TEMPLATE.format(name=name)}


def record(properties: Mapping[str, Schema], *, optional: Iterable[str] = ()) -> Schema:
    """Return the schema of an object that has all of `properties`, except for those that are
    `optional`, and no others."""
    skipped = set(optional)
    return {
        "type": "object",
        "required": [name for name in properties if name not in skipped],
        "properties": dict(properties),
        "additionalProperties": False,
    }


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def struct_schemas(
    structs: Mapping[str, type], bounds: Mapping[str, Mapping[str, Schema]] | None = None
) -> dict[str, Schema]:
    """Return the schemas of structs by the name of their component.

    `bounds` are rules that a handler has beside the types: members of components, and what their
    schemas say in addition.
    """
    _, components = msgspec.json.schema_components(structs.values(), ref_template=_TEMPLATE)
    names = {struct.__name__: name for name, struct in structs.items()}
    schemas: dict[str, Any] = {
        names.get(name, name): _renamed(schema, names) for name, schema in components.items()
    }
    for name, members in (bounds or {}).items():
        for member, more in members.items():
            schemas[name]["properties"][member] |= more
    for name, schema in schemas.items():
        schema["title"] = name
    return schemas


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    """Return a schema whose references name components as `names` does."""
    if isinstance(schema, list):
        return [_renamed(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed(value, names) for key, value in schema.items()}
    target = renamed.get("$ref")
    if isinstance(target, str):
        name = target.rpartition("/")[2]
        renamed["$ref"] = _TEMPLATE.format(name=names.get(name, name))
    return renamed
