"""`/docs/api`: the OpenAPI document as one plain page. Pure: a document in, HTML out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from http import HTTPStatus
from typing import Any

from penstock.http.docs.page import link, page, prose, table

Json = Mapping[str, Any]
_EXAMPLE_CHARACTERS_MAX = 2000


def reference_page(document: Json) -> bytes:
    """Return the page: every operation by tag, then the schemas."""
    by_tag: dict[str, list[tuple[str, str, Json]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            # HEAD is served wherever GET is; the text at the top says so once.
            if method != "head" or "get" not in methods:
                by_tag.setdefault(operation["tags"][0], []).append((method, path, operation))
    info = document["info"]
    parts = [
        f"<p>{prose(info['description'])}</p>",
        f"<p>Version {escape(info['version'])}. For programs: "
        f"{link('../openapi.json', '`openapi.json`')}.</p>",
    ]
    parts.append("<h2>Contents</h2>")
    parts += [_contents(tag, by_tag[tag["name"]]) for tag in document["tags"]]
    for tag in document["tags"]:
        name = tag["name"]
        parts.append(f'<h2 id="{escape(name)}">{escape(name.capitalize())}</h2>')
        parts += [_operation(document, *each) for each in by_tag[name]]
    parts.append('<h2 id="schemas">Schemas</h2>')
    for name, schema in document["components"]["schemas"].items():
        parts.append(f'<h3 id="schema-{escape(name)}">{escape(name)}</h3>')
        parts += [f"<p>{prose(schema['description'])}</p>"] if "description" in schema else []
        parts.append(_schema_table(schema))
    return page("API reference", "\n".join(parts), root="../")


def _contents(tag: Json, operations: Iterable[tuple[str, str, Json]]) -> str:
    items = "".join(
        f"<li>{link('#' + operation['operationId'], operation['summary'])}</li>"
        for _, _, operation in operations
    )
    title = link("#" + tag["name"], tag["name"].capitalize())
    return (
        f'<h3>{title}</h3><p class="soft">{prose(tag["description"])}</p>'
        f'<ul class="columns">{items}</ul>'
    )


def _operation(document: Json, method: str, path: str, operation: Json) -> str:
    parts = [
        f'<h3 id="{escape(operation["operationId"])}">{escape(operation["summary"])}</h3>',
        f"<p><code>{method.upper()} {escape(path)}</code></p>",
    ]
    if "description" in operation:
        parts.append(f"<p>{prose(operation['description'])}</p>")
    if not operation.get("security", True):
        parts.append('<p class="soft">Needs no credentials.</p>')
    if operation.get("parameters"):
        parts.append("<h4>Parameters</h4>")
        parts.append(table(("name", "in", "type", "meaning"), _parameters(operation)))
    body = operation.get("requestBody")
    if body is not None:
        parts.append(f"<h4>Body{'' if body['required'] else ' (optional)'}</h4>")
        parts += [f"<p>{prose(body['description'])}</p>"] if "description" in body else []
        parts += _contents_of(body["content"])
    parts.append("<h4>Responses</h4>")
    parts.append(table(("status", "meaning", "content"), _responses(document, operation)))
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            parts += _examples(response.get("content", {}))
    return "\n".join(parts)


def _parameters(operation: Json) -> Iterator[list[str]]:
    for each in operation["parameters"]:
        required = " (required)" if each["required"] else ""
        example = f" Example: `{each['example']}`." if "example" in each else ""
        yield [
            f"<code>{escape(each['name'])}</code>{required}",
            each["in"],
            type_text(each["schema"]),
            prose(each["description"] + example),
        ]


def _responses(document: Json, operation: Json) -> Iterator[list[str]]:
    for status, response in operation["responses"].items():
        if "$ref" in response:
            response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
        phrase = HTTPStatus(int(status)).phrase
        kinds = []
        for media, content in response.get("content", {}).items():
            schema = content.get("schema", {})
            codes = _codes(schema)
            text = ", ".join(link(f"../problems/{code}", f"`{code}`") for code in codes)
            kinds.append(f"<code>{escape(media)}</code> {text or type_text(schema)}")
        headers = ", ".join(f"<code>{escape(name)}</code>" for name in response.get("headers", {}))
        meaning = prose(response["description"]) + (f"<br>Headers: {headers}" if headers else "")
        yield [f"{status} {phrase}", meaning, "<br>".join(kinds)]


def _codes(schema: Json) -> list[str]:
    codes: list[str] = []
    for part in schema.get("allOf", ()):
        codes += part.get("properties", {}).get("code", {}).get("enum", ())
    return codes


def _contents_of(contents: Json) -> list[str]:
    parts = []
    for media, content in contents.items():
        kind = type_text(content["schema"]) if "schema" in content else "any bytes"
        parts.append(f"<p><code>{escape(media)}</code> {kind}</p>")
    return parts + _examples(contents)


def _examples(contents: Json) -> list[str]:
    return [
        f"<pre><code>{escape(_example(content['example']))}</code></pre>"
        for content in contents.values()
        if "example" in content
    ]


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return text[:_EXAMPLE_CHARACTERS_MAX]


def _schema_table(schema: Json) -> str:
    properties = schema.get("properties")
    if not properties:
        return f"<p>{type_text(schema)}</p>"
    required = set(schema.get("required", ()))
    rows = [
        [
            f"<code>{escape(name)}</code>" + ("" if name in required else " (optional)"),
            type_text(each),
            prose(each.get("description", "")),
        ]
        for name, each in properties.items()
    ]
    return table(("member", "type", "meaning"), rows)


def type_text(schema: Json) -> str:
    """Return a schema in words, as HTML; components are links."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return link(f"#schema-{name}", name)
    for join in ("anyOf", "oneOf", "allOf"):
        if join in schema:
            word = " and " if join == "allOf" else " or "
            return word.join(type_text(each) for each in schema[join])
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const']))}</code>"
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema["enum"])
    kind = schema.get("type", "any value")
    kinds = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        return f"array of {type_text(schema.get('items', {}))}"
    if kind == "object" and schema.get("properties"):
        members = ", ".join(
            f"<code>{escape(name)}</code>: {type_text(each)}"
            for name, each in schema["properties"].items()
        )
        return f"object ({members})"
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, Mapping):
        return f"object of {type_text(values)}"
    return escape(kinds) + _bounds(schema)


def _bounds(schema: Json) -> str:
    names = {"format": "", "minimum": "≥ ", "maximum": "≤ ", "default": "default "}
    texts = [f"{word}{schema[name]}" for name, word in names.items() if name in schema]
    return f" ({escape(', '.join(texts))})" if texts else ""
