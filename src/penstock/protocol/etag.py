"""Entity tags of catch-up reads, and the If-None-Match comparison."""

from __future__ import annotations


def make(stream_id: int, start: int, end: int, closed: bool, *, variant: str = "") -> str:
    """Return the tag of the bytes [start, end) of a stream, or of a `variant` of them.

    Closing changes it, so that a 304 can never hide the end of a stream.
    """
    if variant:
        return f'"{stream_id}:{start}:{end}:{variant}{":c" if closed else ""}"'
    return f'"{stream_id}:{start}:{end}:c"' if closed else f'"{stream_id}:{start}:{end}"'


def matches(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match value names this tag: `*`, or a list, compared weakly."""
    if if_none_match == etag:
        return True
    if if_none_match.strip() == "*":
        return True
    # Splitting at every comma is safe: a foreign tag with a comma inside falls into parts of
    # which none both starts and ends with a quote, as ours do.
    return any(part.strip().removeprefix("W/") == etag for part in if_none_match.split(","))
