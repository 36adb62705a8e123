"""What can go wrong with a pipeline, beside what errors.py knows already.

ClientError
├── InvalidPipeline
├── NoWarehouse · WarehouseMismatch · WarehouseInUse · WarehouseBroken
└── QueryFailed · PublishFailed · RewriteFailed
"""

from __future__ import annotations

from penstock.errors import ClientError


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


class WarehouseBroken(ClientError):
    """Tables that cannot be read or written: damaged, not allowed, or out of reach."""

    status, code, title = 502, "warehouse-broken", "Warehouse cannot be used"


class QueryFailed(ClientError):
    """A query of the user's own that cannot be run."""

    status, code, title = 422, "query-failed", "Query failed"


class PublishFailed(ClientError):
    """The result of a query that cannot be sent where it should go."""

    status, code, title = 409, "publish-failed", "Result cannot be published"


class RewriteFailed(ClientError):
    """A stream whose state cannot be put into a new one as things stand."""

    status, code, title = 409, "rewrite-failed", "Stream cannot be rewritten"
