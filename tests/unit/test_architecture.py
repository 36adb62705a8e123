"""What import-linter cannot say: who may touch files, connect and read pending state; what is
pure; how long functions and files may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from penstock.log.stream import Stream

SOURCE = Path(__file__).resolve().parents[2] / "src" / "penstock"
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 600
# A catalogue is read by looking things up in it; it is as long as what it lists.
CATALOGUES = {"errors.py", "error_guide.py", "limits.py", "config/settings.py"}

# The one module that calls the operating system for the store's files.
FILES = "log/disk/files.py"
# Read a settings file, keep a reader's offset, and the like: not the store.
NOT_THE_STORE = {
    "log/disk/direct_batches.py",  # memory that the kernel writes from
    "log/disk/kernel_queue.py",  # the same, and an eventfd; `files` has opened what is written
    "log/disk/page_cache.py",  # asks the kernel about files that `files` has opened
    "config/load.py",
    "access/jwks.py",  # reads the keys of JWTs
    "http/console/assets.py",  # reads the files of the console, once
    "file_sync.py",  # syncs files that others have open
    "object_store.py",  # objects in a folder: backups and the like
    "certificates.py",  # reads the files of TLS, and makes a self-signed certificate
    "cli/system.py",
    "cli/commands/doctor/machine.py",  # measures syncs
    "cli/commands/cluster/demo.py",  # the logs of its nodes
    "cli/commands/cluster/postgres.py",  # the folders of its servers
    "cli/commands/demo/pipeline.py",  # writes the pipeline.toml of the demo
    "client/checkpoint.py",
    "spark/warehouse/duckdb.py",  # names a temporary folder for DuckDB
    "spark/warehouse/lock.py",  # asks whether the last writer of a warehouse is alive
    "spark/config.py",  # reads pipeline.toml and the schemas that it names
    "plain_modules.py",  # looks whether a source is newer than what was compiled of it
    "spark/sessions/class_archive.py",  # archives of Java classes in the user's cache
    "workers/sockets.py",  # makes the sockets between workers
    "spark/sessions/launchers.py",  # looks for Java, and writes scripts into the user's cache
}
CATALOG = "log/disk/catalog.py"
CHECKPOINT = "client/checkpoint.py"
STATE_INDEX = "state/server/index.py"  # a cache of the log, apart from the store
LIVE_STATE = "state/live/sqlite.py"  # a reader's own copy
DATABASES = {CATALOG, CHECKPOINT, STATE_INDEX, LIVE_STATE}

FILE_MODULES = {"fcntl", "io", "mmap", "shutil", "tempfile"}
PATH_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text"}
# Functions of `os` that have nothing to do with files.
HARMLESS_OS = {"_exit", "cpu_count", "devnull", "environ", "getpid", "strerror", "urandom"}
HARMLESS_OS |= {"sched_getaffinity"}

# Opens connections to other servers; of the rest of the server only backups do, to object stores.
EGRESS = "egress.py"
OBJECT_STORE = "object_store.py"
POSTGRES = "log/cluster/database.py"  # to the database that holds a cluster
SERVICE_MANAGER = "http/native/service_manager.py"  # to a socket of this machine
# To other processes of the same server.
PEERS = ("http/forwarding/forwarder.py", "workers/handover.py")
CLIENT_SIDE = ("spark/", "cli/", "client/", "stp/client/", "state/live", "testing.py")
OUTBOUND_MODULES = {"aiohttp", "asyncpg", "ftplib", "httpx", "httpx2", "http.client", "smtplib"}
OUTBOUND_MODULES |= {"obstore", "requests", "urllib.request", "urllib3", "xmlrpc"}
OUTBOUND_CALLS = {"connect", "connect_ex", "create_connection", "create_unix_connection"}
OUTBOUND_CALLS |= {"create_datagram_endpoint", "open_connection", "open_unix_connection"}
OUTBOUND_CALLS |= {"sock_connect", "sendto"}

# Packages whose own modules are rules: what does I/O is in a sub-package, or named here.
RULES = ("client", "protocol", "state", "stp", "stp/client")
NOT_RULES = {
    "client/checkpoint.py",  # keeps a reader's offset in a file
    "client/http.py",  # what both shells need of httpx2
}
IO_MODULES = {"asyncio", "concurrent", "http", "httpx2", "io", "multiprocessing", "os", "pathlib"}
IO_MODULES |= {"select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess"}
IO_MODULES |= {"tempfile", "threading", "urllib.request", "uvloop"}

SOURCES = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


@cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a source, which is parsed once for all rules."""
    return tuple(ast.walk(ast.parse(source)))


def _violations(
    rule: Callable[[str], Iterable[str]], names: Iterable[str] = SOURCES
) -> dict[str, list[str]]:
    """What a rule finds in each of the named files, without those where it finds nothing."""
    checked = list(names)
    assert checked
    found = {name: list(rule(SOURCES[name])) for name in checked}
    return {name: places for name, places in found.items() if places}


def _imports(source: str) -> Iterator[str]:
    """Every imported module and name, as dotted names."""
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_access(source: str) -> list[str]:
    """Every place where a source reaches for files, as `line: what`."""
    found = []
    for node in _nodes(source):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                found.append(f"{node.lineno}: open()")
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name not in HARMLESS_OS:
                found.append(f"{node.lineno}: os.{name}")
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in PATH_METHODS:
                if not ast.unparse(owner).endswith("files"):  # the files module, passed in
                    found.append(f"{node.lineno}: .{name}()")
    for name in _imports(source):
        module, _, member = name.partition(".")
        if module in FILE_MODULES or (module == "os" and member not in HARMLESS_OS | {""}):
            found.append(f"import {name}")
    return found


def test_only_the_files_module_touches_files() -> None:
    assert _violations(_file_access, SOURCES.keys() - {FILES, *NOT_THE_STORE}) == {}


def _sqlite(source: str) -> list[str]:
    return [name for name in _imports(source) if name.split(".")[0] == "sqlite3"]


def test_only_the_databases_use_sqlite() -> None:
    assert _violations(_sqlite, SOURCES.keys() - DATABASES) == {}
    assert _violations(_sqlite).keys() == DATABASES


def _connections(source: str, *, databases: bool = False) -> list[str]:
    """Every place where a source could connect to another machine."""
    found = []
    for node in _nodes(source):
        match node:
            case ast.Attribute(value=owner, attr=name) if name in OUTBOUND_CALLS:
                if not (databases and ast.unparse(owner) == "sqlite3"):
                    found.append(f"{node.lineno}: {name}")
    for name in _imports(source):
        known = OUTBOUND_MODULES | {f"asyncio.{call}" for call in OUTBOUND_CALLS}
        if any(name == module or name.startswith(module + ".") for module in known):
            found.append(f"import {name}")
    return found


def test_only_egress_connects_to_other_servers() -> None:
    names = {name for name in SOURCES if not name.startswith(CLIENT_SIDE)}
    names -= {EGRESS, OBJECT_STORE, POSTGRES, SERVICE_MANAGER, *PEERS}
    assert _violations(_connections, names - DATABASES) == {}
    opens_databases = partial(_connections, databases=True)
    assert _violations(opens_databases, names & DATABASES) == {}


def test_egress_is_seen_to_connect() -> None:
    assert _connections(SOURCES[EGRESS]) != []


def _io_imports(source: str) -> list[str]:
    """Every import of a source that does I/O, waits or starts threads."""
    return [
        name
        for name in _imports(source)
        if any(name == module or name.startswith(module + ".") for module in IO_MODULES)
    ]


def test_the_rules_at_the_top_of_a_package_do_no_io() -> None:
    names = {name for name in SOURCES if str(Path(name).parent) in RULES}
    assert _violations(_io_imports, names - NOT_RULES) == {}


@pytest.mark.parametrize("name", sorted(NOT_RULES))
def test_what_is_named_as_an_exception_does_io(name: str) -> None:
    assert _io_imports(SOURCES[name]) != []


def _pending_access(source: str) -> list[str]:
    """Every place where a source looks at the pending half of a stream itself."""
    fields = {name for name in dir(Stream) if name.startswith("pending_")}  # compiled, too
    return [
        f"{node.lineno}: .{node.attr}"
        for node in _nodes(source)
        if isinstance(node, ast.Attribute)
        and (node.attr in fields or _is_in_flight(node, ast.unparse(node.value)))
    ]


def _is_in_flight(node: ast.Attribute, owner: str) -> bool:
    return node.attr == "in_flight" and owner.endswith("stream")  # webhooks have one, too


def test_the_pending_half_of_a_stream_is_the_logs_alone() -> None:
    """Others ask `engine.pending(stream)`, and a check has it in its proposal."""
    names = [name for name in SOURCES if not name.startswith(("log/", *CLIENT_SIDE))]
    assert _violations(_pending_access, names) == {}


def _decisions(source: str) -> list[str]:
    return [
        name
        for name in _imports(source)
        if name.startswith("penstock.log.decide.")
        and not name.startswith("penstock.log.decide.checks.")
    ]


def test_decisions_are_reached_through_the_engine() -> None:
    """What `log.decide` has of its own is for the engine; others may name the type of a check."""
    assert _violations(_decisions, (name for name in SOURCES if not name.startswith("log/"))) == {}
    assert _decisions(SOURCES["log/engine.py"]) != []


def test_the_log_is_seen_to_look_at_what_is_pending() -> None:
    assert _pending_access(SOURCES["log/decide/append.py"]) != []


def _long_functions(source: str) -> list[str]:
    """The functions of a source that cannot be seen whole, as `line: name, lines`."""
    return [
        f"{node.lineno}: {node.name}, {lines} lines"
        for node in _nodes(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def test_functions_can_be_seen_whole() -> None:
    assert _violations(_long_functions) == {}


def test_no_source_file_outgrows_its_idea() -> None:
    lines = {name: len(source.splitlines()) for name, source in SOURCES.items()}
    too_long = {name for name, count in lines.items() if count > FILE_LINES_MAX}
    assert too_long - CATALOGUES == set()


def test_the_check_itself_sees_long_functions() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert _long_functions(f"async def f():\n{body}") == ["1: f, 61 lines"]
    assert _long_functions(f"def f():\n{body.removesuffix(chr(10))[:-9]}") == []


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "import os\nos.write(1, b'')",
        "import os\nos.path.exists('x')",
        "from os import fsync",
        "import shutil",
        "from pathlib import Path\nPath('x').write_bytes(b'')",
    ],
)
def test_the_check_itself_sees_file_access(source: str) -> None:
    assert _file_access(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import httpx2",
        "from http.client import HTTPSConnection",
        "import urllib.request",
        "from urllib import request",
        "import asyncio\nasyncio.open_connection('x', 1)",
        "from asyncio import open_connection",
        "loop.create_connection(f, 'x', 1)",
        "s.connect(('x', 1))",
        "import sqlite3\nsqlite3.connect('x')",
    ],
)
def test_the_check_itself_sees_connections(source: str) -> None:
    assert _connections(source) != []


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio",
        "from os import path",
        "import urllib.request",
        "from urllib import request",
    ],
)
def test_the_check_itself_sees_io(source: str) -> None:
    assert _io_imports(source) != []


@pytest.mark.parametrize("source", ["import osmium", "from urllib.parse import quote"])
def test_the_check_itself_leaves_other_imports_alone(source: str) -> None:
    assert _io_imports(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "stream.pending_tail",
        "self.stream.pending_meta['a']",
        "f(view.pending_count)",
        "self.stream.in_flight",
    ],
)
def test_the_check_itself_sees_what_is_pending(source: str) -> None:
    assert _pending_access(source) != []


@pytest.mark.parametrize(
    "source", ["import os\nos.getpid()", "self._files.read_text(p)", "import osmium"]
)
def test_the_check_itself_leaves_other_calls_alone(source: str) -> None:
    assert _file_access(source) == []


EXCEPTION = re.compile(r"#\s*(?:type: ignore|noqa)\b")
REASON = re.compile(r"# (?:noqa: [A-Z0-9, ]+ - |type: ignore\[[a-z, -]+\]  # )\w")


def _without_reason(source: str) -> list[str]:
    """Every line that silences a linter and says why neither itself nor in a comment above."""
    lines = source.splitlines()
    return [
        f"{number}: {line.strip()}"
        for number, line in enumerate(lines, 1)
        if EXCEPTION.search(line)
        and not REASON.search(line)
        and not any(above.strip().startswith("# ") for above in lines[max(number - 3, 0) : number])
    ]


def test_whatever_silences_a_linter_says_why() -> None:
    assert _violations(_without_reason) == {}


def test_a_silenced_linter_without_a_reason_is_seen() -> None:
    # Put together here, so that the linters do not take them for their own.
    noqa, ignore = "# no" + "qa: S608", "# type: " + "ignore[misc]"
    assert len(_without_reason(f"a = 1  {noqa}\nb = 2  {ignore}")) == 2
    assert _without_reason(f"a = 1  {noqa} - ours\nb = 2  {ignore}  # made at run time") == []
    assert _without_reason(f"# The name is ours.\na = 1  {noqa}") == []
