"""The last message of a stream whose source has failed, in the form of its content type.

A reader of a closed stream cannot tell a whole answer from half of one by the stream alone; this
record says so in the stream itself, where the content type has a form for it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock.protocol.headers import is_json, media_type

Ending = Literal["failed", "aborted", "interrupted"]

MESSAGES: Final[dict[Ending, str]] = {
    "failed": "The source of this stream failed.",
    "aborted": "The source of this stream was cancelled.",
    "interrupted": "The server was stopped while this stream was written.",
}
EVENTS: Final = "text/event-stream"
LINES: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})


def error_record(content_type: str, ending: Ending, message: str = "") -> bytes | None:
    """Return the record as one message of the stream; None if the type has no form for it.

    JSON has `{"error": …}`, lines of JSON have it as a line, and server-sent events as an event
    `error`, in the form that the clients of OpenAI and Anthropic raise as an error.
    """
    error = {"type": ending, "message": message or MESSAGES[ending]}
    kind = media_type(content_type)
    if is_json(content_type):
        return msgspec.json.encode({"error": error})
    if kind in LINES:
        return msgspec.json.encode({"error": error}) + b"\n"
    if kind == EVENTS:
        document = msgspec.json.encode({"type": "error", "error": error})
        return b"event: error\ndata: " + document + b"\n\n"
    return None
