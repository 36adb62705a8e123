"""The OpenAPI document is valid, says the same as the router and the handlers, and is served."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from penstock import errors
from penstock.errors import ClientError, PenstockError, StoreError
from penstock.http import query
from penstock.http.compression import CODINGS
from penstock.http.dialect import Routes
from penstock.http.endpoint import public
from penstock.http.openapi.document import build, undescribed, unserved
from penstock.http.openapi.model import Answer, Description, Operation
from penstock.http.router import Router
from tests.helpers.app import Client, finish, make_request, with_app

METHODS = ("get", "head", "post", "put", "delete")
EXAMPLES = {"path": "chat/42", "id": "mailer", "name": "shop", "code": "stream-closed"}


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert method in METHODS
            yield path, method.upper(), operation


def described(client: Client) -> list[Operation]:
    dialects = client.app._dialects
    return [each for dialect in dialects for each in dialect.describe().operations]


def resolved(document: Mapping[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """A response, or the shared one that it refers to."""
    if "$ref" not in response:
        return response
    found: dict[str, Any] = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    return found


def concrete(path: str) -> str:
    """A URL of a path template."""
    return re.sub(r"\{(\w+)\}", lambda match: EXAMPLES[match[1]], path)


@with_app()
async def test_every_route_is_described_and_every_description_has_a_route(client: Client) -> None:
    templates = client.app._router.templates()
    assert undescribed(templates, described(client)) == []
    assert unserved(templates, described(client)) == []
    document = client.app.openapi.document()
    served = {(path, method) for path, methods in templates.items() for method in methods}
    assert {(path, method) for path, method, _ in operations(document)} == served


def test_a_route_without_description_and_a_description_without_route_are_named() -> None:
    def handler(path: str, request: Any) -> Any:
        raise NotImplementedError

    methods = {"GET": public(handler), "PUT": public(handler)}
    router = Router([Routes(fixed={b"/a": methods})], path_bytes_max=9)
    known = Operation(method="GET", path="/a", id="a", summary="", tag="server", answers=())
    other = Operation(method="GET", path="/b", id="b", summary="", tag="server", answers=())
    assert undescribed(router.templates(), [known, other]) == [("PUT", "/a")]
    assert unserved(router.templates(), [known, other]) == [("GET", "/b")]
    answered = Operation(
        method="GET", path="/a", id="a", summary="", tag="server", answers=(Answer(200, "Yes."),)
    )
    document = build(router.templates(), Description([answered, other]), is_open=True)
    assert list(document["paths"]) == ["/a"]


@with_app()
async def test_document_is_valid(client: Client) -> None:
    document = client.app.openapi.document()
    schemathesis.openapi.from_dict(document).validate()
    for name, schema in document["components"]["schemas"].items():
        jsonschema_rs.meta.validate({"$schema": DRAFT, **schema})
        assert re.fullmatch(r"[A-Z][A-Za-z]+", name)
    identifiers = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(identifiers)) == len(identifiers)
    for identifier in identifiers:
        assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", identifier), identifier
    for path, _, operation in operations(document):
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))
        for parameter in operation.get("parameters", ()):
            assert parameter["description"].endswith((".", ". ")), parameter


DRAFT = "https://json-schema.org/draft/2020-12/schema"


@with_app()
async def test_references_and_links_lead_somewhere(client: Client) -> None:
    document = client.app.openapi.document()
    identifiers = {operation["operationId"] for _, _, operation in operations(document)}
    used: set[str] = set()
    for node in nodes(document):
        if isinstance(target := node.get("$ref"), str):
            kind, name = target.removeprefix("#/components/").split("/")
            assert name in document["components"][kind], target
            used.add(f"{kind}/{name}")
        if "operationId" in node and "responses" not in node:
            assert node["operationId"] in identifiers
    for kind in ("schemas", "responses"):
        unused = {name for name in document["components"][kind] if f"{kind}/{name}" not in used}
        assert unused <= {"MethodNotAllowed"}


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from nodes(each)


@with_app()
async def test_examples_are_what_their_schemas_say(client: Client) -> None:
    document = client.app.openapi.document()
    checked = 0
    for node in nodes(document["paths"]):
        if "example" in node and "schema" in node:
            schema = {**node["schema"], "components": document["components"]}
            validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
            assert validator.is_valid(node["example"]), node
            checked += 1
    assert checked > 60


@with_app()
async def test_every_error_is_an_answer_of_some_operation(client: Client) -> None:
    document = client.app.openapi.document()
    codes: set[str] = set()
    for response in document["components"]["responses"].values():
        codes.update(codes_of(response))
    for _, _, operation in operations(document):
        for response in operation["responses"].values():
            codes.update(codes_of(resolved(document, response)))
    assert codes == {error.code for error in _errors(PenstockError)} - _NEVER_SENT


_NEVER_SENT = {
    # bases that nobody raises
    *("forbidden", "gone", "unprocessable", "server-error", "subscription-error"),
    # of folders and object stores; commands report them
    *("storage-failed", "object-not-found", "bucket-not-found", "storage-full"),
    # how a backup ended; told in the document of the backup, or by commands
    *("storage-unavailable", "backup-damaged", "backup-locked", "backup-mismatch"),
}


def _errors(error: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for each in error.__subclasses__():
        if each not in (ClientError, StoreError) and each.__module__ == errors.__name__:
            yield each
            yield from _errors(each)


def codes_of(response: Mapping[str, Any]) -> list[str]:
    codes: list[str] = []
    for content in response.get("content", {}).values():
        for part in content.get("schema", {}).get("allOf", ()):
            codes += part.get("properties", {}).get("code", {}).get("enum", ())
    return codes


@with_app()
async def test_query_parameters_are_those_that_the_handlers_accept(client: Client) -> None:
    accepted: dict[str, set[str]] = {}
    modules: set[str] = set()
    users: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if not name.startswith("penstock.http.") or module is query:
                continue
            if name.startswith(("penstock.http.forwarding.", "penstock.http.cluster.")):
                continue  # repeat, for several processes, what the handler of each one accepts
            for function in ("parse_query", "parse_pairs", "parse_lists"):
                if hasattr(module, function):
                    original = getattr(query, function)

                    def spy(
                        raw: bytes,
                        names: frozenset[str],
                        module: str = name,
                        original: Any = original,
                        **more: Any,
                    ) -> Any:
                        modules.add(module)
                        accepted.setdefault(current, set()).update(names)
                        return original(raw, names, **more)

                    users.add(name)
                    patch.setattr(module, function, spy)
        document = client.app.openapi.document()
        for path, method, operation in operations(document):
            current = operation["operationId"]
            if path == "/v1/audit":  # it is read like the stream that holds it
                continue
            await client.respond(method, concrete(path))
        assert modules == users, "a handler that takes a query has not been asked"
        accepted["readAudit"] = accepted["readStream"]
        accepted["describeAudit"] = accepted["describeStream"]
        for _, _, operation in operations(document):
            documented = {
                each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"
            }
            assert documented == accepted.get(operation["operationId"], set()), operation
    assert accepted["readStream"] >= {"offset", "live"}


@with_app()
async def test_document_is_served_with_a_tag_and_compressed(client: Client) -> None:
    plain = await client.send("GET", "/openapi.json")
    assert plain.status == 200
    assert plain.headers["content-type"] == "application/json"
    assert plain.json()["openapi"] == "3.1.0"
    assert plain.json() == client.app.openapi.document()
    for coding in CODINGS:
        packed = await client.send("GET", "/openapi.json", accept_encoding=coding)
        assert packed.headers["content-encoding"] == coding
        assert packed.headers["etag"] == "W/" + plain.headers["etag"]
        assert len(packed.body) < len(plain.body) / 5
        again = await client.send("GET", "/openapi.json", accept_encoding=coding)
        assert again.body is packed.body  # it is encoded once
    same = await client.send("GET", "/openapi.json", if_none_match=plain.headers["etag"])
    assert (same.status, same.body) == (304, b"")
    index = (await client.send("GET", "/")).json()
    assert index["openapi"] == "/openapi.json"


@with_app()
async def test_document_is_built_when_it_is_first_asked_for(client: Client) -> None:
    assert client.app.openapi._rendered is None
    await client.send("GET", "/openapi.json")
    rendered = client.app.openapi._rendered
    await client.send("GET", "/openapi.json")
    assert client.app.openapi._rendered is rendered is not None


@with_app(auth_token="s3cret")
async def test_document_of_a_server_with_a_token_asks_for_it(client: Client) -> None:
    document = client.app.openapi.document()
    assert document["security"] == [{"bearer": []}, {"link": []}]
    assert (await client.send("GET", "/openapi.json")).json() == document
    public = {
        operation["operationId"]
        for _, _, operation in operations(document)
        if operation.get("security") == []
    }
    for path, method, operation in operations(document):
        response = await finish_or_open(client, method, concrete(path))
        is_own = operation["operationId"] in public
        assert (response == 401) is not is_own, operation["operationId"]


@with_app()
async def test_document_of_an_open_server_asks_for_nothing(client: Client) -> None:
    document = client.app.openapi.document()
    assert {} in document["security"]


async def finish_or_open(client: Client, method: str, target: str) -> int:
    request = make_request(method, target)
    refused = client.app.refuse(request)
    if refused is not None:
        return (await finish(refused)).status
    answer = client.app.handle(request)
    return (answer if hasattr(answer, "status") else await answer).status
