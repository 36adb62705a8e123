"""A dlt source: the state events of a Penstock stream, merged by key into any destination of dlt.

    pipeline = dlt.pipeline("shop", destination="duckdb", dataset_name="shop")
    pipeline.run(penstock_stream("http://127.0.0.1:4437", "shop/users"))

Each run continues after the offset of the last one, which dlt keeps with what it has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dlt

import penstock


@dlt.source
def penstock_stream(url: str, stream: str, token: str | None = None) -> Any:
    """The latest value of each entity of a stream, one table for each type."""

    @dlt.resource(
        name="entities",
        table_name=lambda row: row["_type"],
        primary_key=("_type", "_key"),
        write_disposition="merge",
        columns={"_deleted": {"hard_delete": True, "data_type": "bool"}},
    )
    def entities() -> Iterator[dict[str, Any]]:
        state = dlt.current.resource_state()
        with penstock.Client(url, token=token) as client:
            for batch in client.stream(stream).iter_batches(state.get("offset", "-1")):
                yield from (row for row in map(_row, batch.messages) if row is not None)
                state["offset"] = batch.next_offset

    return entities


def _row(event: dict[str, Any]) -> dict[str, Any] | None:
    headers = event.get("headers", {})
    if "operation" not in headers:
        return None  # a control event
    own = {"_type": event["type"], "_key": event["key"]}
    return {**event.get("value", {}), **own, "_deleted": headers["operation"] == "delete"}
