"""Whether a process that was written down once is still the same one: numbers of processes are
given again, the moments that they started at are not. Knows no warehouses.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def started(process: int) -> str:
    """When a process of this machine was started, in the machine's own words; empty if it is not
    there, or cannot be told."""
    try:
        # Its name, in brackets, may have anything in it; the moment is the 20th word behind.
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return f"{_BOOT.read_text(encoding='ascii').strip()}/{words[19]}"
    except (OSError, IndexError, UnicodeDecodeError):
        return _told(process)


def _told(process: int) -> str:
    """The same where there is no /proc."""
    command = ["ps", "-o", "lstart=", "-p", str(process)]
    try:
        done = subprocess.run(  # noqa: S603 - our own words, and a number
            command, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(done.stdout.split())


def lives(process: int, since: str) -> bool:
    """Whether a process is there that was started at that moment; if the moment is not known,
    whether there is one of that number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = started(process)
    return not since or not now or now == since
