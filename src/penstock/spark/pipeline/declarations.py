"""Schemas from the server: what the streams of a pipeline declare for its types, and whether that
has changed since. Asks the server and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from penstock import limits
from penstock.client.requests import Request
from penstock.errors import InvalidPipeline, PenstockError
from penstock.spark.config import Pipeline, Source, check_expectations
from penstock.spark.server import Server, selects
from penstock.spark.type_schema import TypeSchema, type_schema
from penstock.spark.warehouse.declared import drift, noted, with_schemas
from penstock.spark.warehouse.warehouse import Warehouse

_PATH: Final = "/v1/schema"
_PATH_CHARACTERS: Final = "/!$&'()*+,;=:@~"
Notify = Callable[[str], None]


class _Entry(msgspec.Struct, frozen=True):
    path: str
    types: list[str]


class _Page(msgspec.Struct, frozen=True):
    streams: list[_Entry]
    next: str | None = None


def with_declarations(
    pipeline: Pipeline, warehouse: Warehouse, notify: Notify | None = None
) -> Pipeline:
    """The pipeline with the schemas that its streams declare now; changes since the last run are
    reported."""
    if not pipeline.server_types or set(pipeline.server_types) <= set(pipeline.types):
        return pipeline
    schemas = declared(pipeline.source, pipeline.server_types, pipeline.source.attempts)
    before = noted(warehouse)
    missing = [name for name in pipeline.server_types if name not in {**before, **schemas}]
    if missing:
        raise InvalidPipeline(
            f'types.{missing[0]}: the schema is "server", and no stream of source.streams declares '
            "the type. Declare it (`penstock schema set STREAM FILE`), or write the schema here."
        )
    for name, change in drifts(before, schemas).items():
        if notify is not None:
            notify(f"types.{name}: the server's declaration has changed: {change}")
    resolved = with_schemas(pipeline, {**before, **schemas})
    for name in pipeline.server_types:
        check_expectations(name, resolved.types[name], pipeline.expect.get(name, ()))
    return resolved


def drifts(before: dict[str, TypeSchema], after: dict[str, TypeSchema]) -> dict[str, str]:
    """What has changed for each type, as clauses."""
    clauses = {
        name: drift(schema, after[name]) if name in after else "no stream declares it any more"
        for name, schema in before.items()
    }
    return {name: clause for name, clause in clauses.items() if clause is not None}


def declared(
    source: Source, types: tuple[str, ...], attempts_max: int
) -> dict[str, TypeSchema]:  # fmt: skip
    """The schemas of these types in the declarations of the selected streams, which have to
    agree."""
    server = Server(source.url, source.token, attempts_max)
    documents: dict[str, tuple[str, Any]] = {}
    for entry in _entries(server):
        chosen = [name for name in types if name in entry.types]
        if not chosen or not selects("penstock", source.streams, entry.path):
            continue
        declaration = _get(server, f"{_PATH}/{quote(entry.path, safe=_PATH_CHARACTERS)}")
        for name in chosen:
            document = declaration["types"][name]["schema"]
            stream, other = documents.setdefault(name, (entry.path, document))
            if other != document:
                raise InvalidPipeline(
                    f"types.{name}: the streams {stream} and {entry.path} declare the type "
                    "differently. Declare it alike in both, or write the schema here."
                )
    return {name: _schema(name, *found) for name, found in documents.items()}


def _schema(name: str, stream: str, document: Any) -> TypeSchema:
    if not isinstance(document, dict):
        document = {}
    try:
        return type_schema(document)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"types.{name}, as {stream} declares it: {error.detail}") from None


def _entries(server: Server) -> Iterator[_Entry]:
    """The declared streams, page by page."""
    after = ""
    while True:
        params = {"after": after} if after else {}
        page = msgspec.convert(_get(server, _PATH, params), _Page)
        yield from page.streams
        if page.next is None:
            return
        after = page.next


def _get(server: Server, path: str, params: dict[str, str] | None = None) -> Any:
    request = Request("GET", server.url + path, params=params or {})
    return msgspec.json.decode(server.send(request).body)


class DriftWatch:
    """Looks at the declarations every so often while a pipeline runs."""

    def __init__(self, pipeline: Pipeline, notify: Notify) -> None:
        self._pipeline = pipeline
        self._notify = notify
        self._next_s = time.monotonic() + limits.PIPELINE_DRIFT_INTERVAL_S
        self.drifts: dict[str, str] = {}

    def look(self) -> None:
        """Report what has changed since the run started; a server that does not answer is no
        reason to stop here."""
        names = self._pipeline.server_types
        if not names or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + limits.PIPELINE_DRIFT_INTERVAL_S
        before = {name: self._pipeline.types[name] for name in names}
        try:
            current = drifts(before, declared(self._pipeline.source, names, 1))
        except InvalidPipeline as error:
            current = dict.fromkeys(names, error.detail.rstrip("."))
        except PenstockError:
            return
        for name, change in current.items():
            if self.drifts.get(name) != change:
                self._notify(f"types.{name}: the server's declaration has changed: {change}. "
                             "Restart the pipeline to use it.")  # fmt: skip
        self.drifts = current
