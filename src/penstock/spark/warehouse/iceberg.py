"""Iceberg metadata over the data files of a warehouse, written by PyIceberg: each table of the
warehouse is an Iceberg table, too, as of one of its versions. Copies no data.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock.errors import InvalidPipeline
from penstock.spark.config import Pipeline
from penstock.spark.warehouse.delta import Table
from penstock.spark.warehouse.events import EVENTS
from penstock.spark.warehouse.storage import is_remote
from penstock.spark.warehouse.warehouse import Warehouse

VERSION: Final = "penstock.delta-version"
# Files belong to the Delta tables, which vacuum them: no engine of Iceberg may remove any.
_PROPERTIES: Final = {"gc.enabled": "false", "write.delete.mode": "copy-on-write"}


class IcebergTable(NamedTuple):
    """An Iceberg table after an export."""

    name: str
    version: int  # of the Delta table
    rows: int


def export(pipeline: Pipeline) -> list[IcebergTable]:
    """Bring the Iceberg tables up to the current versions of the warehouse."""
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    warehouse.need()
    catalog = _catalog(pipeline)
    database = pipeline.warehouse.database
    catalog.create_namespace_if_not_exists(database)
    names = warehouse.events.record.named(pipeline.types)
    sources = {"events": (warehouse.events.uri, EVENTS)}
    for entity in warehouse.types():
        if entity in names:
            sources[f"state_{names[entity]}"] = (warehouse.state_uri(entity), None)
    found = []
    for name, (uri, schema) in sources.items():
        table = Table(uri, schema, warehouse.options)
        if table.exists:
            found.append(_export(catalog, f"{database}.{name}", table))
    return found


def _catalog(pipeline: Pipeline) -> Any:
    if not pipeline.warehouse.iceberg:
        raise InvalidPipeline(
            "warehouse.iceberg is missing: the properties of a catalog of PyIceberg, such as "
            '{type = "sql", uri = "sqlite:////srv/iceberg.db", warehouse = "file:///srv/iceberg"}.'
        )
    try:
        load_catalog = import_module("pyiceberg.catalog").load_catalog
    except ModuleNotFoundError as error:
        raise InvalidPipeline(
            f"Iceberg metadata needs the package {error.name}: pip install "
            "'pyiceberg[pyarrow,sql-sqlite]'."
        ) from None
    return load_catalog("penstock", **pipeline.warehouse.iceberg)


def _export(catalog: Any, name: str, source: Table) -> IcebergTable:
    version, files = source.version or 0, source.files()
    rows = sum(file.rows for file in files)
    columns = source.columns
    if not catalog.table_exists(name):
        catalog.create_table(name, schema=columns, properties=_PROPERTIES)
    table = catalog.load_table(name)
    if table.properties.get(VERSION) == str(version):
        return IcebergTable(name, version, rows)
    if not _has_columns(table, columns):
        # Columns were changed: all files are others, and nothing of the table is worth keeping.
        catalog.drop_table(name)
        table = catalog.create_table(name, schema=columns, properties=_PROPERTIES)
    wanted = {_uri(file.path) for file in files}
    current = {task.file.file_path for task in table.scan().plan_files()}
    with table.transaction() as transaction:  # one commit of the catalog: readers see all of it
        if current - wanted:
            transaction.delete("true")  # whole files, so that none is written
            current = set()
        if wanted - current:
            transaction.add_files(sorted(wanted - current), check_duplicate_files=False)
        transaction.set_properties({VERSION: str(version)})
    return IcebergTable(name, version, rows)


def _has_columns(table: Any, columns: pa.Schema) -> bool:
    """Whether an Iceberg table has the columns of the Delta table."""
    current = table.schema().as_arrow()
    return [(f.name, _plain(f.type)) for f in current] == [
        (f.name, _plain(f.type)) for f in columns
    ]


def _plain(kind: pa.DataType) -> str:
    """A type as Iceberg knows it: it has fewer, and other names for items."""
    text = str(kind).replace("large_", "").replace(" not null", "")
    for narrow in ("int8", "int16"):
        text = text.replace(narrow, "int32")
    return "".join(text.replace("element", "item").split())


def _uri(path: str) -> str:
    return path if is_remote(path) else f"file://{path}"
