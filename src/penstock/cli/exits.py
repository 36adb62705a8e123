"""The exit codes of the commands, and the code of each failure."""

from __future__ import annotations

from penstock import errors
from penstock.errors import PenstockError

OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, REFUSED = range(7)
INTERRUPTED = 130
HAS_TOKEN = "penstock.has_token"  # noqa: S105 - a key of click's meta: whether a token was sent

MEANINGS = {
    OK: "success, also if the reader of the output has closed the pipe",
    FAILURE: "a failure without a code of its own; stderr has the reason",
    USAGE: "the command line is invalid (`verify`: the folder cannot be checked)",
    NOT_FOUND: "the stream does not exist, or its data is gone",
    CONFLICT: "the stream is closed, already exists, or was changed by another writer",
    UNREACHABLE: "the server cannot be reached",
    REFUSED: "the token is missing, wrong or not sufficient",
    INTERRUPTED: "stopped with Ctrl-C",
}

# The first matching class decides.
_CODES: tuple[tuple[type[PenstockError], int], ...] = (
    (errors.StaleEpoch, CONFLICT),
    (errors.StreamNotFound, NOT_FOUND),
    (errors.RouteNotFound, NOT_FOUND),
    (errors.SchemaNotFound, NOT_FOUND),
    (errors.TableNotFound, NOT_FOUND),
    (errors.FollowNotFound, NOT_FOUND),
    (errors.NurlNotFound, NOT_FOUND),
    (errors.SubscriptionNotFound, NOT_FOUND),
    (errors.TokenNotFound, NOT_FOUND),
    (errors.Gone, NOT_FOUND),
    (errors.DataLost, NOT_FOUND),
    (errors.NoWarehouse, NOT_FOUND),
    (errors.WarehouseMismatch, CONFLICT),
    (errors.WarehouseInUse, CONFLICT),
    (errors.Conflict, CONFLICT),
    (errors.TailMoved, CONFLICT),
    (errors.ConnectionFailed, UNREACHABLE),
    (errors.Unauthorized, REFUSED),
    (errors.InvalidToken, REFUSED),
    (errors.Forbidden, REFUSED),
)


def exit_code(error: PenstockError) -> int:
    return next((code for cls, code in _CODES if isinstance(error, cls)), FAILURE)
