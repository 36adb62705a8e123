"""Scripts that Spark is to start in place of Java and Python, kept in the user's cache: they may be
needed in a month's time, when whoever tidies up temporary files has been there.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def keep(script: Path, text: str) -> None:
    """Another process may be starting from it: it is replaced at once or not at all."""
    if script.exists() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"{script.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(script)
