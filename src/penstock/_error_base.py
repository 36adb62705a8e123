"""The trunk of the error tree: what every error has, and the branches that others grow from.

Import errors from `penstock.errors`, which has all of them.
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of the tree. `detail` says what was wrong and what to do about it.

    The clients raise the same classes for what a server answers; `status`, `headers` and `detail`
    are then those of the answer.
    """

    status = 500
    code = "internal"
    title = "Internal error"

    def __init__(self, detail: str, **headers: str) -> None:
        """Header names are given with underscores: ``Stream_Closed="true"``."""
        super().__init__(detail)
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def members(self) -> dict[str, object]:
        """What a problem document says beside the usual: more for programs than for people."""
        return {}

    def _number(self, header: str) -> int | None:
        text = self.headers.get(header, "")
        return int(text) if text.isascii() and text.isdigit() else None


class BadRequest(PenstockError):
    status, code, title = 400, "bad-request", "Bad request"


class Forbidden(PenstockError):
    status, code, title = 403, "forbidden", "Forbidden"


class Conflict(PenstockError):
    status, code, title = 409, "conflict", "Conflict"


class Gone(PenstockError):
    status, code, title = 410, "gone", "Gone"


class ServerError(PenstockError):
    """The server could not do what was asked; the same request may work later."""

    status, code, title = 500, "server-error", "Server error"
