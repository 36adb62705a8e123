"""The requests of the sources to a server: which streams exist, where they end, where to cut them.

Penstock answers without reading messages. Other servers of the protocol have no listing and no
cuts: they get a request for each stream, and messages are counted by reading them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.client import answers, requests
from penstock.client.answers import Answer, StreamInfo
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.client.sync.client import Client
from penstock.errors import Gone, InvalidOption, PenstockError, ProtocolError, StreamNotFound
from penstock.limits import LIST_LIMIT_MAX, SPARK_RETRY_INTERVAL_S, SPARK_TIMEOUT_S
from penstock.protocol.globs import listing, matches
from penstock.protocol.headers import is_json, parse_stream_path
from penstock.spark.offsets import Kind, Position
from penstock.spark.options import is_pattern, is_url, pattern_of

_FEW_NAMES: Final = 16  # Up to so many names are looked up with a short page.


class Tail(NamedTuple):
    """The end of a stream, its content type, and how much of its beginning was trimmed."""

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
        position = Position(self.offsets[index]).within(Position(self.until))
        seq = position.byte if self.ordinals is None else self.ordinals[index]
        return position._replace(seq=seq)


class Server:
    """One server, by its URL. Holds no connection, so that it can be sent to executors."""

    def __init__(
        self,
        url: str,
        token: str | None,
        attempts_max: int,
        *,
        retry_interval_s: float = SPARK_RETRY_INTERVAL_S,
        timeout_s: float = SPARK_TIMEOUT_S,
    ) -> None:
        self.url = url
        self.token = token
        self.timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._retry_interval_s = retry_interval_s

    @property
    def client(self) -> Client:
        return shared_client(
            self.url,
            self.token,
            self._attempts_max,
            retry_interval_s=self._retry_interval_s,
            timeout_s=self.timeout_s,
        )

    def stream_url(self, stream: str) -> str:
        return requests.stream_url(self.url, stream)

    def path(self, kind: Kind, name: str) -> str:
        return path_of(kind, name)

    def send(self, request: Request) -> Answer:
        return self.client.request(request)

    def kind(self) -> Kind:
        """Whether it is a Penstock server, which is one that lists its streams."""
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
        """The tail of each existing stream that is named or matches a pattern."""
        if kind == "other":
            return self._tails_one_by_one(names)
        tails: dict[str, Tail] = {}
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
                    tails[info.path] = _tail(info)
        tails.update(self._find(sorted(set(literal) - set(tails))))
        return tails

    def existing(self, kind: Kind, names: Iterable[str]) -> set[str]:
        """The names of the streams that exist, as their tails spell them."""
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
        """Look up sorted names by pages of the listing: a thousand neighbours with each request."""
        after = ""
        requested = set(names)
        index = 0
        while index < len(names):
            # A prefix sorts before the name itself, with which the page has to begin.
            after = max(after, names[index][:-1])
            remaining = len(names) - index
            limit = LIST_LIMIT_MAX if remaining > _FEW_NAMES else _FEW_NAMES
            prefix = names[index] if remaining == 1 else ""
            request = requests.page(self.url, prefix, "" if prefix else after, limit)
            page = answers.page(self.send(request))
            for info in page.streams:
                if info.path in requested:
                    yield info.path, _tail(info)
            if page.next is None or remaining == 1:
                return
            after = page.next
            while index < len(names) and names[index] <= after:
                index += 1

    def _tails_one_by_one(self, names: Iterable[str]) -> dict[str, Tail]:
        tails = {}
        for name in names:
            if is_pattern(name):
                raise InvalidOption(
                    f"Option streams has the pattern {name!r}, and {self.url} cannot list its "
                    "streams (it is not a Penstock server): name each stream."
                )
            try:
                head = answers.head(self.send(requests.head(self.stream_url(name))))
            except (StreamNotFound, Gone):
                continue
            tails[name] = Tail(Position(head.offset), head.content_type)
        return tails

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
        """Cut a range of at most `count` messages and `size` bytes into `parts`."""
        fields: dict[str, str | int | None] = {
            "offset": start,
            "until": until,
            "splits": parts,
            "count": count,
            "bytes": size,
        }
        return self._cuts(stream, until, fields)

    def at_time(self, stream: str, time: str, until: str) -> Position:
        """The position of the first message that was appended at or after a time."""
        return self._cuts(stream, until, {"at": time, "until": until, "splits": 1}).position(0)

    def _cuts(self, stream: str, until: str, fields: Mapping[str, str | int | None]) -> Cuts:
        params = {name: str(value) for name, value in fields.items() if value is not None}
        answer = self.send(Request("GET", self.stream_url(stream), params=params))
        try:
            cuts = msgspec.json.decode(answer.body, type=Cuts)
            return msgspec.structs.replace(cuts, until=until)
        except msgspec.DecodeError as error:
            raise ProtocolError(
                f"The server's answer with the cuts of {stream} is not valid: {error}."
            ) from error


def path_of(kind: Kind, name: str) -> str:
    """Return a name as the listing spells it."""
    if kind == "other":
        return name
    # The client's rules for escaping apply; only the path of its URL is used.
    path = requests.stream_url("http://any", name).partition(requests.STREAM_PREFIX)[2]
    return parse_stream_path(path.encode())


def selects(kind: Kind, names: Iterable[str], stream: str) -> bool:
    """Whether a stream is named or matches a pattern."""
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


_clients: dict[tuple[object, ...], Client] = {}


def shared_client(
    url: str,
    token: str | None,
    attempts_max: int,
    *,
    retry_interval_s: float = SPARK_RETRY_INTERVAL_S,
    timeout_s: float = SPARK_TIMEOUT_S,
) -> Client:
    """The client of all tasks of this process, so that connections outlive a task."""
    key = (url, token, attempts_max, retry_interval_s, timeout_s)
    client = _clients.get(key)
    if client is None:
        retry = Retry(
            attempts_max=attempts_max,
            first_s=retry_interval_s,
            max_s=max(Retry().max_s, retry_interval_s),
        )
        client = _clients[key] = Client(url, token=token, retry=retry, timeout_s=timeout_s)
    return client
