"""Stored tokens, in memory and as a state stream that the server alone reads and writes.

A row has the digest of a secret, never the secret: the text of a token is shown once. Rows are
queued in the step that changes memory, and a write that fails is undone. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.access.authenticator import unauthorized
from penstock.access.principal import Principal
from penstock.access.rules import Rules, parse_rules
from penstock.access.token_text import PREFIX, new_token, parse_token
from penstock.errors import InvalidRule, TokenNotFound, TooManyTokens
from penstock.limits import TOKEN_EXPIRED_S
from penstock.log.rewriter import Rewriter
from penstock.log.system_stream import Event, SystemStream

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.requests import Appended

PATH: Final = "__ds/tokens"
TOKEN: Final = "token"  # noqa: S105 - the type of a row
LOG_BYTES: Final = 256 * 1024
"""History at which the stream is rewritten as its current rows."""
SWEEP_S: Final = 5.0
"""Time between two looks for tokens that have expired. The clock of the event loop stands still
while a machine sleeps, and the wall clock can be set."""

_SECOND_US: Final = 1_000_000
_NO_DIGEST: Final = "0" * 64
_log = logging.getLogger("penstock.access")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a token. `digest` is the SHA-256 of its secret."""

    id: str
    digest: str
    allow: tuple[str, ...]
    created_us: int
    created_by: str
    name: str = ""
    expires_us: int | None = None


class _Entry:
    """A token and its principal, which all requests with the token share."""

    __slots__ = ("principal", "token")

    def __init__(self, token: Token) -> None:
        self.token = token
        rules = parse_rules(token.allow)
        self.principal = Principal(
            token.name or f"token {token.id}", rules, id=f"{TOKEN}:{token.id}"
        )


class TokenStore:
    """The stored tokens of one server. Await `load` before the first request."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        *,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._tokens_max = settings.tokens_max
        self._stream = SystemStream(engine, PATH)
        self._entries: dict[str, _Entry] = {}
        self.rewriter = Rewriter(engine, self._stream, self._current_rows, log_bytes=LOG_BYTES)
        self._removals: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_copy = False  # another process stores the tokens

    @property
    def exists(self) -> bool:
        return self._stream.exists

    # -- reading

    async def load(self) -> None:
        """Read all tokens back after a start."""
        self.rewriter.loaded()
        async for events in self._stream.pieces():
            for event in events:
                self._apply(event)
        self._watch_expiry()

    def _apply(self, event: Event) -> None:
        id = event["key"]
        self._entries.pop(id, None)
        if event.get("value") is None:
            return
        try:
            self._entries[id] = _Entry(msgspec.convert(event["value"], Token))
        except (msgspec.ValidationError, InvalidRule) as error:
            # Refused, like every token that is not known: no rights are guessed.
            _log.error("the stored token %s cannot be used: %s", id, error)

    def adopt(self, tokens: list[Token]) -> None:
        """Take over the tokens of another process, which stores them; those that are not among
        them end."""
        self._is_copy = True
        current = {token.id: token for token in tokens}
        for id, entry in list(self._entries.items()):
            if current.get(id) != entry.token:
                del self._entries[id]
                entry.principal.end()
        for id, token in current.items():
            if id not in self._entries:
                entry = self._entries[id] = _Entry(token)
                self._is_valid(entry)
        self._watch_expiry()

    def all(self) -> list[Token]:
        """Return the tokens by id, expired ones included until they are removed."""
        return [self._entries[id].token for id in sorted(self._entries)]

    def principal(self, id: str) -> Principal | None:
        """Return the principal of a token that is valid now."""
        entry = self._entries.get(id)
        return entry.principal if entry is not None and self._is_valid(entry) else None

    def token_of(self, principal: Principal) -> Token | None:
        """Return the token whose principal it is; None for a principal of another kind."""
        entry = self._entries.get(principal.id.removeprefix(f"{TOKEN}:"))
        return entry.token if entry is not None and entry.principal is principal else None

    def find(self, text: str) -> Principal | None:
        """Return the principal of the text of a token; None for a credential of another kind."""
        if not text.startswith(PREFIX):
            return None
        parts = parse_token(text)
        if parts is None:
            raise unauthorized("The token is mistyped or cut off.")
        entry = self._entries.get(parts.id)
        # Compared in constant time, whether or not there is such a token.
        digest = _NO_DIGEST if entry is None else entry.token.digest
        is_equal = hmac.compare_digest(parts.digest, digest)
        if entry is None or not is_equal:
            raise unauthorized("The token is not one of this server's, or it was revoked.")
        if not self._is_valid(entry):
            raise unauthorized("The token has expired.")
        return entry.principal

    def _is_valid(self, entry: _Entry) -> bool:
        """Whether a token has not expired by the wall clock; set until when it is valid."""
        expires_us = entry.token.expires_us
        if expires_us is None:
            return True
        left_us = expires_us - self._clock.now_us()
        entry.principal.until_s = self._monotonic() + left_us / _SECOND_US if left_us > 0 else 0.0
        return left_us > 0

    # -- writing

    async def create(
        self, rules: Rules, *, name: str, expires_us: int | None, created_by: str
    ) -> tuple[Token, str]:
        """Store a new token; return it and its text, which is not stored."""
        await self._stream.ensure()
        now_us = self._clock.now_us()
        valid = sum((each.token.expires_us or inf) > now_us for each in self._entries.values())
        if valid >= self._tokens_max:
            raise TooManyTokens(
                f"There are {valid} tokens, and tokens_max allows no more. Remove some first."
            )
        parts = new_token()
        while parts.id in self._entries:
            parts = new_token()
        token = Token(
            id=parts.id,
            digest=parts.digest,
            allow=tuple(str(rule) for rule in rules.all),
            created_us=now_us,
            created_by=created_by,
            name=name,
            expires_us=expires_us,
        )
        entry = self._entries[token.id] = _Entry(token)
        self._is_valid(entry)

        def undo() -> None:
            self._entries.pop(token.id, None)

        await self._stream.write([_row(token.id, token)], undo=undo)
        self._watch_expiry()
        self.rewriter.rewrite_if_long()
        return token, parts.text

    async def remove(self, id: str) -> Token:
        """Revoke a token: once that is durable no request is let in with it, and live responses
        end."""
        entry = self._entries.get(id)
        if entry is None:
            await self._stream.caught_up()  # It may have been removed in this moment.
            raise TokenNotFound(f"There is no token {id!r}. GET /v1/tokens lists them.")
        # A task of its own: a client that goes away must not leave a revoked token half alive.
        await asyncio.shield(self._begin_removal(entry))
        return entry.token

    def _begin_removal(self, entry: _Entry) -> asyncio.Task[None]:
        id = entry.token.id

        def undo() -> None:
            self._entries.setdefault(id, entry)

        del self._entries[id]
        written = self._stream.write([_row(id, None)], undo=undo)
        task = asyncio.ensure_future(self._end(entry, written))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        return task

    async def _end(self, entry: _Entry, written: asyncio.Future[Appended]) -> None:
        await written
        entry.principal.end()
        self.rewriter.rewrite_if_long()

    # -- values beside the tokens

    async def ensure(self) -> None:
        """Create the stream unless it is there."""
        await self._stream.ensure()

    def meta(self, name: str) -> bytes | None:
        return self._stream.meta(name)

    def set_meta(self, name: str, value: bytes) -> asyncio.Future[None]:
        return self._stream.set_meta(name, value)

    # -- upkeep

    def _watch_expiry(self) -> None:
        if self._timer is None and any(
            each.token.expires_us is not None for each in self._entries.values()
        ):
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """End the principals of expired tokens, and remove tokens that expired long ago."""
        self._timer = None
        removed_us = self._clock.now_us() - TOKEN_EXPIRED_S * _SECOND_US
        for entry in list(self._entries.values()):
            is_valid, expires_us = self._is_valid(entry), entry.token.expires_us
            if self._is_copy:
                continue
            if not is_valid and expires_us is not None and expires_us <= removed_us:
                self._begin_removal(entry).add_done_callback(_log_failure)
        self._watch_expiry()

    def _current_rows(self) -> Iterator[Event]:
        """Yield all rows, each as it is when it is asked for: one that was removed meanwhile must
        not come back."""
        for id in list(self._entries):
            entry = self._entries.get(id)
            if entry is not None:
                yield _row(id, entry.token)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.rewriter.close()
        for task in self._removals:
            task.cancel()


def _row(id: str, token: Token | None) -> Event:
    event: Event = {"type": TOKEN, "key": id, "headers": {"operation": "upsert"}}
    if token is None:
        event["headers"] = {"operation": "delete"}
    else:
        event["value"] = token
    return event


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("cannot remove an expired token: %s", error)
