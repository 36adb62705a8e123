"""The small file beside an export: what was exported, and how far.

`FILE.penstock` is JSON: `format` 1, `url`, `content_type`, `offset` (where to go on), `bytes` (how
much of FILE holds what is before that offset) and `closed` (no more will come).
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from penstock.cli.system import read_if_there, replace

SUFFIX = ".penstock"
FORMAT = 1


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    content_type: str
    offset: str
    bytes: int
    closed: bool
    format: int = FORMAT


def sidecar_path(file: Path) -> Path:
    return file.with_name(file.name + SUFFIX)


def load(file: Path) -> Sidecar | None:
    path = sidecar_path(file)
    content = read_if_there(path)
    if content is None:
        return None
    try:
        found = msgspec.json.decode(content, type=Sidecar)
    except msgspec.DecodeError as error:
        raise click.ClickException(f"{path} is damaged: {error}") from None
    if found.format != FORMAT:
        raise click.ClickException(f"{path} has format {found.format}, which is newer than this")
    return found


def save(file: Path, sidecar: Sidecar) -> None:
    content = msgspec.json.format(msgspec.json.encode(sidecar), indent=2)
    replace(sidecar_path(file), content + b"\n")
