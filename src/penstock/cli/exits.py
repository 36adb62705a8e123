"""The exit codes of the commands, and which failure ends with which."""

from __future__ import annotations

from penstock import errors
from penstock.errors import PenstockError

OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, REFUSED = range(7)
INTERRUPTED = 130

MEANINGS = {
    OK: "done; also when whoever read the output has closed the pipe",
    FAILURE: "it failed for a reason that has no code of its own; stderr says why",
    USAGE: "the command line was not understood (`verify`: the folder could not be checked)",
    NOT_FOUND: "there is no such stream, or its data is gone",
    CONFLICT: "the stream is closed, exists already, or somebody else has moved it on",
    UNREACHABLE: "the server cannot be reached",
    REFUSED: "the token is missing or wrong, or does not allow it",
    INTERRUPTED: "stopped with Ctrl-C",
}

# The first class that fits decides.
_CODES: tuple[tuple[type[PenstockError], int], ...] = (
    (errors.StaleEpoch, CONFLICT),
    (errors.StreamNotFound, NOT_FOUND),
    (errors.RouteNotFound, NOT_FOUND),
    (errors.SchemaNotFound, NOT_FOUND),
    (errors.TableNotFound, NOT_FOUND),
    (errors.FollowNotFound, NOT_FOUND),
    (errors.SubscriptionNotFound, NOT_FOUND),
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
