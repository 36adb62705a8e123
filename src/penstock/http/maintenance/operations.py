"""What the OpenAPI document says of backups and scrubs."""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import (
    BackupRunning,
    InvalidBackupRequest,
    InvalidJson,
    InvalidStorageUrl,
    NotOnDisk,
    NumberTooLong,
    StorageDenied,
    StorageExtraMissing,
)
from penstock.http.maintenance.backup import BackupRequest
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import Answer, Body, Description, Operation, json
from penstock.http.openapi.schemas import (
    NUMBER,
    TEXT,
    array,
    nullable,
    record,
    reference,
    struct_schemas,
)

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_TIME: Final = "2027-01-15T08:00:00.000Z"
_FAILURE: Final = nullable(record({"code": TEXT, "detail": TEXT}))
_STATE: Final = {"enum": ["idle", "running", "done", "failed", "canceled"]}

_BACKUP: Final = {
    "id": TEXT,
    "cut_at": shared.TIME,
    "finished_at": shared.TIME,
    "streams": NUMBER,
    "segments": NUMBER,
    "bytes": NUMBER,
    "new_bytes": NUMBER,
    "version": TEXT,
    "damaged": array(TEXT),
}
_JOB: Final = {
    "state": _STATE,
    "destination": nullable(TEXT),
    "phase": nullable(TEXT),
    "began_at": nullable(shared.TIME),
    "ended_at": nullable(shared.TIME),
    "bytes_total": NUMBER,
    "bytes_done": NUMBER,
    "new_bytes": NUMBER,
    "backup": nullable(reference("Backup")),
    "error": _FAILURE,
}
_JOB_EXAMPLE: Final[dict[str, Any]] = {
    "state": "running",
    "destination": "s3://bucket/penstock",
    "phase": "segments",
    "began_at": _TIME,
    "ended_at": None,
    "bytes_total": 1_000_000,
    "bytes_done": 250_000,
    "new_bytes": 120_000,
    "backup": None,
    "error": None,
}
_PROBLEM: Final = record(
    {
        "code": TEXT,
        "file": TEXT,
        "position": nullable(NUMBER),
        "stream": nullable(TEXT),
        "what": TEXT,
        "advice": TEXT,
    }
)
_SCRUB: Final = {
    "state": _STATE,
    "began_at": nullable(shared.TIME),
    "ended_at": nullable(shared.TIME),
    "bytes_total": NUMBER,
    "bytes_done": NUMBER,
    "streams": NUMBER,
    "segments": NUMBER,
    "problem_count": NUMBER,
    "problems": array(_PROBLEM),
    "error": _FAILURE,
}
_SCRUB_EXAMPLE: Final[dict[str, Any]] = {
    "state": "done",
    "began_at": _TIME,
    "ended_at": _TIME,
    "bytes_total": 1_000_000,
    "bytes_done": 1_000_000,
    "streams": 12,
    "segments": 20,
    "problem_count": 0,
    "problems": [],
    "error": None,
}


def _job(status: int, description: str) -> Answer:
    return Answer(status, description, _NO_STORE, json(reference("BackupJob"), _JOB_EXAMPLE))


def _scrub(status: int, description: str) -> Answer:
    return Answer(status, description, _NO_STORE, json(reference("Scrub"), _SCRUB_EXAMPLE))


_BACKUPS: Final = (
    Operation(
        method="POST",
        path="/v1/backup",
        id="startBackup",
        summary="Begin a backup to a folder of the server's machine, or to an object store",
        description="Everything that was acknowledged before is in it. One runs at a time. "
        "Credentials are those of the server's environment. Ask for its state with GET.",
        tag="server",
        body=Body(
            json(reference("BackupRequest"), {"destination": "s3://bucket/penstock", "keep": 14})
        ),
        answers=(_job(202, "It has begun."),),
        errors=(
            InvalidJson,
            NumberTooLong,
            InvalidBackupRequest,
            InvalidStorageUrl,
            BackupRunning,
            NotOnDisk,
            StorageDenied,
            StorageExtraMissing,
        ),
    ),
    Operation(
        method="GET",
        path="/v1/backup",
        id="showBackup",
        summary="Show the backup that runs, or the last one since the start",
        tag="server",
        answers=(_job(200, "Its state. `idle`: there was none."),),
    ),
    Operation(
        method="DELETE",
        path="/v1/backup",
        id="cancelBackup",
        summary="Stop the backup that runs; earlier ones stay as they are",
        tag="server",
        answers=(_job(202, "It ends at its next step. Not an error if none runs."),),
    ),
)

_SCRUBS: Final = (
    Operation(
        method="POST",
        path="/v1/scrub",
        id="startScrub",
        summary="Check every checksum of the stored data in the background",
        description="If a scrub runs already, that one is shown.",
        tag="server",
        answers=(_scrub(202, "It has begun."),),
        errors=(NotOnDisk,),
    ),
    Operation(
        method="GET",
        path="/v1/scrub",
        id="showScrub",
        summary="Show the scrub that runs, or the last one since the start",
        tag="server",
        answers=(_scrub(200, "Its state. `idle`: there was none."),),
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas(
        {"BackupRequest": BackupRequest},
        {"BackupRequest": {"destination": {"minLength": 1}}},
    )
    components["Backup"] = record(_BACKUP)
    components["BackupJob"] = record(_JOB)
    components["Scrub"] = record(_SCRUB)
    return Description((*_BACKUPS, *_SCRUBS), components)
