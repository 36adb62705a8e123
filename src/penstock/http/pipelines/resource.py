"""`/v1/pipelines`: GET lists pipelines and shows one with its runs, lag and dead letters; POST
replays dead letters and runs a query.

The work is done by commands; this parses requests and passes on what they print.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.config.setting import InvalidSetting
from penstock.errors import InvalidQuery, MethodNotAllowed, PipelineNotFound, RouteNotFound
from penstock.http.documents import document
from penstock.http.headers import JSON_TYPE, NO_STORE
from penstock.http.message import Request, Response
from penstock.http.pipelines.commands import PipelineCommands
from penstock.http.query import parse_count, parse_query
from penstock.protocol.json_mode import frame

if TYPE_CHECKING:
    from penstock.config.settings import Settings

LIST: Final = b"/v1/pipelines"
PREFIX: Final = b"/v1/pipelines/"
BELOW: Final = {
    "{name}": ("GET", "HEAD"),
    "{name}/dead-letters": ("GET", "HEAD"),
    "{name}/replay": ("POST",),
    "{name}/sql": ("POST",),
}
"""The methods that are served at each path behind the prefix."""
STATUS_AGE_S: Final = 3.0
"""How long the status of a pipeline is remembered: a page that refreshes must not start a process
for everybody who looks at it."""
DEAD_LETTERS: Final = 100
_DEFAULT_NAME: Final = "pipeline"
_SELECTION: Final[tuple[str, ...]] = ("reason", "type", "stream", "key")
_PAGE: Final = frozenset({"after", "limit", *_SELECTION})
_COLUMNS: Final = {"reason": "error"}


class SqlRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a query: one SELECT, and how many rows at most."""

    query: str
    limit: int | None = None


class ReplayRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a replay: which dead letters, and what to do with them."""

    reason: str | None = None
    type: str | None = None
    stream: str | None = None
    key: str | None = None
    fix: str | None = None
    discard: bool = False
    dry_run: bool = False

    @property
    def options(self) -> list[str]:
        """The options of the command; each with its value in one word, as that may be any text."""
        texts = {name: getattr(self, name) for name in (*_SELECTION, "fix")}
        options = [f"--{name}={text}" for name, text in texts.items() if text is not None]
        return options + ["--discard"] * self.discard + ["--dry-run"] * self.dry_run


class PipelineResource:
    """The resources of all pipelines."""

    def __init__(self, settings: Settings) -> None:
        self._files = files_by_name(settings.pipelines)
        self._commands = PipelineCommands(settings)
        self._rows_max = settings.pipelines_rows_max
        self._query_timeout_s = max(settings.pipelines_timeout_s - 2, 1.0)
        self._statuses: dict[str, asyncio.Future[bytes]] = {}

    def listing(self, path: str, request: Request) -> Response:
        names = [{"name": name, "file": file} for name, file in self._files.items()]
        return document({"pipelines": names})

    def get(self, path: str, request: Request) -> Awaitable[Response]:
        name, part = _split(path, request.method)
        if part == "dead-letters":
            query = parse_query(request.query, _PAGE, strict=True)
            limit = parse_count(
                "limit", query.get("limit", str(DEAD_LETTERS)), maximum=self._rows_max
            )
            after = parse_count("after", query["after"]) if "after" in query else 0
            chosen = {each: query[each] for each in _SELECTION if each in query}
            return self._dead_letters(self._file(name), chosen, after, limit)
        return self._status(name, self._file(name))

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        name, part = _split(path, request.method)
        file = self._file(name)
        if part == "sql":
            frame(request.body, allow_empty=True)  # raises what is wrong with the JSON itself
            try:
                wish = msgspec.json.decode(request.body, type=SqlRequest)
            except msgspec.DecodeError as error:
                raise InvalidQuery(
                    f'Send JSON such as {{"query": "FROM events"}}: {error}.'
                ) from None
            return self._sql(file, wish)
        return self._replay(name, file, _replay_request(request.body))

    async def _status(self, name: str, file: str) -> Response:
        status = self._statuses.get(name)
        if status is None:
            command = self._commands.run("status", "--json", "--details", file=file)
            status = self._statuses[name] = asyncio.ensure_future(command)
            status.add_done_callback(lambda done: self._forget_later(name, done))
        # Shielded: a client that leaves must not end what others wait for.
        content = await asyncio.shield(status)
        return _passed_on(b'{"name":%s,"status":%s}', msgspec.json.encode(name), content)

    def _forget_later(self, name: str, status: asyncio.Future[bytes]) -> None:
        if status.cancelled() or status.exception() is not None:
            self._forget(name, status)
        else:
            asyncio.get_running_loop().call_later(STATUS_AGE_S, self._forget, name, status)

    def _forget(self, name: str, status: asyncio.Future[bytes]) -> None:
        if self._statuses.get(name) is status:
            del self._statuses[name]

    async def _dead_letters(
        self, file: str, chosen: dict[str, str], after: int, limit: int
    ) -> Response:
        order = "ORDER BY stream, generation, ordinal"
        conditions = [
            f"{_COLUMNS.get(name, name)} = {_literal(text)}" for name, text in chosen.items()
        ]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        query = f"FROM dead_letters {where} {order} LIMIT {limit} OFFSET {after}"
        result = await self._query(file, query, limit)
        count = len(result["rows"])
        is_more = result["truncated"] or count == limit
        names = [column["name"] for column in result["columns"]]
        letters = [dict(zip(names, row, strict=True)) for row in result["rows"]]
        return document({"dead_letters": letters, "next": after + count if is_more else None})

    async def _replay(self, name: str, file: str, wish: ReplayRequest) -> Response:
        command = ("replay-dead-letters", "--json", *wish.options)
        content = await self._commands.run(*command, file=file)
        self._statuses.pop(name, None)
        return _passed_on(b"%s", content)

    async def _sql(self, file: str, wish: SqlRequest) -> Response:
        if wish.limit is not None and wish.limit < 1:
            raise InvalidQuery("`limit` must be a whole number of at least 1.")
        limit = self._rows_max if wish.limit is None else min(wish.limit, self._rows_max)
        return document(await self._query(file, wish.query, limit))

    async def _query(self, file: str, query: str, limit: int) -> dict[str, Any]:
        options = ("--rows", str(limit), "--seconds", f"{self._query_timeout_s:g}")
        # A lone surrogate is valid JSON and no UTF-8.
        text = query.encode("utf-8", "replace")
        output = await self._commands.run("query", *options, file=file, stdin=text)
        result: dict[str, Any] = msgspec.json.decode(output, type=dict[str, Any])
        if "error" in result:
            raise InvalidQuery(result["error"])
        return result

    def _file(self, name: str) -> str:
        try:
            return self._files[name]
        except KeyError:
            raise PipelineNotFound(
                f"There is no pipeline {name!r} here; the setting `pipelines` names the files of "
                "all there are."
            ) from None

    def close(self) -> None:
        for status in self._statuses.values():
            status.cancel()


def files_by_name(entries: tuple[str, ...]) -> dict[str, str]:
    """Return the files of the setting: each entry is a path, or a name, `=` and a path.

    Without a name it is that of the file, and for a `pipeline.toml` that of its folder."""
    files: dict[str, str] = {}
    for entry in entries:
        name, mark, file = entry.partition("=")
        if not mark or "/" in name:
            file = entry
            path = PurePath(entry)
            name = path.stem
            if name == _DEFAULT_NAME and path.parent.name:
                name = path.parent.name
        if not name or "/" in name or not file or name in (".", ".."):
            raise InvalidSetting(f"Setting pipelines: {entry!r} is neither PATH nor NAME=PATH.")
        if name in files:
            raise InvalidSetting(
                f"Setting pipelines: two files have the name {name!r}; write NAME=PATH."
            )
        files[name] = file
    return files


def _replay_request(body: bytes) -> ReplayRequest:
    """Return what a replay is to do; no body means everything."""
    if not body:
        return ReplayRequest()
    frame(body, allow_empty=True)  # raises what is wrong with the JSON itself
    try:
        wish = msgspec.json.decode(body, type=ReplayRequest)
    except msgspec.DecodeError as error:
        raise InvalidQuery(f'Send JSON such as {{"reason": "…"}}, or nothing: {error}.') from None
    if any("\0" in option for option in wish.options):
        raise InvalidQuery("The text has a NUL character, which no argument of a command can have.")
    if wish.fix is not None and wish.discard:
        raise InvalidQuery("`fix` and `discard` exclude each other.")
    return wish


def _literal(text: str) -> str:
    """Return a text as DuckDB writes it."""
    return "'" + text.replace("'", "''") + "'"


def _split(path: str, method: str) -> tuple[str, str]:
    """Return the name of a pipeline and the part of it that a path names."""
    name, mark, part = path.partition("/")
    served = BELOW.get("{name}" + mark + part)
    if served is None:
        raise RouteNotFound("Nothing is served at this path; GET / names everything that is.")
    if method not in served:
        allowed = ", ".join((*served, "OPTIONS"))
        raise MethodNotAllowed(f"{method} is not served here; use {allowed}.", Allow=allowed)
    return name, part


def _passed_on(pattern: bytes, *parts: bytes) -> Response:
    """Return the JSON that a command has printed."""
    body = pattern % tuple(part.strip() for part in parts)
    return Response(200, [JSON_TYPE, NO_STORE], body)
