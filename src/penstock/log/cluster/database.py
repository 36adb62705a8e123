"""Sessions of PostgreSQL: how they are opened, and what their failures mean.

The one module that imports asyncpg. A statement either has its effect, durably as the settings of
the cluster promise, or fails for certain, or its outcome is unknown: nothing else is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]

VERSION_MIN: Final = 140000
"""PostgreSQL 14: the first with `client_connection_check_interval`."""
CONNECT_TIMEOUT_S: Final = 5.0
HEAD_START_S: Final = 0.5
"""So long one server is waited for alone before the next of the URL is tried beside it."""
STATEMENT_TIMEOUT_S: Final = 10.0
"""After so long a connection counts as dead; a statement may wait for a standby as long."""

_UNKNOWN: Final = ("08", "25006", "57", "58", "XX")
"""Beginnings of the SQL states after which it is not known what became of a statement."""

_SERVER_SETTINGS: Final = {
    "application_name": "penstock",
    "synchronous_commit": "on",
    "statement_timeout": "0",
    "lock_timeout": "0",
    # A node that is frozen in a transaction must not keep others from claiming what it owns, or
    # from writing the same rows. See `blockers` for what this does not end.
    "idle_in_transaction_session_timeout": "3000",
    "client_connection_check_interval": "2000",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
}
_ABOUT: Final = """SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
current_setting('synchronous_standby_names')"""


class OutcomeUnknown(Exception):
    """A statement may have been committed, on all servers, on one, or not at all."""


class Fenced(Exception):
    """Another node has claimed the shard: nothing of this one counts any more."""


class Refused(Exception):
    """The server has refused a statement: it had no effect."""


class Session(Protocol):
    """One connection. Its methods raise OutcomeUnknown, after which it is of no use, or Refused."""

    async def fetch(self, statement: str, *values: Any) -> Rows: ...

    async def execute_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None: ...

    def transaction(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Run what follows as one transaction; the end of the context is its commit."""

    @property
    def is_closed(self) -> bool: ...

    def abort(self) -> None:
        """Cut the connection, without a word to the server."""


class PgSession:
    """A session of asyncpg."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._warning = ""
        self._in_transaction = False
        connection.add_log_listener(self._noticed)

    def _noticed(self, connection: object, message: Any) -> None:
        # "canceling wait for synchronous replication": the commit is on one server only.
        if getattr(message, "severity_en", None) not in ("NOTICE", "INFO", "LOG", "DEBUG"):
            self._warning = str(message)

    @property
    def is_closed(self) -> bool:
        return bool(self._connection.is_closed())

    def abort(self) -> None:
        self._connection.terminate()

    async def fetch(self, statement: str, *values: Any) -> Rows:
        rows: Rows = await self._run(self._connection.fetch(statement, *values))
        return rows

    async def execute_many(self, statement: str, values: Sequence[Sequence[Any]]) -> None:
        await self._run(self._connection.executemany(statement, values))

    async def _run(self, work: Awaitable[T]) -> T:
        # A task of its own: a cancellation of the caller must not reach the statement. It would end
        # the wait for a standby and leave a commit on one server only.
        loop = asyncio.get_running_loop()
        task, ended = asyncio.ensure_future(work), loop.create_future()
        task.add_done_callback(partial(_retrieve, ended))
        timer = loop.call_later(STATEMENT_TIMEOUT_S, self.abort)
        try:
            await ended
        finally:
            timer.cancel()
        if loop.time() >= timer.when():
            raise OutcomeUnknown(
                f"no answer within {STATEMENT_TIMEOUT_S:g} s. Is a synchronous standby connected?"
            )
        try:
            result = task.result()
        except Exception as error:  # noqa: BLE001 - sorted by what it means
            raise self._failure(error) from None
        if self._warning and not self._in_transaction:
            self.abort()
            raise OutcomeUnknown(self._warning)
        return result

    @staticmethod
    def _failure(error: Exception) -> Exception:
        from asyncpg import PostgresError

        if isinstance(error, PostgresError):
            state = getattr(error, "sqlstate", None) or ""
            if not state.startswith(_UNKNOWN):
                return Refused(str(error))
        return OutcomeUnknown(f"{type(error).__name__}: {error}")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        await self._run(self._connection.execute("BEGIN"))
        self._in_transaction = True
        try:
            yield
        except BaseException:
            self._in_transaction = False
            with contextlib.suppress(OutcomeUnknown, Refused):
                await self._run(self._connection.execute("ROLLBACK"))
            raise
        self._in_transaction = False
        await self._run(self._connection.execute("COMMIT"))

    async def close(self) -> None:
        try:
            await self._connection.close(timeout=1)
        except Exception:  # noqa: BLE001 - it is gone, which is what is wanted
            self.abort()


def _retrieve(ended: asyncio.Future[None], task: asyncio.Future[Any]) -> None:
    """Look at the exception of a task that nobody may wait for any more, and wake who does."""
    if not task.cancelled():
        task.exception()
    if not ended.done():
        ended.set_result(None)


class About(NamedTuple):
    """What a server says of itself."""

    version: int
    is_standby: bool
    standbys: str
    """The setting `synchronous_standby_names`."""


class Database:
    """The database of a cluster, by its URL, which is never shown."""

    def __init__(self, settings: Settings) -> None:
        assert settings.cluster is not None
        self._dsn = settings.cluster
        self._durability = settings.cluster_durability

    @property
    def name(self) -> str:
        """Where the database is, without what is secret."""
        return _shown(self._dsn)

    async def open(self) -> Session:
        """Open a session with a server that takes writes and replicates them as promised.

        ClusterRefused if it will not do, however often it is tried; OutcomeUnknown if it may later.
        """
        connection = await self._open()
        session = PgSession(connection)
        try:
            about = About(*(await session.fetch(_ABOUT))[0])
            self._check(about)
        except BaseException:
            session.abort()
            raise
        return session

    async def _open(self) -> Any:
        try:
            import asyncpg
        except ImportError:
            raise ClusterRefused(
                "A node of a cluster needs asyncpg: pip install 'penstock-streams[cluster]'."
            ) from None
        try:
            return await _first(
                [
                    partial(
                        asyncpg.connect,
                        dsn,
                        timeout=CONNECT_TIMEOUT_S,
                        server_settings=_SERVER_SETTINGS,
                        target_session_attrs="read-write",
                    )
                    for dsn in _each_host(self._dsn)
                ]
            )
        except asyncpg.InvalidPasswordError:
            raise ClusterRefused(
                f"PostgreSQL at {self.name} refuses the password. Check the URL of --cluster."
            ) from None
        except asyncpg.InvalidAuthorizationSpecificationError:
            raise ClusterRefused(
                f"PostgreSQL at {self.name} refuses the user. Check the URL of --cluster, and "
                "pg_hba.conf."
            ) from None
        except asyncpg.InvalidCatalogNameError:
            raise ClusterRefused(
                f"There is no such database at {self.name}. Create it, or check the URL of "
                "--cluster."
            ) from None
        except (ValueError, asyncpg.InterfaceError) as error:
            if isinstance(error, asyncpg.InterfaceError) and "target" not in str(error):
                raise OutcomeUnknown(f"{self.name} cannot be reached.") from None
            raise ClusterRefused(
                "The URL of --cluster is not one of a database: "
                "postgresql://user@host:port/database."
            ) from None
        except asyncpg.TargetServerAttributeNotMatched:
            raise OutcomeUnknown(f"{self.name} has no server that takes writes.") from None
        except (OSError, TimeoutError, asyncpg.PostgresError) as error:
            reason = type(error).__name__ if isinstance(error, OSError) else str(error)
            raise OutcomeUnknown(f"{self.name} cannot be reached ({reason}).") from None

    def _check(self, about: About) -> None:
        if about.version < VERSION_MIN:
            raise ClusterRefused(
                f"{self.name} is PostgreSQL {about.version // 10000}; a cluster needs "
                f"{VERSION_MIN // 10000} or later."
            )
        if about.is_standby:
            raise OutcomeUnknown(f"{self.name} is a standby.")
        if self._durability == "replicated" and not about.standbys.strip():
            raise ClusterRefused(
                f"{self.name} has no synchronous standby (synchronous_standby_names is empty): "
                "what is acknowledged would be on one disk. Set up replication, or declare "
                "--cluster-durability managed or single."
            )


async def _first(openings: list[Callable[[], Awaitable[Any]]]) -> Any:
    """Return the first connection that can be opened. Each server has a head start: one that
    hangs must not hide those behind it in the URL."""
    left, running, failures = list(openings), set[asyncio.Future[Any]](), list[BaseException]()
    try:
        while left or running:
            if left:
                running.add(asyncio.ensure_future(left.pop(0)()))
            done, _ = await asyncio.wait(
                running,
                timeout=HEAD_START_S if left else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for each in done:
                running.remove(each)
                error = each.exception()
                if error is None:
                    return each.result()
                failures.append(error)
    finally:
        for each in running:
            _drop(each)
    # One that may come back counts for more than one that refuses.
    raise next((each for each in failures if isinstance(each, OSError)), failures[-1])


def _drop(opening: asyncio.Future[Any]) -> None:
    """Give up a connection that is being opened, or is open already."""
    is_open = opening.done() and not opening.cancelled() and opening.exception() is None
    if is_open:
        opening.result().terminate()
    opening.cancel()


def _each_host(dsn: str) -> list[str]:
    """Return the URL of each server that a URL names, in its order."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return [dsn]
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts:
        return [dsn]
    return [parts._replace(netloc=f"{user}{at}{host}").geturl() for host in hosts.split(",")]


def _shown(dsn: str) -> str:
    try:
        parts = urlsplit(dsn)
        if parts.scheme not in ("postgres", "postgresql"):
            return "the database of the cluster"  # who knows what it is
        hosts = parts.netloc.rpartition("@")[2]
        return f"{hosts or 'localhost'}{parts.path}"
    except ValueError:
        return "the database of the cluster"


class Sessions:
    """Sessions of one event loop, opened when they are needed and used by one caller at a time."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]], *, size: int) -> None:
        self._open = open_session
        self._idle: list[Session] = []
        self._room = asyncio.Semaphore(size)

    @asynccontextmanager
    async def use(self) -> AsyncIterator[Session]:
        """Provide a session; it is dropped if its outcome is unknown."""
        async with self._room:
            session = None
            while self._idle and session is None:
                session = self._idle.pop()
                session = None if session.is_closed else session
            if session is None:
                session = await self._open()
            try:
                yield session
            except BaseException as error:
                if isinstance(error, Refused | Fenced) and not session.is_closed:
                    self._idle.append(session)
                else:
                    session.abort()
                raise
            self._idle.append(session)

    async def query(self, statement: str, *values: Any) -> Rows:
        """Return the rows of a statement that changes nothing, so that it can be repeated once."""
        try:
            async with self.use() as session:
                return await session.fetch(statement, *values)
        except OutcomeUnknown:
            async with self.use() as session:
                return await session.fetch(statement, *values)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()
