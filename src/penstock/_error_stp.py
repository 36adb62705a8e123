"""The errors of STP, and of the server's own requests to other servers.

Import errors from `penstock.errors`, which has all of them.
"""

from __future__ import annotations

from penstock._error_base import BadRequest, Conflict, Forbidden, PenstockError, ServerError


class InvalidUrl(BadRequest):
    code, title = "invalid-url", "Invalid URL"


class InvalidNotify(BadRequest):
    code, title = "invalid-notify", "Invalid Notify form"


class InvalidFollow(BadRequest):
    code, title = "invalid-follow", "Invalid description of what to follow"


class EgressRefused(Forbidden):
    """The server does not connect to there; nothing was sent."""

    code, title = "egress-refused", "The server does not connect there"


class MirrorReadOnly(Forbidden):
    code, title = "mirror-read-only", "A mirror is written by its source alone"


class FollowNotFound(PenstockError):
    status, code, title = 404, "follow-not-found", "The table follows nothing"


class FollowConflict(Conflict):
    code, title = "follow-conflict", "The table cannot follow this source"


class UnsupportedType(PenstockError):
    status, code, title = 415, "unsupported-media-type", "Unsupported media type"


class TooManyPeers(PenstockError):
    status, code, title = 429, "too-many-peers", "Too many peers, or too much for one peer"


class EgressFailed(ServerError):
    """Another server did not answer, or not in a way that can be used.

    `status_seen` is what it answered with, if it was not a success.
    """

    status, code, title = 502, "egress-failed", "Another server did not answer properly"
    status_seen: int | None = None
