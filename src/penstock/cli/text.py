"""Plain text for people: aligned columns, numbers and sizes with their units."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def aligned(lines: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """Yield the lines with aligned cells. The columns in `right` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()


def amount(number: int, unit: str, units: str = "") -> str:
    """``1 stream``, ``12,345 streams``."""
    return f"{number:,} {unit if number == 1 else units or unit + 's'}"


def size(number: int) -> str:
    """``512 bytes``, ``1.5 MiB``: rounded, for people."""
    for scale, name in _UNITS:
        if number >= scale:
            return f"{number / scale:,.1f} {name}"
    return amount(number, "byte")


def clock_text(seconds: float) -> str:
    """``0:07``, ``12:30``, ``3:05:00``: rounded up to whole seconds."""
    whole = math.ceil(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
