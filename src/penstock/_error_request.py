"""Requests that say something wrong, 400: a branch of the tree that `penstock.errors` draws.

Import errors from there.
"""

from __future__ import annotations

from penstock._error_base import BadRequest


class InvalidOffset(BadRequest):
    code, title = "invalid-offset", "Invalid offset"


class OffsetBeyondTail(BadRequest):
    code, title = "offset-beyond-tail", "Offset beyond the end of the stream"


class OffsetNotAligned(BadRequest):
    code, title = "offset-not-aligned", "Offset is not a message boundary"


class InvalidForkOffset(BadRequest):
    code, title = "invalid-fork-offset", "Invalid fork offset"


class InvalidTtl(BadRequest):
    code, title = "invalid-ttl", "Invalid Stream-TTL"


class InvalidExpiresAt(BadRequest):
    code, title = "invalid-expires-at", "Invalid Stream-Expires-At"


class ConflictingExpiry(BadRequest):
    code, title = "conflicting-expiry", "Both Stream-TTL and Stream-Expires-At"


class InvalidProducer(BadRequest):
    code, title = "invalid-producer", "Invalid producer headers"


class EpochStart(BadRequest):
    code, title = "epoch-must-start-at-zero", "A new producer epoch starts at sequence 0"


class InvalidStreamSeq(BadRequest):
    code, title = "invalid-stream-seq", "Invalid Stream-Seq"


class InvalidContentType(BadRequest):
    code, title = "invalid-content-type", "Invalid Content-Type"


class MissingContentType(BadRequest):
    code, title = "missing-content-type", "Content-Type is required"


class InvalidPath(BadRequest):
    code, title = "invalid-path", "Invalid stream path"


class InvalidParameter(BadRequest):
    code, title = "invalid-parameter", "Invalid query parameter"


class InvalidJson(BadRequest):
    code, title = "invalid-json", "Invalid JSON"


class EmptyArray(BadRequest):
    code, title = "empty-array", "Empty JSON array"


class EmptyBody(BadRequest):
    code, title = "empty-body", "Empty body"
