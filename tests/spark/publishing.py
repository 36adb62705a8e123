"""A publisher without Spark: the rows that its queries are to have are given by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.spark.config import make_pipeline
from penstock.spark.pipeline.publish import Publisher
from penstock.spark.warehouse.events import BatchResult
from penstock.spark.warehouse.warehouse import Warehouse

_NOTHING = pa.schema([("key", pa.string()), ("n", pa.int64())]).empty_table()


class Rows:
    """In the place of a DataFrame."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def limit(self, most: int) -> Rows:
        return Rows(self._rows.slice(0, most))

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        return self._rows


class Results:
    """In the place of the views of a warehouse: what each query comes to."""

    def __init__(self) -> None:
        self.rows: dict[str, pa.Table] = {}

    def refresh(self) -> None:
        pass

    def sql(self, query: str) -> Rows:
        return Rows(self.rows.get(query, _NOTHING))


class Run:
    """A publisher over a warehouse with one more batch each time; its queries are called as they
    are named."""

    def __init__(self, url: str, folder: Path, *names: str, **settings: Any) -> None:
        run = settings.pop("run", {})
        self.folder = folder
        self.pipeline = make_pipeline(
            {
                "source": {"url": url, "streams": ["x"], "attempts": 2},
                "warehouse": {"path": str(folder)},
                "pipeline": run,
                "publish": {
                    name: {"sql": name, "to": f"{folder.name}/{name}", "chunk": 2, **settings}
                    for name in names or ("p",)
                },
            }
        )
        self.warehouse = Warehouse(str(folder))
        self.warehouse.open()
        self.results = Results()
        views: Any = self.results
        self.publisher = Publisher(self.pipeline, self.warehouse, views)
        self.publisher.open()

    def publish(self, rows: dict[str, Any] | None = None, **others: dict[str, Any]) -> int:
        """One more batch, after which the results are these; `rows` is that of `p`."""
        for name, result in {**others, **({} if rows is None else {"p": rows})}.items():
            table = [{"key": key, "n": n} for key, n in result.items()]
            self.results.rows[name] = pa.Table.from_pylist(table) if table else _NOTHING
        return self.batch()

    def batch(self) -> int:
        self.warehouse.events.add(BatchResult([], 0, 0, {}))
        return self.publisher.publish()

    def target(self, name: str = "p") -> str:
        return self.pipeline.publish[name].target

    @property
    def outbox(self) -> DeltaTable:
        return DeltaTable(f"{self.folder}/outbox")

    def outbox_rows(self) -> pa.Table:
        """The rows of the outbox, as any engine reads them."""
        return pa.table(self.outbox.to_pyarrow_table())


def folded(messages: list[Any]) -> dict[str, Any]:
    """What messages come to; each has to fit to what the ones before it came to."""
    found: dict[str, Any] = {}
    for message in messages:
        assert message.get("old_value") == found.get(message["key"])
        if message["headers"]["operation"] == "delete":
            del found[message["key"]]
        else:
            found[message["key"]] = message["value"]
    return found
