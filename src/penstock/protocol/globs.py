"""Patterns over stream paths, in the one language that all of Penstock uses, and their index.

`*` matches any text within a segment, `**` is a segment that matches any number of segments, also
none. Pure; knows neither subscriptions nor who else uses patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from penstock import limits
from penstock.errors import InvalidPath
from penstock.protocol.headers import parse_stream_path

ONE: Final = "*"
ANY: Final = "**"
_NO_WILDCARDS: Final = "?[]{}"  # wildcards elsewhere; no path holds them unescaped

T = TypeVar("T")


def is_pattern(text: str) -> bool:
    """Whether text stands for the streams that it matches, not for the stream of that path."""
    return ONE in text


def parse_pattern(text: str, *, bytes_max: int = limits.PATH_BYTES_MAX) -> str:
    """Return a pattern in canonical form, spelled like the paths that it is compared with.

    InvalidPath says what is wrong with another text, and what to write instead.
    """
    try:
        return _canonical(text, bytes_max)
    except UnicodeEncodeError:
        reason = "It has half a surrogate pair. Use whole characters."
    except InvalidPath as error:
        reason = error.detail
    raise InvalidPath(f"{text[:100]!r} is no pattern: {reason}")


def _canonical(text: str, bytes_max: int) -> str:
    for character in _NO_WILDCARDS:
        if character in text:
            raise InvalidPath(
                f"`{character}` is no wildcard. Use `{ONE}` or `{ANY}`, or write the character "
                f"itself as %{ord(character):02X}."
            )
    pattern = parse_stream_path(text.strip("/").encode("utf-8"), bytes_max=bytes_max)
    segments = pattern.split("/")
    if len(segments) > limits.GLOB_SEGMENTS_MAX or segments.count(ANY) > limits.GLOB_STARS_MAX:
        raise InvalidPath(
            f"A pattern has at most {limits.GLOB_SEGMENTS_MAX} segments, and `{ANY}` at most "
            f"{limits.GLOB_STARS_MAX} times. Use a shorter one."
        )
    for segment in segments:
        if ANY in segment and segment != ANY:
            raise InvalidPath(
                f"`{ANY}` is a whole segment, and {segment!r} has it within. Use `{ONE}` there, or "
                f"put a slash between `{ANY}` and the text."
            )
    return pattern


def matches(pattern: str, path: str) -> bool:
    """Whether a path is among those that a pattern in canonical form stands for."""
    return _matches(_parts(pattern), path.split("/"))


def covers(pattern: str, other: str) -> bool:
    """Whether every path of another pattern is one of a pattern; both in canonical form.

    The other one is matched like a path, in which `**` fits nothing but `**`. A star of its text is
    then where the pattern has one, so that whatever stands in its place fits, too. False may be
    too strict, True never is.
    """
    segments = [None if segment == ANY else segment for segment in other.split("/")]
    return _matches(_parts(pattern), segments)


def _matches(parts: Sequence[_Part], segments: Sequence[str | None]) -> bool:
    """Whether segments fit the parts of a pattern; None fits `**` alone.

    When a segment does not fit, the last `**` takes one segment more: earlier ones need not, so
    the cost is at most the product of both lengths.
    """
    at = index = 0
    any_at, consumed = -1, 0
    while index < len(segments):
        part, segment = parts[at] if at < len(parts) else None, segments[index]
        if part is not None and part.text == ANY:
            any_at, consumed = at, index
            at += 1
        elif part is not None and segment is not None and part.fits(segment):
            at += 1
            index += 1
        elif any_at >= 0:
            consumed += 1
            at, index = any_at + 1, consumed
        else:
            return False
    return all(part.text == ANY for part in parts[at:])


def literal_prefix(pattern: str) -> str:
    """Return what every path of a pattern begins with."""
    prefix, exact = listing(pattern)
    return prefix if exact is None else exact


def listing(pattern: str) -> tuple[str, str | None]:
    """Return what to list to find the paths of a pattern: a prefix, and a path without it.

    Of `a/**` these are `a/` and `a`: to list `a` would also list `ab`, `ac` and all else.
    """
    segments = pattern.split("/")
    fixed = next((at for at, each in enumerate(segments) if is_pattern(each)), None)
    if fixed is None:
        return pattern, None
    parent = "".join(f"{segment}/" for segment in segments[:fixed])
    if segments[fixed] != ANY:
        return parent + segments[fixed].partition(ONE)[0], None
    is_all = all(segment == ANY for segment in segments[fixed:])
    return parent, parent.removesuffix("/") if parent and is_all else None


class _Part(NamedTuple):
    """A segment of a pattern; `pieces` is the text around its stars."""

    text: str
    pieces: tuple[str, ...]

    def fits(self, segment: str) -> bool:
        """Whether `segment` has the pieces in order, the first and the last at its ends."""
        pieces = self.pieces
        if len(pieces) == 1:
            return self.text == segment
        first, last = pieces[0], pieces[-1]
        end = len(segment) - len(last)
        at = len(first)
        if at > end or not segment.startswith(first) or not segment.endswith(last):
            return False
        # The leftmost match of each piece leaves the most room for those after it.
        for piece in pieces[1:-1]:
            at = segment.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


def _part(segment: str) -> _Part:
    return _Part(segment, tuple(segment.split(ONE)))


@lru_cache(maxsize=1024)
def _parts(pattern: str) -> tuple[_Part, ...]:
    return tuple(_part(segment) for segment in pattern.split("/"))


class _Node(Generic[T]):
    """The patterns that share their first segments. `partial` has those children again whose
    segment has a star beside text."""

    __slots__ = ("children", "is_any", "partial", "values")

    def __init__(self, *, is_any: bool = False) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.partial: _PartialSegments[T] | None = None
        self.is_any = is_any
        self.values: dict[T, None] = {}

    def child(self, segment: str) -> _Node[T]:
        """Return the child for a segment of a pattern, new if there is none."""
        child = self.children.get(segment)
        if child is None:
            child = self.children[segment] = _Node(is_any=segment == ANY)
            if _is_partial(segment):
                if self.partial is None:
                    self.partial = _PartialSegments()
                self.partial.add(segment, child)
        return child

    def drop(self, segment: str) -> None:
        del self.children[segment]
        if self.partial is not None and _is_partial(segment):
            self.partial.remove(segment)
            if not self.partial:
                self.partial = None

    def matching(self, segment: str) -> Iterator[_Node[T]]:
        """Yield the children that a segment of a path leads to; some may come twice."""
        if self.is_any:
            yield self
        # A segment of a path may have stars, too: it fits the pattern that is spelled like it,
        # but for `**`, which is no text.
        for key in (segment, ONE):
            child = self.children.get(key)
            if child is not None and key != ANY:
                yield child
        if self.partial is not None:
            yield from self.partial.find(segment)


class _PartialSegments(Generic[T]):
    """Segments with a star beside text, by the text before the first star, then by the text after
    the last: ten thousand of `tenant-1-*`, `tenant-2-*`, … cost a lookup for each length. Those
    that share both are compared one by one."""

    __slots__ = ("_by_prefix",)

    def __init__(self) -> None:
        self._by_prefix: _ByText[_ByText[dict[str, tuple[_Part, _Node[T]]]]] = _ByText()

    def __bool__(self) -> bool:
        return bool(self._by_prefix.items)

    def add(self, segment: str, node: _Node[T]) -> None:
        part = _part(segment)
        by_suffix = self._by_prefix.items.get(part.pieces[0])
        if by_suffix is None:
            by_suffix = _ByText()
            self._by_prefix.put(part.pieces[0], by_suffix)
        parts = by_suffix.items.get(part.pieces[-1])
        if parts is None:
            parts = {}
            by_suffix.put(part.pieces[-1], parts)
        parts[segment] = (part, node)

    def remove(self, segment: str) -> None:
        first, last = _part(segment).pieces[0], _part(segment).pieces[-1]
        by_suffix = self._by_prefix.items[first]
        parts = by_suffix.items[last]
        del parts[segment]
        if not parts:
            by_suffix.drop(last)
        if not by_suffix.items:
            self._by_prefix.drop(first)

    def find(self, segment: str) -> Iterator[_Node[T]]:
        size = len(segment)
        for length in self._by_prefix.lengths:
            by_suffix = self._by_prefix.items.get(segment[:length]) if length <= size else None
            if by_suffix is None:
                continue
            for suffix_length in by_suffix.lengths:
                if suffix_length > size - length:
                    continue
                parts = by_suffix.items.get(segment[size - suffix_length :])
                for part, node in () if parts is None else parts.values():
                    if part.fits(segment):
                        yield node


class _ByText(Generic[T]):
    """Values by text, and how many texts there are of each length."""

    __slots__ = ("items", "lengths")

    def __init__(self) -> None:
        self.items: dict[str, T] = {}
        self.lengths: dict[int, int] = {}

    def put(self, text: str, value: T) -> None:
        """Put the value of a new text."""
        self.items[text] = value
        self.lengths[len(text)] = self.lengths.get(len(text), 0) + 1

    def drop(self, text: str) -> None:
        del self.items[text]
        self.lengths[len(text)] -= 1
        if not self.lengths[len(text)]:
            del self.lengths[len(text)]


def _is_partial(segment: str) -> bool:
    return is_pattern(segment) and segment not in (ONE, ANY)


class PatternIndex(Generic[T]):
    """Finds the values of all patterns that match a path. The cost depends on the segments of the
    path and the patterns that begin like it, not the number of patterns."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        node = self._root
        for segment in pattern.split("/"):
            node = node.child(segment)
        node.values[value] = None

    def remove(self, pattern: str, value: T) -> None:
        nodes = [self._root]
        segments = pattern.split("/")
        for segment in segments:
            child = nodes[-1].children.get(segment)
            if child is None:
                return
            nodes.append(child)
        nodes[-1].values.pop(value, None)
        for segment, parent, node in zip(segments[::-1], nodes[-2::-1], nodes[:0:-1], strict=True):
            if node.values or node.children:
                break
            parent.drop(segment)

    def find(self, path: str) -> Iterator[T]:
        """Yield each value once, though several of its patterns match."""
        nodes = {id(self._root): self._root}
        for segment in path.split("/"):
            nodes = {
                id(child): child for node in _behind_any(nodes) for child in node.matching(segment)
            }
            if not nodes:
                return
        values: dict[T, None] = {}
        for node in _behind_any(nodes):
            values.update(node.values)
        yield from values


def _behind_any(nodes: dict[int, _Node[T]]) -> list[_Node[T]]:
    """Return the nodes, and those behind a `**` that matches no segment."""
    reached = dict(nodes)
    todo = list(nodes.values())
    while todo:
        child = todo.pop().children.get(ANY)
        if child is not None and id(child) not in reached:
            reached[id(child)] = child
            todo.append(child)
    return list(reached.values())
