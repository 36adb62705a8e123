"""What the sources ask of a server: which streams there are, where they end, where to cut them.

Penstock answers all of it without a look at the messages. Other servers of the protocol have no
listing and no cuts: they are asked stream by stream, and messages are counted by reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.client import answers, requests
from penstock.client.answers import Answer, StreamInfo
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.client.sync.client import Client
from penstock.errors import Gone, InvalidOption, PenstockError, ProtocolError, StreamNotFound
from penstock.limits import LIST_LIMIT_MAX
from penstock.protocol.globs import listing, matches
from penstock.protocol.headers import is_json, parse_stream_path
from penstock.spark.options import is_pattern, is_url, pattern_of
from penstock.spark.source.offsets import Kind, Position

_FEW_NAMES: Final = 16  # a page for so few names need not be a long one


class Tail(NamedTuple):
    """Where a stream ends, what it holds, and what is gone of its beginning."""

    position: Position
    content_type: str
    first_byte: int = 0
    first_seq: int = 0
    is_fork: bool = False

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)


class Cuts(msgspec.Struct, frozen=True):
    """Message boundaries of a range up to `until`, and how many messages are before each."""

    offsets: list[str]
    ordinals: list[int] | None = None
    until: str = ""

    def position(self, index: int) -> Position:
        place = Position(self.offsets[index]).within(Position(self.until))
        return place._replace(seq=place.byte if self.ordinals is None else self.ordinals[index])


class Server:
    """One server, by its URL. Holds no connection of its own, so that it can go to executors."""

    def __init__(self, url: str, token: str | None, attempts_max: int) -> None:
        self.url = url
        self.token = token
        self._attempts_max = attempts_max

    @property
    def client(self) -> Client:
        return shared_client(self.url, self.token, self._attempts_max)

    def stream_url(self, stream: str) -> str:
        return requests.stream_url(self.url, stream)

    def path(self, kind: Kind, name: str) -> str:
        return path_of(kind, name)

    def send(self, request: Request) -> Answer:
        return self.client.request(request)

    def kind(self) -> Kind:
        """Whether it is a Penstock server: whether it has a listing."""
        try:
            answers.page(self.send(requests.page(self.url, "", "", 1)))
        except (StreamNotFound, ProtocolError):
            return "other"
        except PenstockError as error:
            if error.status in (400, 405, 501):
                return "other"
            raise
        return "penstock"

    def tails(self, kind: Kind, names: Sequence[str]) -> dict[str, Tail]:
        """Where each stream ends that is named, or that matches a pattern, and exists."""
        if kind == "other":
            return self._tails_one_by_one(names)
        found: dict[str, Tail] = {}
        literal = []
        for name in names:
            if is_url(name):
                raise InvalidOption(
                    f"Option streams names {name} by its URL: name it by its path on {self.url}."
                )
            if not is_pattern(name):
                literal.append(path_of(kind, name))
                continue
            pattern = pattern_of(name)
            prefix, exact = listing(pattern)
            if exact is not None:
                literal.append(exact)
            for info in self._list(prefix):
                if matches(pattern, info.path):
                    found[info.path] = _tail(info)
        found.update(self._find(sorted(set(literal) - set(found))))
        return found

    def existing(self, kind: Kind, names: Iterable[str]) -> set[str]:
        """Which of these streams exist, by the names that their tails have."""
        if kind == "other":
            return set(self._tails_one_by_one(names))
        return {name for name, _ in self._find(sorted(names))}

    def _list(self, prefix: str, after: str = "") -> Iterator[StreamInfo]:
        while True:
            page = answers.page(self.send(requests.page(self.url, prefix, after, LIST_LIMIT_MAX)))
            yield from page.streams
            if page.next is None:
                return
            after = page.next

    def _find(self, names: list[str]) -> Iterator[tuple[str, Tail]]:
        """Named streams, by pages: of ten thousand neighbours a thousand with each request."""
        after = ""
        wanted = set(names)
        index = 0
        while index < len(names):
            # Sorts before the name itself, which the page is to begin with.
            after = max(after, names[index][:-1])
            left = len(names) - index
            limit = LIST_LIMIT_MAX if left > _FEW_NAMES else _FEW_NAMES
            prefix = names[index] if left == 1 else ""
            request = requests.page(self.url, prefix, "" if prefix else after, limit)
            page = answers.page(self.send(request))
            for info in page.streams:
                if info.path in wanted:
                    yield info.path, _tail(info)
            if page.next is None or left == 1:
                return
            after = page.next
            while index < len(names) and names[index] <= after:
                index += 1

    def _tails_one_by_one(self, names: Iterable[str]) -> dict[str, Tail]:
        found = {}
        for name in names:
            if is_pattern(name):
                raise InvalidOption(
                    f"Option streams has the pattern {name!r}, and {self.url} cannot list its "
                    "streams (it is no Penstock server): name each stream."
                )
            try:
                head = answers.head(self.send(requests.head(self.stream_url(name))))
            except (StreamNotFound, Gone):
                continue
            found[name] = Tail(Position(head.offset), head.content_type)
        return found

    def cuts(
        self,
        stream: str,
        start: str,
        until: str,
        *,
        parts: int = 1,
        count: int | None = None,
        size: int | None = None,
    ) -> Cuts:
        """Boundaries that cut a range, at most so many messages or bytes long, into parts."""
        given = {"offset": start, "until": until, "splits": parts, "count": count, "bytes": size}
        params = {name: str(value) for name, value in given.items() if value is not None}
        answer = self.send(Request("GET", self.stream_url(stream), params=params))
        try:
            found = msgspec.json.decode(answer.body, type=Cuts)
            return msgspec.structs.replace(found, until=until)
        except msgspec.DecodeError as error:
            raise ProtocolError(
                f"The cuts of {stream} are not what was expected: {error}"
            ) from error


def path_of(kind: Kind, name: str) -> str:
    """A name as the listing spells it."""
    if kind == "other":
        return name
    # The client's rules for escaping: only the path of the URL that it makes is of interest.
    path = requests.stream_url("http://any", name).partition(requests.STREAM_PREFIX)[2]
    return parse_stream_path(path.encode())


def selects(kind: Kind, names: Iterable[str], stream: str) -> bool:
    """Whether a stream is one of those that are named, or matches a pattern."""
    return any(
        matches(pattern_of(name), stream) if is_pattern(name) else path_of(kind, name) == stream
        for name in names
    )


def _tail(info: StreamInfo) -> Tail:
    position = Position(info.offset)
    first_byte = first_seq = position.byte - info.bytes
    seq = position.byte
    if is_json(info.content_type):
        seq, first_seq = info.trimmed + info.messages, info.trimmed
    is_fork = info.forked_from is not None
    return Tail(position._replace(seq=seq), info.content_type, first_byte, first_seq, is_fork)


_clients: dict[tuple[str, str | None, int], Client] = {}


def shared_client(url: str, token: str | None, attempts_max: int) -> Client:
    """A client for all tasks that this process runs: connections outlive a task."""
    wanted = (url, token, attempts_max)
    client = _clients.get(wanted)
    if client is None:
        client = _clients[wanted] = Client(url, token=token, retry=Retry(attempts_max=attempts_max))
    return client
