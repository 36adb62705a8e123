"""Loading the keys of JWTs: a JWKS (RFC 7517) from a file or a URL, renewed in the background.

What a key set is, and which of its keys may be used, is in key_set.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.access.key_set import KeyRules, KeySet, ParsedKeys, UnusableKeys, parse_key_set
from penstock.backoff import Backoff
from penstock.errors import EgressFailed, PenstockError
from penstock.limits import JWT_KEYS_BYTES_MAX

if TYPE_CHECKING:
    from penstock.egress import Egress

REFRESH_GAP_S: Final = 5.0
"""Shortest time between two fetches of a URL, however many tokens name unknown keys."""
AGE_MIN_S: Final = 60.0
"""Shortest time between two fetches that the Cache-Control of a URL can ask for."""
FILE_CHECK_S: Final = 1.0
"""Time between two reads of a file."""
FILE_GAP_S: Final = 0.5
_MAX_AGE: Final = re.compile(r'max-age\s*=\s*"?(\d{1,9})', re.ASCII | re.IGNORECASE)
_IGNORED_SHOWN: Final = 5

_log = logging.getLogger(__name__)


class Document(NamedTuple):
    """A JWKS as bytes, and for how long it may be cached, if its origin says so."""

    data: bytes
    age_s: float | None = None


class Source(Protocol):
    """Where a JWKS comes from. `name` is for messages."""

    @property
    def name(self) -> str: ...

    async def load(self) -> Document: ...


class KeyFile:
    """A JWKS in a file. It is read every time: comparing time stamps would cost as much."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return str(self._path)

    async def load(self) -> Document:
        return await asyncio.to_thread(self.read)

    def read(self) -> Document:
        with self._path.open("rb") as file:
            return Document(file.read(JWT_KEYS_BYTES_MAX + 1))


class KeyUrl:
    """A JWKS of another server."""

    def __init__(self, url: str, egress: Egress) -> None:
        self._url = url
        self._egress = egress

    @property
    def name(self) -> str:
        return self._url.partition("?")[0]

    async def load(self) -> Document:
        answer = await self._egress.request(
            "GET",
            self._url,
            headers={"accept": "application/jwk-set+json, application/json"},
            bytes_max=JWT_KEYS_BYTES_MAX,
        )
        if answer.status != 200:
            raise EgressFailed(f"{self.name} answers with status {answer.status}, not 200.")
        return Document(answer.body, _age_s(answer.headers.get("cache-control", "")))


def _age_s(cache_control: str) -> float | None:
    if "no-store" in cache_control.lower() or "no-cache" in cache_control.lower():
        return 0.0
    match = _MAX_AGE.search(cache_control)
    return float(match[1]) if match else None


class Keys:
    """The key set in effect. With a source it is renewed in the background: every `age_s`, or
    sooner if the source says so, and when a token names a key that is not there. The last good set
    stays when the source fails. `on_change` is called with every other set.
    """

    def __init__(
        self,
        keys: KeySet | None = None,
        *,
        source: Source | None = None,
        rules: KeyRules | None = None,
        age_s: float = 0.0,
        gap_s: float = REFRESH_GAP_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = KeySet() if keys is None else keys
        self.on_change: Callable[[KeySet], None] = lambda keys: None
        self.loads = 0
        self.failures = 0
        self._source = source
        self._rules = rules
        self._age_s = age_s
        self._gap_s = gap_s
        self._monotonic = monotonic
        self._backoff = Backoff(base_s=min(gap_s, age_s), cap_s=max(age_s, 0.0), jitter=0.2)
        self._wait_s = age_s
        self._attempted_s = float("-inf")
        self._digest = b""
        self._problem = ""
        self._loading: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load the source now, and again whenever it is due."""
        if self._source is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        for task in (self._task, self._loading):
            if task is not None:
                task.cancel()

    async def refresh(self) -> None:
        """Load the source, unless that was tried a moment ago. Callers at the same time share one
        load."""
        loading = self._load_if_due()
        if loading is not None:
            await asyncio.shield(loading)

    def refresh_soon(self) -> float | None:
        """Begin to load the source, as `refresh` does, and return after how many seconds an unknown
        key may be there; None if it is not to be expected."""
        if self._load_if_due() is not None:
            return 1.0
        # The last set is out of date for an unknown time: it proves nothing about a missing key.
        return self._gap_s if self._problem else None

    def take(self, document: Document) -> None:
        """Replace the key set by that of a document; UnusableKeys leaves it as it is."""
        self._replace(document, self._parse(document))

    def _parse(self, document: Document) -> ParsedKeys | None:
        """Return the keys of a document that is not the last one."""
        assert self._rules is not None
        if hashlib.sha256(document.data).digest() == self._digest:
            return None
        return parse_key_set(document.data, self._rules)

    def _replace(self, document: Document, parsed: ParsedKeys | None) -> None:
        age_s = self._age_s if document.age_s is None else document.age_s
        self._wait_s = min(max(age_s, AGE_MIN_S), self._age_s)
        if parsed is None:
            return
        assert self._source is not None
        self._digest = hashlib.sha256(document.data).digest()
        self.current = parsed.keys
        _report(self._source.name, parsed)
        self.on_change(parsed.keys)

    def _load_if_due(self) -> asyncio.Task[None] | None:
        is_due = self._monotonic() >= self._attempted_s + self._gap_s
        if self._loading is None and self._source is not None and is_due:
            return self._begin()
        return self._loading

    def _begin(self) -> asyncio.Task[None]:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())
            self._loading.add_done_callback(self._ended)
        return self._loading

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._loading = None

    async def _run(self) -> None:
        failed = 0
        while True:
            await asyncio.shield(self._begin())
            failed = failed + 1 if self._problem else 0
            wait_s = self._backoff.wait_s(failed, random.random()) if failed else self._wait_s
            await asyncio.sleep(wait_s)

    async def _load(self) -> None:
        assert self._source is not None
        self._attempted_s = self._monotonic()
        self.loads += 1
        try:
            document = await self._source.load()
            # On a thread: a hundred keys take long enough to delay every other request.
            self._replace(document, await asyncio.to_thread(self._parse, document))
        except UnusableKeys as error:
            self._failed(f"it {error}")
        except PenstockError as error:
            self._failed(error.detail)
        except OSError as error:
            self._failed(error.strerror or str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next load may succeed
            self._failed(repr(error))
        else:
            if self._problem:
                _log.warning("the keys of JWTs are loaded again: %s", self._source.name)
            self._problem = ""

    def _failed(self, problem: str) -> None:
        assert self._source is not None
        self.failures += 1
        if problem != self._problem:
            _log.warning(
                "cannot load the keys of JWTs from %s, %s: %s",
                self._source.name,
                "the last ones stay" if len(self.current) else "no JWT is accepted",
                problem,
            )
        self._problem = problem


def _report(name: str, parsed: ParsedKeys) -> None:
    if parsed.ignored:
        shown = "; ".join(parsed.ignored[:_IGNORED_SHOWN])
        more = len(parsed.ignored) - _IGNORED_SHOWN
        _log.warning("%s: %s%s", name, shown, f"; and {more} more" if more > 0 else "")
    if not len(parsed.keys):
        _log.warning("%s has no key that can be used: no JWT is accepted", name)
