"""`/v1/backup`: POST begins a backup, GET shows it or the last one, DELETE stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import InvalidBackupRequest, InvalidStorageUrl
from penstock.http.documents import document
from penstock.limits import INTEGER_MAX
from penstock.log.backup.repository import Keep
from penstock.protocol.headers import format_expires_at
from penstock.protocol.json_mode import frame

if TYPE_CHECKING:
    from penstock.http.message import Request, Response
    from penstock.log.backup.jobs import BackupJob, Backups
    from penstock.log.backup.manifest import Manifest

BACKUP: Final = b"/v1/backup"
EXAMPLE: Final = '{"destination": "s3://bucket/penstock"}'
DAYS_MAX: Final = 100_000


class BackupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST. `keep` and `keep_days` remove older backups afterwards; `rate` is in
    bytes a second, 0 for no bound, and by default that of the server's settings."""

    destination: str
    keep: int | None = None
    keep_days: float | None = None
    rate: int | None = None


class BackupResource:
    def __init__(self, backups: Backups, *, part: str = "") -> None:
        self._backups = backups
        self._part = part

    def post(self, path: str, request: Request) -> Response:
        wish = _parse(request)
        destination = wish.destination
        scheme, separator, _ = destination.partition("://")
        if scheme == "memory" or not (separator or destination.startswith("/")):
            raise InvalidStorageUrl(
                f"{destination[:200]!r} is no place for a backup. Name an absolute path on the "
                "machine of the server, or a URL: s3://, gs:// or az://."
            )
        if self._part:
            # Each of several processes backs up its own folder, below the same place.
            destination = f"{destination.rstrip('/')}/{self._part}"
        job = self._backups.start(
            destination, keep=Keep(wish.keep, wish.keep_days), rate_bytes_s=wish.rate
        )
        return document(shown_job(job), 202)

    def get(self, path: str, request: Request) -> Response:
        return document(shown_job(self._backups.job))

    def delete(self, path: str, request: Request) -> Response:
        self._backups.cancel()
        return document(shown_job(self._backups.job), 202)


def _parse(request: Request) -> BackupRequest:
    frame(request.body, allow_empty=True)  # raises what is wrong with the JSON itself
    try:
        wish = msgspec.json.decode(request.body, type=BackupRequest)
    except msgspec.DecodeError as error:
        raise InvalidBackupRequest(f"Send JSON such as {EXAMPLE}: {error}.") from None
    if wish.keep is not None and not 1 <= wish.keep <= INTEGER_MAX:
        raise InvalidBackupRequest("`keep` is the number of backups that stay, from 1 on.")
    if wish.keep_days is not None and not 0 < wish.keep_days <= DAYS_MAX:
        raise InvalidBackupRequest(f"`keep_days` is a number of days up to {DAYS_MAX}.")
    if wish.rate is not None and not 0 <= wish.rate <= INTEGER_MAX:
        raise InvalidBackupRequest("`rate` is a number of bytes a second; 0 means no bound.")
    return wish


def shown_job(job: BackupJob | None) -> dict[str, Any]:
    if job is None:
        return {
            "state": "idle",
            "destination": None,
            "phase": None,
            "began_at": None,
            "ended_at": None,
            "bytes_total": 0,
            "bytes_done": 0,
            "new_bytes": 0,
            "backup": None,
            "error": None,
        }
    progress, error = job.progress, job.error
    return {
        "state": job.outcome,
        "destination": job.destination,
        "phase": progress.phase,
        "began_at": format_expires_at(job.began_us),
        "ended_at": None if job.ended_us is None else format_expires_at(job.ended_us),
        "bytes_total": progress.bytes_total,
        "bytes_done": progress.bytes_done,
        "new_bytes": progress.new_bytes,
        "backup": None if job.manifest is None else shown_manifest(job.manifest),
        "error": None if error is None else {"code": error.code, "detail": error.detail},
    }


def shown_manifest(manifest: Manifest) -> dict[str, Any]:
    """Return what people want to know of a backup."""
    return {
        "id": manifest.id,
        "cut_at": format_expires_at(manifest.cut_us),
        "finished_at": format_expires_at(manifest.finished_us),
        "streams": manifest.streams,
        "segments": manifest.segments,
        "bytes": manifest.bytes,
        "new_bytes": manifest.new_bytes,
        "version": manifest.version,
        "damaged": manifest.damaged,
    }
