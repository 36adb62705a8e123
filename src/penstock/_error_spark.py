"""Failures that no server reported: of the clients, of Spark's sources and sinks, of the pipeline.

Import errors from `penstock.errors`, which has all of them.
"""

from __future__ import annotations

from penstock._error_base import PenstockError


class ClientError(PenstockError):
    """A failure that no server reported."""

    code, title = "client-error", "Client error"


class InvalidOption(ClientError):
    """An option of a Spark source or sink that is missing, unknown or out of range."""

    status, code, title = 400, "invalid-option", "Invalid option of a Spark source or sink"


class DataLost(ClientError):
    """What a query still had to read is gone: deleted, made anew, or trimmed."""

    status, code, title = 410, "data-lost", "Data that was not read yet is gone"


class NotWritable(ClientError):
    """Rows that cannot be sent as what the sink was told to send."""

    status, code, title = 422, "not-writable", "Rows cannot be written"


class JavaMissing(ClientError):
    """Spark runs on Java, and none was found that will do."""

    code, title = "java-missing", "No Java that Spark can use"


class InvalidPipeline(ClientError):
    """A pipeline's settings that cannot be used, or that do not fit its tables."""

    status, code, title = 400, "invalid-pipeline", "Invalid pipeline"


class NoWarehouse(ClientError):
    """There are no tables yet where the pipeline keeps them."""

    status, code, title = 404, "no-warehouse", "No warehouse"


class WarehouseMismatch(ClientError):
    """The tables of a pipeline do not stand where its checkpoint does."""

    status, code, title = 409, "warehouse-mismatch", "Checkpoint and warehouse do not match"


class WarehouseInUse(ClientError):
    """Another run writes the same tables, or has taken them over."""

    status, code, title = 409, "warehouse-in-use", "Warehouse is in use"


class QueryFailed(ClientError):
    """A query of the user's own that cannot be run."""

    status, code, title = 422, "query-failed", "Query failed"
