"""Plain text for a terminal: columns that line up, numbers and sizes that can be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def aligned(lines: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """Lines with their cells below each other; the columns in `right` hold numbers."""
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
    """``512 bytes``, ``1.5 MiB``: to be read, not to be read back."""
    for scale, name in _UNITS:
        if number >= scale:
            return f"{number / scale:,.1f} {name}"
    return amount(number, "byte")
