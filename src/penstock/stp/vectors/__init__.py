"""The test vectors for STP, as published: `docs/stp-vectors/README.md` describes the files."""

from __future__ import annotations

import pkgutil
from typing import Any, Final

import msgspec

FILES: Final = (
    "answers", "changes", "content_type", "duplicates", "fold", "format", "notify", "parse",
    "since_id",
)  # fmt: skip


def cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    data = pkgutil.get_data(__name__, f"{name}.json")
    if data is None:
        raise FileNotFoundError(name)
    vectors: list[dict[str, Any]] = msgspec.json.decode(data)["cases"]
    return vectors
