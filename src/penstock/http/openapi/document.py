"""The OpenAPI 3.1 document: the routes of the router, with what the dialects say of them.

Pure: routes and descriptions in, a document out. Routes without a description, and descriptions
without a route, are left out; a test finds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock import __version__
from penstock.errors import MethodNotAllowed, PenstockError, SubscriptionError
from penstock.http.openapi import parameters, schemas
from penstock.http.openapi.model import (
    ALWAYS,
    AT_PATH,
    CONTROLS,
    JSON,
    PROBLEM,
    Answer,
    Content,
    Description,
    Header,
    Operation,
    Parameter,
    Schema,
)

Templates = Mapping[str, Sequence[str]]
"""The methods that are served at each path template."""

DESCRIPTION: Final = (
    "Durable, replayable streams of changing state over HTTP. Every error is a problem document "
    "with a stable `code`. HEAD is served wherever GET is, OPTIONS everywhere; a method that a "
    "path does not serve is 405 with `Allow`. Query parameters that are not listed are ignored, "
    "unless they look like a misspelling."
)
TAGS: Final = {
    "streams": "Append-only streams of bytes or JSON messages.",
    "retention": "How much of a stream stays, and where it goes on.",
    "state": "Streams of changes, declared and folded to their current state.",
    "tables": "Streams that are read and written as tables of rows (STP).",
    "peers": "Notify, and mirrors of other servers' tables.",
    "proxy": "Responses of other servers, recorded into streams.",
    "subscriptions": "Durable cursors, with wakes by webhook or for pulling workers.",
    "access": "Tokens, signed links and cookies.",
    "pipelines": "Pipelines whose warehouses are beside this server.",
    "server": "The server itself.",
}
SCHEMES: Final[dict[str, Any]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of this server, or a JWT that it trusts.",
    },
    "link": {
        "type": "apiKey",
        "in": "query",
        "name": "link",
        "description": "The signature of a signed link; it stands for a token that may do one "
        "thing until it expires.",
    },
    "wake": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of a wake, from a claim or a webhook.",
    },
    "signature": {
        "type": "apiKey",
        "in": "header",
        "name": "STP-Signature",
        "description": "`t=<unix time>,v1=<HMAC-SHA256 of time, dot and body, in hex>`.",
    },
}
_DEFAULT: Final = ("bearer", "link")
_SHARED_MAX: Final = 4
"""Errors that one status of an operation may have for its response to be shared with others."""


def build(templates: Templates, described: Description, *, is_open: bool) -> dict[str, Any]:
    """Return the document. A server that `is_open` needs no token."""
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    responses = {"MethodNotAllowed": _error(405, [MethodNotAllowed])}
    for operation in with_heads(described.operations, templates):
        if operation.method in templates.get(operation.path, ()):
            item = paths.setdefault(operation.path, {})
            item[operation.method.lower()] = _operation(operation, responses, is_open=is_open)
            tags[operation.tag] = None
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in TAGS if tag in tags],
        "security": _security(_DEFAULT, is_open=is_open),
        "paths": paths,
        "components": {
            "securitySchemes": SCHEMES,
            "schemas": {"Problem": schemas.PROBLEM, **described.components},
            "responses": responses,
        },
    }


def with_heads(operations: Iterable[Operation], templates: Templates) -> list[Operation]:
    """Return the operations, with HEAD for each GET whose path serves it and has no own one."""
    described = {(operation.method, operation.path) for operation in operations}
    result: list[Operation] = []
    for operation in operations:
        result.append(operation)
        head = ("HEAD", operation.path)
        is_served = "HEAD" in templates.get(operation.path, ())
        if operation.method == "GET" and is_served and head not in described:
            result.append(_head(operation))
    return result


def undescribed(templates: Templates, operations: Iterable[Operation]) -> list[tuple[str, str]]:
    """Return the routes that no operation describes."""
    described = {(each.method, each.path) for each in with_heads(operations, templates)}
    routes = {(method, path) for path, methods in templates.items() for method in methods}
    return sorted(routes - described)


def unserved(templates: Templates, operations: Iterable[Operation]) -> list[tuple[str, str]]:
    """Return the operations that no route serves."""
    return sorted(
        (each.method, each.path)
        for each in operations
        if each.method not in templates.get(each.path, ())
    )


def _head(get: Operation) -> Operation:
    return replace(
        get,
        method="HEAD",
        id=f"{get.id}Head",
        summary=f"{get.summary} (headers only)",
        answers=tuple(answer._replace(content=(), links=()) for answer in get.answers),
    )


def _operation(operation: Operation, shared: dict[str, Any], *, is_open: bool) -> dict[str, Any]:
    """Return an operation; responses that others have too are put into `shared`."""
    content: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        content["description"] = operation.description
    if operation.parameters:
        content["parameters"] = [_parameter(each) for each in operation.parameters]
    body = operation.body
    if body is not None:
        content["requestBody"] = {"required": body.required, "content": _content(body.content)}
        if body.description:
            content["requestBody"]["description"] = body.description
    content["responses"] = _responses(operation, shared)
    if operation.security is not None:
        content["security"] = _security(operation.security, is_open=is_open)
    return content


def _security(names: Sequence[str], *, is_open: bool) -> list[dict[str, list[str]]]:
    schemes: list[dict[str, list[str]]] = [{name: []} for name in names]
    # A wake's token is checked by every server.
    return [*schemes, {}] if is_open and schemes and "wake" not in names else schemes


def _parameter(parameter: Parameter) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": parameter.name,
        "in": parameter.where,
        "description": parameter.description,
        "required": parameter.required,
        "schema": parameter.schema,
    }
    if parameter.example is not None:
        content["example"] = parameter.example
    return content


def _content(contents: Iterable[Content]) -> dict[str, Any]:
    rendered: dict[str, Any] = {}
    for media, schema, example in contents:
        rendered[media] = {} if schema is None else {"schema": schema}
        if example is not None:
            rendered[media]["example"] = example
    return rendered


def _responses(operation: Operation, shared: dict[str, Any]) -> dict[str, Any]:
    responses = {str(answer.status): _answer(answer) for answer in operation.answers}
    by_status: dict[int, list[type[PenstockError]]] = {}
    for error in _errors(operation):
        by_status.setdefault(error.status, []).append(error)
    has_body = operation.method != "HEAD"
    for status, errors in sorted(by_status.items()):
        response = _error(status, errors, has_body=has_body)
        answer = responses.get(str(status))
        if answer is not None:  # such as a 503 that is an answer of its own
            answer["content"] = {**answer.get("content", {}), **response.get("content", {})}
        elif len(errors) > _SHARED_MAX:
            responses[str(status)] = response
        else:
            name = "Or".join(sorted(error.__name__ for error in errors))
            name += "" if has_body else "WithoutBody"
            shared.setdefault(name, response)
            responses[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return responses


def _errors(operation: Operation) -> Iterable[type[PenstockError]]:
    """Return the errors of an operation, and those that follow from where it is."""
    at_path = AT_PATH if "{" in operation.path else ()
    is_control = operation.method == "POST" and "/__ds/" in operation.path
    return dict.fromkeys((*operation.errors, *at_path, *(CONTROLS if is_control else ()), *ALWAYS))


def _answer(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {"description": answer.description}
    if answer.headers:
        content["headers"] = _headers(answer.headers)
    if answer.content:
        content["content"] = _content(answer.content)
    if answer.links:
        content["links"] = {
            link.name: {"operationId": link.operation, "parameters": dict(link.parameters)}
            for link in answer.links
        }
    return content


def _headers(headers: Iterable[Header]) -> dict[str, Any]:
    return {
        header.name: {
            "description": header.description,
            "required": header.required,
            "schema": header.schema,
        }
        for header in headers
    }


def _error(
    status: int, errors: Sequence[type[PenstockError]], *, has_body: bool = True
) -> dict[str, Any]:
    """Return the response of a status: its codes, by media type."""
    codes: dict[str, list[str]] = {}
    for error in errors:
        media = JSON if issubclass(error, SubscriptionError) else PROBLEM
        codes.setdefault(media, []).append(error.code)
    response: dict[str, Any] = {"description": "; ".join(error.title for error in errors) + "."}
    if headers := _error_headers(status):
        response["headers"] = _headers(headers)
    if has_body:
        response["content"] = {
            media: {"schema": _problem(status, names)} for media, names in codes.items()
        }
    return response


def _error_headers(status: int) -> list[Header]:
    if status == 401:
        return [parameters.AUTHENTICATE]
    if status == 405:
        return [parameters.ALLOW]
    if status in (429, 503):
        return [parameters.RETRY_AFTER._replace(required=False)]
    return []


def _problem(status: int, codes: Sequence[str]) -> Schema:
    return {
        "allOf": [
            schemas.reference("Problem"),
            {"properties": {"status": {"const": status}, "code": {"enum": sorted(codes)}}},
        ]
    }
