"""Copies and `append --producer`: killed at any moment, they lose and double nothing."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.client.sync.stream import Stream
from tests.helpers.cli import TIMEOUT_S, Cli
from tests.helpers.relay import Answered, Asked, Forward, Relay
from tests.helpers.server import Server

# Where a run is killed: at the so-manieth POST, before or after the server gets it. The first POST
# asks the server how far it is.
KILLS = [(1, False), (2, True), (3, False), (3, True)]


@pytest.fixture(scope="module")
def relay(server: Server) -> Iterator[Relay]:
    with Relay(server.port).serving() as relay:
        yield relay


def numbered(count: int) -> list[dict[str, object]]:
    return [{"number": number, "text": "x" * 60} for number in range(count)]


def run_killed(
    cli: Cli, relay: Relay, arguments: tuple[object, ...], *, at: int, stored: bool, stdin: Path
) -> None:
    """Run a command that is killed (-9) at its `at`th POST; `stored`: after the server has it."""
    process: list[subprocess.Popen[bytes]] = []
    started = threading.Event()

    def fate(asked: Asked, forward: Forward) -> Answered | None:
        if asked.method != "POST" or asked.number != at:
            return forward()
        if stored:
            forward()
        started.wait(TIMEOUT_S)
        process[0].kill()
        return None

    relay.reset(fate)
    with stdin.open("rb") as source, cli.start(*arguments, stdin=source.fileno()) as running:
        process.append(running)
        started.set()
        assert running.wait(TIMEOUT_S) == -9
    relay.reset()


def kill_again_and_again(
    cli: Cli, relay: Relay, arguments: tuple[object, ...], stdin: Path = Path("/dev/null")
) -> None:
    for at, stored in KILLS:
        run_killed(cli, relay, arguments, at=at, stored=stored, stdin=stdin)
    cli.ok(*arguments, stdin=stdin.read_bytes())


def test_a_mirror_loses_and_doubles_nothing(cli: Cli, relay: Relay) -> None:
    source = cli.make("mirror/json", *numbered(200))
    arguments = ("mirror", "--once", source.url, f"{relay.url}/v1/stream/mirror/copy")
    kill_again_and_again(cli, relay, arguments)
    copy = source.client.stream("mirror/copy")
    assert copy.read_bytes() == source.read_bytes()

    # It goes on with what is new, and ends with the source.
    source.append_many(numbered(30))
    source.close()
    result = cli.json(*arguments)
    assert (result["bytes"] > 0, result["closed"]) == (True, True)
    assert copy.read_bytes() == source.read_bytes()
    assert copy.head().closed
    assert cli.json(*arguments)["bytes"] == 0


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_source_whose_offsets_are_no_positions_is_counted(
    cli: Cli, server: Server, relay: Relay, content_type: str
) -> None:
    name = content_type.replace("/", "-")
    messages = [json.dumps(message) for message in numbered(120)]
    source = cli.make(f"opaque/{name}", *messages, content_type=content_type)
    copy = cli.client.stream(f"opaque/{name}-copy")
    with Relay(server.port, opaque_offsets=True).serving() as opaque:
        to = f"{relay.url}/v1/stream/opaque/{name}-copy"
        arguments = ("mirror", "--once", f"{opaque.url}/v1/stream/opaque/{name}", to)
        for at, stored in ((2, True), (3, False)):
            run_killed(cli, relay, arguments, at=at, stored=stored, stdin=Path("/dev/null"))
        source.append_many(messages[:5])
        cli.ok(*arguments)
    assert copy.read_bytes() == source.read_bytes()


def test_a_mirror_of_bytes_follows_live(cli: Cli) -> None:
    source = cli.make("mirror/bytes", bytes(range(256)) * 40, content_type="image/png")
    with cli.start("mirror", "mirror/bytes", "mirror/bytes-copy", "--json") as running:
        # The copy is there when its reader, which waits for the close, has seen all of it.
        source.append(b"more")
        source.close(b"end")
        assert running.stdout is not None
        assert json.loads(running.stdout.read())["closed"] is True
        assert running.wait(TIMEOUT_S) == 0
    copy = source.client.stream("mirror/bytes-copy")
    assert copy.read_bytes() == source.read_bytes()
    assert copy.head().content_type == "image/png"


def test_a_mirror_wants_a_stream_of_its_own(cli: Cli) -> None:
    cli.make("own/source", 1, 2)
    other = cli.make("own/other", "mine")
    code, error = cli.failed("mirror", "--once", "own/source", "own/other")
    assert (code, "not from this mirror" in error) == (4, True)
    assert other.read_json() == ["mine"]
    assert cli.failed("mirror", "own/source", "own/source")[0] == 2


def test_a_request_of_a_killed_mirror_that_comes_late_does_no_harm(cli: Cli, relay: Relay) -> None:
    source = cli.make("late/source", *numbered(3))
    arguments = ("mirror", "--once", source.url, f"{relay.url}/v1/stream/late/copy")

    def grow() -> None:  # so that the next request holds more than the late one
        source.append_many(numbered(4))

    _with_a_late_request(cli, relay, arguments, Path("/dev/null"), between=grow)
    assert source.client.stream("late/copy").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("batch", [3, 100])
def test_a_request_of_a_killed_append_that_comes_late_does_no_harm(
    cli: Cli, relay: Relay, tmp_path: Path, batch: int
) -> None:
    stream = cli.make(f"late/append-{batch}")
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(20)))
    url = f"{relay.url}/v1/stream/late/append-{batch}"
    # The second run cuts its requests differently, as the timing of a pipe may have it.
    first = ("append", url, "--producer", "p", "--batch", "7")
    second = ("append", url, "--producer", "p", "--batch", batch)
    _with_a_late_request(cli, relay, first, lines, second)
    assert stream.read_json() == list(range(20))


def _with_a_late_request(
    cli: Cli,
    relay: Relay,
    first: tuple[object, ...],
    stdin: Path,
    second: tuple[object, ...] | None = None,
    between: Callable[[], None] = lambda: None,
) -> None:
    """The first data of the first run is held until the second run has asked where it is."""
    held: list[Forward] = []
    killed = threading.Event()
    process: list[subprocess.Popen[bytes]] = []
    started = threading.Event()

    def hold(asked: Asked, forward: Forward) -> Answered | None:
        if asked.method != "POST" or asked.number != 2:
            return forward()
        held.append(forward)
        started.wait(TIMEOUT_S)
        process[0].kill()
        killed.set()
        return None

    def release(asked: Asked, forward: Forward) -> Answered | None:
        if asked.method == "POST" and asked.number == 2:
            held[0]()
        return forward()

    relay.reset(hold)
    with stdin.open("rb") as source, cli.start(*first, stdin=source.fileno()) as running:
        process.append(running)
        started.set()
        assert running.wait(TIMEOUT_S) == -9
        assert killed.wait(TIMEOUT_S)
    between()
    relay.reset(release)
    cli.ok(*(second or first), stdin=stdin.read_bytes())
    relay.reset()


def test_append_with_a_producer_loses_and_doubles_nothing(
    cli: Cli, relay: Relay, tmp_path: Path
) -> None:
    stream = cli.make("killed/append")
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(100)))
    arguments = (
        "append",
        f"{relay.url}/v1/stream/killed/append",
        "--producer",
        "p",
        "--batch",
        "9",
    )
    kill_again_and_again(cli, relay, arguments, lines)
    assert stream.read_json() == list(range(100))


def test_an_import_loses_and_doubles_nothing(cli: Cli, relay: Relay, tmp_path: Path) -> None:
    file = tmp_path / "big.jsonl"
    lines = [json.dumps({"number": number, "text": "x" * 200}) for number in range(16_000)]
    file.write_text("\n".join(lines))  # nearly 4 MiB, and so as many requests
    kill_again_and_again(cli, relay, ("import", file, f"{relay.url}/v1/stream/killed/import"))
    assert cli.ok("read", "killed/import").splitlines() == lines


def test_an_import_knows_its_file_by_content_or_by_name(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "app.log"
    file.write_text("one\ntwo\n")
    by_name = ("import", file, "import/log", "--producer", "app.log")
    assert cli.json(*by_name)["bytes"] == 8
    file.write_text("one\ntwo\nthree\n")
    assert cli.json(*by_name)["bytes"] == 6
    assert cli.ok("read", "import/log") == "one\ntwo\nthree\n"
    assert cli.json("head", "import/log")["content_type"] == "text/plain"

    bad = tmp_path / "bad.jsonl"
    bad.write_text('1\n2\n{"a"\n4\n')
    code, error = cli.failed("import", bad, "import/bad")
    assert (code, "Line 3 of bad.jsonl" in error, "Nothing was appended." in error) == (
        1,
        True,
        True,
    )
    assert cli.ok("read", "import/bad") == ""
    bad.write_text("1\n2\n3\n")
    assert cli.json("import", bad, "import/bad", "--close")["messages"] == 3
    assert cli.json("import", bad, "import/bad", "--close")["messages"] == 0


def test_an_export_goes_on_where_it_was_killed(cli: Cli, relay: Relay, tmp_path: Path) -> None:
    stream = cli.make("export/json", *numbered(150))
    file = tmp_path / "out.jsonl"
    arguments = ("export", f"{relay.url}/v1/stream/export/json", file)
    read_before: list[int] = []

    def kill_at(number: int) -> Callable[[Asked, Forward], Answered | None]:
        def fate(asked: Asked, forward: Forward) -> Answered | None:
            if asked.method == "GET" and asked.number == number:
                started.wait(TIMEOUT_S)
                process[0].kill()
                return None
            return forward()

        return fate

    for number in (1, 3, 2):
        process: list[subprocess.Popen[bytes]] = []
        started = threading.Event()
        relay.reset(kill_at(number))
        with cli.start(*arguments) as running:
            process.append(running)
            started.set()
            assert running.wait(TIMEOUT_S) == -9
        relay.reset()
        read_before.append(file.stat().st_size if file.exists() else 0)
        with file.open("ab") as torn:
            torn.write(b'{"number": 1')  # a kill in the middle of a write leaves such a rest
    assert read_before == sorted(read_before)
    assert read_before[-1] > 0
    cli.ok(*arguments)
    expected = "".join(f"{line}\n" for line in _lines(stream))
    assert file.read_text() == expected

    stream.append("new")
    assert cli.json(*arguments)["bytes"] == len(expected) + len('"new"\n')
    assert file.read_text() == expected + '"new"\n'


def test_an_export_overwrites_nothing_by_accident(cli: Cli, tmp_path: Path) -> None:
    cli.make("export/a", 1)
    cli.make("export/b", 2)
    file = tmp_path / "mine"
    file.write_text("precious")
    assert "--force" in cli.failed("export", "export/a", file)[1]
    assert file.read_text() == "precious"
    cli.ok("export", "export/a", file, "--force")
    assert "is an export of" in cli.failed("export", "export/b", file)[1]
    assert file.read_text() == "1\n"


def test_bytes_go_through_a_file_and_back(cli: Cli, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 30
    cli.make("file/a", blob, content_type="image/png")
    cli.ok("export", "file/a", tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes() == blob
    cli.ok("import", tmp_path / "picture", "file/b")  # the type is beside the file
    assert cli.json("head", "file/b")["content_type"] == "image/png"
    assert cli.ok("read", "file/b").encode("utf-8", "surrogateescape") == blob
    cli.make("file/json")
    code, error = cli.failed("import", tmp_path / "picture", "file/json")
    assert (code, "image/png" in error) == (4, True)


def _lines(stream: Stream) -> list[str]:
    return [json.dumps(message, separators=(",", ":")) for message in stream.read_json()]
