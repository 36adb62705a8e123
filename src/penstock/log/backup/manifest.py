"""What a backup says of itself, as values, and their bytes with checksums.

A backup is a small manifest, and a list of contents that it names: where in which pack the parts
of the catalog and of every segment are. Pure: nothing is read or written here.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

import msgspec
import zstandard

from penstock.errors import BackupDamaged

FORMAT: Final = 1
CONTENTS_BYTES_MAX: Final = 1 << 32

_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}")


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file: `length` bytes at `at` of the pack with this number."""

    pack: int
    at: int
    length: int


class SegmentParts(msgspec.Struct, frozen=True, array_like=True):
    """A segment and its index, up to the length that the catalog of the backup has."""

    stream_id: int
    base: int
    length: int
    index_crc: int
    """CRC of the index, which has the CRC of every full block."""
    open_crc: int
    """CRC of the last block, which is not full."""
    data: list[Part]
    index: list[Part]

    @property
    def key(self) -> tuple[int, int]:
        return self.stream_id, self.base


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of the catalog's file, by its SHA-256."""

    sha256: str
    part: Part


class Contents(msgspec.Struct, frozen=True):
    """Everything that a backup consists of; `packs` are (SHA-256, size)."""

    packs: list[tuple[str, int]]
    catalog: list[Chunk]
    segments: list[SegmentParts]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A backup. Times are in microseconds; `cut_us` is the moment that it shows."""

    format: int
    id: str
    store_id: str
    version: str
    """Of the Penstock that wrote it."""
    cut_us: int
    finished_us: int
    checkpoint_lsn: int
    next_id: int
    streams: int
    segments: int
    bytes: int
    """Size of the catalog, of all segments and of their indexes."""
    new_bytes: int
    """How much of it was not in an earlier backup."""
    folder: dict[str, Any]
    """The content of the file PENSTOCK."""
    contents_sha256: str
    contents_bytes: int
    damaged: list[str] = []
    """What did not match its checksum in the data folder already."""


class _Envelope(msgspec.Struct):
    backup: msgspec.Raw
    sha256: str


def sha256(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def is_id(text: str) -> bool:
    """Whether a text has the form of a backup's id."""
    return _ID.fullmatch(text) is not None


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Envelope(msgspec.Raw(body), sha256(body))) + b"\n"


def decode_manifest(data: bytes, name: str) -> Manifest:
    """Return the manifest; BackupDamaged if it is not as it was written, or of a newer Penstock."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if sha256(bytes(envelope.backup)) != envelope.sha256:
            raise BackupDamaged(f"{name} does not match its checksum. Use another backup.")
        form = json.loads(bytes(envelope.backup)).get("format")
        if form != FORMAT:
            raise BackupDamaged(
                f"{name} has backup format {form}; this Penstock reads format {FORMAT}. Use the "
                "Penstock that wrote it."
            )
        return msgspec.json.decode(bytes(envelope.backup), type=Manifest)
    except (msgspec.MsgspecError, ValueError, AttributeError) as error:
        raise BackupDamaged(f"{name} is no manifest of a backup ({error}).") from None


def encode_contents(contents: Contents) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(msgspec.json.encode(contents))


def decode_contents(data: bytes, manifest: Manifest) -> Contents:
    """Return the contents of a backup; BackupDamaged if they are not as they were written."""
    if sha256(data) != manifest.contents_sha256:
        raise BackupDamaged(
            f"The contents of backup {manifest.id} do not match their checksum. Use another backup."
        )
    plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=CONTENTS_BYTES_MAX)
    return msgspec.json.decode(plain, type=Contents)
