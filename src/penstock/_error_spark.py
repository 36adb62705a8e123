"""Failures that no server reported: of the clients, and of Spark's sources and sinks.

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
