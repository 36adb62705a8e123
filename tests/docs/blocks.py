"""The code blocks of a page, and what is said about each in comments around it.

| comment | |
|---|---|
| `<!-- prints: text -->` after a block | the text is in what the block printed |
| `<!-- opens: URL -->` after a block | Chromium opens the URL |
| `<!-- shows: text -->` after a block | the page that Chromium has open shows the text, soon |
| `<!-- not run: reason -->` before a block | the block is left out; `NOT_RUN` has to list it |

A block with a title (```` ```python title="app.py" ````) is a file, which later blocks use; it is
not run. A block of HTML is a file, too (`page.html` if it has no title). If it is followed by
`shows`, Chromium opens it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LANGUAGES = ("sh", "python", "js", "html")
_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]*?) -->\n+)?"
    r'```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```\n'
    r"(?P<checks>(?:<!-- \w+: .*? -->\n)*)",
    re.M | re.S,
)
_CHECK = re.compile(r"<!-- (\w+): (.*?) -->")


class Block(NamedTuple):
    language: str
    title: str | None
    code: str
    checks: list[tuple[str, str]]
    reason: str | None

    @property
    def file(self) -> str | None:
        """The name of the file that this block is, or None if it is a script to run."""
        return self.title or ("page.html" if self.language == "html" else None)

    @property
    def needs_browser(self) -> bool:
        return any(kind in ("opens", "shows") for kind, _ in self.checks)


def pages() -> list[Path]:
    """Return the pages whose blocks are run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are run, and those that are files, in order."""
    return [
        Block(
            match["language"],
            match["title"],
            match["code"],
            _CHECK.findall(match["checks"]),
            match["reason"],
        )
        for match in _FENCE.finditer(text)
        if match["language"] in LANGUAGES or match["title"]
    ]
