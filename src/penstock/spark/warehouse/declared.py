"""The schemas of types that are declared on the server (`schema = "server"`), as the last run took
them: noted beside the tables, so that these can be read without the server.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.spark.config import Pipeline
from penstock.spark.type_schema import TypeSchema, type_schema
from penstock.spark.warehouse.evolution import evolution
from penstock.spark.warehouse.state import state_schema
from penstock.spark.warehouse.warehouse import Warehouse

_NOTE: Final = "declared.json"


def noted(warehouse: Warehouse) -> dict[str, TypeSchema]:
    """The schemas that the last run took from the server."""
    documents = warehouse.note(_NOTE).read(dict[str, dict[str, Any]]) or {}
    return {name: type_schema(document) for name, document in documents.items()}


def with_noted(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the schemas that the last run took from the server."""
    if not pipeline.server_types:
        return pipeline
    schemas = noted(Warehouse(pipeline.warehouse.path, pipeline.warehouse.options))
    return with_schemas(pipeline, schemas)


def with_schemas(pipeline: Pipeline, schemas: dict[str, TypeSchema]) -> Pipeline:
    """The pipeline with these schemas for the types that are declared on the server."""
    chosen = {name: schemas[name] for name in pipeline.server_types if name in schemas}
    return msgspec.structs.replace(pipeline, types={**pipeline.types, **chosen})


def note(warehouse: Warehouse, pipeline: Pipeline) -> None:
    """Note the schemas of the pipeline, if they are others than the noted ones. For the writer."""
    schemas = {name: pipeline.types[name] for name in pipeline.server_types}
    before = noted(warehouse)
    if {name: each.version for name, each in schemas.items()} != {
        name: each.version for name, each in before.items()
    }:
        warehouse.note(_NOTE).write({name: each.source for name, each in schemas.items()})


def drift(before: TypeSchema, after: TypeSchema) -> str | None:
    """What has changed from one schema to the other, as a clause; None: nothing."""
    if before.version == after.version:
        return None
    changes = str(evolution(state_schema(before), state_schema(after)))
    return changes or "other values are valid, the columns are the same"
