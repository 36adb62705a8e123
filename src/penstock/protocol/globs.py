"""Patterns over stream paths: `*` is one segment, `**` any number of them, also none.

Pure rules and the index that finds the patterns of a path; knows nothing of subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from penstock import limits
from penstock.errors import InvalidPath
from penstock.protocol.headers import parse_stream_path

ONE: Final = "*"
ANY: Final = "**"

T = TypeVar("T")


def parse_pattern(text: str, *, bytes_max: int = limits.PATH_BYTES_MAX) -> str:
    """A pattern in canonical form: spelled like the paths it is compared with. InvalidPath says
    what is wrong with another."""
    pattern = parse_stream_path(text.strip("/").encode("utf-8"), bytes_max=bytes_max)
    segments = pattern.split("/")
    if len(segments) > limits.GLOB_SEGMENTS_MAX or segments.count(ANY) > limits.GLOB_STARS_MAX:
        raise InvalidPath(
            f"A pattern has at most {limits.GLOB_SEGMENTS_MAX} segments, and `{ANY}` at most "
            f"{limits.GLOB_STARS_MAX} times."
        )
    for segment in segments:
        # It would stand for nothing but a stream of that very name, which nobody means.
        if ONE in segment and segment not in (ONE, ANY):
            raise InvalidPath(
                f"`{ONE}` and `{ANY}` are whole segments, and {segment!r} has one within; use "
                f"`{ONE}` for the segment, or name the streams one by one."
            )
    return pattern


def matches(pattern: str, path: str) -> bool:
    """Whether a path is among those that a pattern stands for."""
    places = {0}
    wanted = pattern.split("/")
    for segment in path.split("/"):
        places = _step(wanted, places, segment)
        if not places:
            return False
    return len(wanted) in _past_any(wanted, places)


def literal_prefix(pattern: str) -> str:
    """What every path of a pattern begins with."""
    fixed: list[str] = []
    for segment in pattern.split("/"):
        if segment in (ONE, ANY):
            # `a/**` also stands for `a` itself.
            prefix = "/".join(fixed)
            return prefix if segment == ANY or not fixed else prefix + "/"
        fixed.append(segment)
    return "/".join(fixed)


def _step(wanted: list[str], places: set[int], segment: str) -> set[int]:
    found: set[int] = set()
    for place in _past_any(wanted, places):
        if place < len(wanted):
            if wanted[place] == ANY:
                found.add(place)
            elif wanted[place] in (ONE, segment):
                found.add(place + 1)
    return found


def _past_any(wanted: list[str], places: set[int]) -> set[int]:
    """The places, and those behind a `**` that stands for nothing."""
    found = set(places)
    for place in places:
        while place < len(wanted) and wanted[place] == ANY:
            place += 1
            found.add(place)
    return found


class _Node(Generic[T]):
    __slots__ = ("children", "is_any", "values")

    def __init__(self, *, is_any: bool = False) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.is_any = is_any
        self.values: dict[T, None] = {}


class PatternIndex(Generic[T]):
    """Finds what was filed under the patterns of a path. The cost follows the segments of the path
    and the patterns that begin like it, not the number of patterns."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        node = self._root
        for segment in pattern.split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = _Node(is_any=segment == ANY)
            node = child
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        way = [self._root]
        segments = pattern.split("/")
        for segment in segments:
            child = way[-1].children.get(segment)
            if child is None:
                return
            way.append(child)
        way[-1].values.pop(value, None)
        for segment, parent, node in zip(segments[::-1], way[-2::-1], way[:0:-1], strict=True):
            if node.values or node.children:
                break
            del parent.children[segment]

    def find(self, path: str) -> Iterator[T]:
        """Each value once, though several of its patterns match."""
        nodes = {id(self._root): self._root}
        for segment in path.split("/"):
            following: dict[int, _Node[T]] = {}
            for node in _behind_any(nodes):
                if node.is_any:
                    following[id(node)] = node
                for key in (segment, ONE):
                    child = node.children.get(key)
                    # A path may have a segment `*` or `**`; it is one like others.
                    if child is not None and key != ANY:
                        following[id(child)] = child
            nodes = following
            if not nodes:
                return
        found: dict[T, None] = {}
        for node in _behind_any(nodes):
            found.update(node.values)
        yield from found


def _behind_any(nodes: dict[int, _Node[T]]) -> list[_Node[T]]:
    """The nodes, and those behind a `**` that stands for nothing."""
    found = dict(nodes)
    todo = list(nodes.values())
    while todo:
        child = todo.pop().children.get(ANY)
        if child is not None and id(child) not in found:
            found[id(child)] = child
            todo.append(child)
    return list(found.values())
