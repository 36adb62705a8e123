"""The files of the console, read once: what is sent later comes from memory.

Knows files and their tags; nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, NamedTuple

PAGE: Final = "index.html"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    content_type: str
    tag: str


class Assets(NamedTuple):
    """All files by their paths, and the digest of them all: a folder of that name in a URL never
    has other contents."""

    by_name: MappingProxyType[str, Asset]
    digest: str


@cache
def load_assets() -> Assets:
    """Return the files of the console; the first call reads them."""
    folder = files(__package__) / "static"
    assets = {name: asset(name, data) for name, data in sorted(_contents(folder))}
    tags = "".join(f"{name}{each.tag}" for name, each in assets.items())
    return Assets(MappingProxyType(assets), _digest(tags.encode()))


def asset(name: str, body: bytes) -> Asset:
    """Return a file of some contents; its name says what it is."""
    return Asset(body, TYPES[PurePosixPath(name).suffix], f'"{_digest(body)}"')


def _contents(folder: Traversable, parent: str = "") -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _contents(each, f"{parent}{each.name}/")
        elif PurePosixPath(each.name).suffix in TYPES:
            yield parent + each.name, each.read_bytes()


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()
