"""Streams that `active` knows only as long as somebody else holds them.

Plain Python, which `stream` is not where it is compiled: mypyc has no weak references.
"""

from __future__ import annotations

from penstock.log.stream import Stream


class HeldStream(Stream):
    """A stream that weak references can refer to: every one that the engine makes or loads."""

    __slots__ = ("__weakref__",)
