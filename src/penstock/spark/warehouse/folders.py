"""Names of folders for types, which are any text: apart from each other where a file system ignores
capitals, never `.` or `..`, without escapes that a URL would undo, and short enough for all. Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from hashlib import sha256
from typing import Final
from urllib.parse import quote, unquote

_SAFE: Final = frozenset(string.ascii_lowercase + string.digits + "-_.")
_HIDDEN: Final = "._"  # Spark and Delta skip folders that begin with these
_LENGTH_MAX: Final = 200  # file systems take 255 bytes
_STEM_LENGTH: Final = 120
_CUT: Final = "~~"  # begins the digest of a name that is too long
_ESCAPED: Final = re.compile(r"~([0-9a-f]{2})")
_DIGEST_LENGTH: Final = 32


def folder_of(entity: str) -> str:
    """The folder of the table of a type."""
    characters = [_spelled(byte) for byte in entity.encode("utf-8", "surrogatepass")]
    if entity[:1] in _HIDDEN:
        characters[0] = f"~{ord(entity[0]):02x}"
    name = "".join(characters)
    if len(name) <= _LENGTH_MAX:
        return name
    digest = sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[:_STEM_LENGTH].rstrip('~')}{_CUT}{digest}"


def _spelled(byte: int) -> str:
    return chr(byte) if chr(byte) in _SAFE else f"~{byte:02x}"


def former_folder_of(entity: str) -> str | None:
    """The folder that earlier versions gave a type, if it is another one and was of any use."""
    former = quote(entity, safe="-_", errors="surrogatepass")
    if former == folder_of(entity) or not former.strip(".") or len(former) > _LENGTH_MAX:
        return None
    return former


def entities_of(folders: Iterable[str], known: Iterable[str]) -> set[str]:
    """The types of folders. A name that was cut is found only among the known types."""
    types = list(known)
    names = {former_folder_of(entity) or "": entity for entity in types}
    names.update({folder_of(entity): entity for entity in types})
    return {names.get(folder) or _decoded(folder) for folder in folders if _CUT not in folder
            or folder in names}  # fmt: skip


def _decoded(folder: str) -> str:
    if "~" not in folder or "%" in folder:
        return unquote(folder)
    escaped = _ESCAPED.sub(lambda match: f"%{match[1]}", folder)
    return unquote(escaped, errors="surrogatepass")
