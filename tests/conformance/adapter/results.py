"""Outcomes in the words of the adapter protocol: error codes, messages, chunks of data."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec

from penstock import errors
from penstock.protocol.headers import is_json

Result = dict[str, Any]


def describe(kind: str, error: Exception) -> Result:
    """An error of the tree in the words of the adapter protocol."""
    if not isinstance(error, errors.PenstockError):
        return failure(kind, _local_code(error), str(error) or type(error).__name__)
    message = f"{error.title}: {error.detail}"
    if isinstance(error, errors.ClientError):
        return failure(kind, _client_code(error), message)
    details = {
        "code": error.code,
        "producerEpoch": getattr(error, "epoch", None),
        "producerExpectedSeq": getattr(error, "expected", None),
        "producerReceivedSeq": getattr(error, "received", None),
    }
    given = {name: value for name, value in details.items() if value is not None}
    return failure(kind, _answer_code(error), message, status=error.status, details=given)


def _answer_code(error: errors.PenstockError) -> str:
    detail = error.detail.lower()
    if error.status == 404:
        return "NOT_FOUND"
    if isinstance(error, errors.StreamClosed):
        return "STREAM_CLOSED"
    if isinstance(error, errors.Conflict):
        # Other servers name the kind of conflict only in their text.
        return "SEQUENCE_CONFLICT" if "sequence" in detail else "CONFLICT"
    if error.status == 400 and ("offset" in detail or "invalid" in detail):
        return "INVALID_OFFSET"
    return "UNEXPECTED_STATUS"


def _client_code(error: errors.ClientError) -> str:
    if isinstance(error, errors.ProtocolError):
        return "PARSE_ERROR"
    if isinstance(error, errors.ConnectionFailed):
        is_late = isinstance(error.__cause__, httpx2.TimeoutException)
        return "TIMEOUT" if is_late else "NETWORK_ERROR"
    return "INTERNAL_ERROR"


def _local_code(error: Exception) -> str:
    if isinstance(error, NotImplementedError):
        return "NOT_SUPPORTED"
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    return "INVALID_ARGUMENT" if isinstance(error, TypeError | ValueError) else "INTERNAL_ERROR"


def failure(kind: str, code: str, message: str, **more: Any) -> Result:
    return {
        "type": "error",
        "success": False,
        "commandType": kind,
        "errorCode": code,
        "message": message,
        **more,
    }


def chunks_of(batch: Any) -> list[Result]:
    """A batch, or all of a read, as one chunk; messages of a JSON stream are one array."""
    if is_json(batch.content_type):
        text = msgspec.json.encode(batch.messages).decode() if batch.messages else ""
    else:
        text = batch.data.decode("utf-8", "replace")
    return [{"data": text, "offset": batch.next_offset}] if text else []
