"""The file beside an export: which stream it holds, and up to which offset.

`FILE.penstock` is JSON: `format` 1, `url`, `content_type`, `offset` (where the next run continues),
`bytes` (the length of FILE at that offset) and `closed` (the stream is complete).
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from penstock.cli.system import read_if_present, replace

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
    content = read_if_present(path)
    if content is None:
        return None
    try:
        sidecar = msgspec.json.decode(content, type=Sidecar)
    except msgspec.DecodeError as error:
        raise click.ClickException(
            f"{path} is damaged ({error}). Export again with --force."
        ) from None
    if sidecar.format != FORMAT:
        raise click.ClickException(
            f"{path} has format {sidecar.format}, which this version does not know. "
            "Use a newer version of Penstock."
        )
    return sidecar


def save(file: Path, sidecar: Sidecar) -> None:
    content = msgspec.json.format(msgspec.json.encode(sidecar), indent=2)
    replace(sidecar_path(file), content + b"\n")
