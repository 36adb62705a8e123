"""What a person reads when something is wrong: one line that says what it is and what to do."""

from __future__ import annotations

import ast
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

import penstock
from penstock import errors
from penstock.cli import COMMANDS
from penstock.cli.error_text import message_of, target_of, with_commands
from penstock.cli.suggestions import OTHER_WORDS, unknown_command
from tests.helpers.cli import Cli
from tests.helpers.server import Server, running_server

SOURCE = Path(penstock.__file__).parent
HTTP_WORDS = re.compile(
    r"\b(GET|PUT|POST|DELETE|HEAD)\b|/v1/|was answered|Stream-[A-Z]|Errno|_ssl\.c|Traceback"
)
PAGE = b"<html><head><title>502 Bad\n Gateway</title></head><body><h1>nginx</h1></body></html>"


def said(cli: Cli, *arguments: object, stdin: bytes = b"") -> tuple[int, str]:
    """The exit code and the one line of a command that fails."""
    code, error = cli.failed(*arguments, stdin=stdin)
    assert error.startswith("Error: ")
    assert error.count("\n") == 1, error
    assert HTTP_WORDS.search(error) is None, error
    return code, error.removeprefix("Error: ").rstrip("\n")


@pytest.mark.parametrize(
    "command",
    [
        ("read", "nope"),
        ("head", "nope"),
        ("rm", "nope"),
        ("state", "show", "nope"),
        ("schema", "get", "nope"),
        ("trim", "nope", "--before", "now"),
        ("fork", "nope", "other"),
        ("mirror", "--once", "nope", "other"),
    ],
    ids=lambda command: command[0],
)
def test_a_stream_that_is_not_there(cli: Cli, command: tuple[str, ...]) -> None:
    message = f"There is no stream nope on {cli.url}; `penstock ls` lists them."
    assert said(cli, *command) == (3, message)


def test_tables_and_subscriptions_that_are_not_there(cli: Cli) -> None:
    code, message = said(cli, "table", "read", "nope")
    assert (code, "`penstock table create nope`" in message) == (3, True)
    for command in (("show", "nope"), ("add", "nope", "x")):
        code, message = said(cli, "subscription", *command)
        assert (code, "no subscription nope on" in message) == (3, True)
        assert "`penstock subscription ls`" in message
    assert said(cli, "create", "__ds/x")[1] == (
        "Names that begin with __ds are reserved for the server."
    )
    code, message = said(cli, "work", "nope", "--", "/no/such/program")
    assert (code, "'/no/such/program' is not a program" in message) == (2, True)


def test_a_server_that_cannot_be_reached(cli: Cli) -> None:
    for command in (("read", "x"), ("top", "--once"), ("scrub",), ("audit",)):
        code, message = said(cli, *command, "--url", "http://127.0.0.1:9")
        assert (code, "No server answers at http://127.0.0.1:9. " in message) == (5, True)
        assert "`penstock serve`" in message
    code, message = said(cli, "ls", "--url", "http://nosuch.invalid")
    assert (code, "The name nosuch.invalid cannot be resolved." in message) == (5, True)
    secure = cli.url.replace("http://", "https://")
    code, message = said(cli, "ls", "--url", secure)
    assert (code, message.endswith("use http:// instead of https://.")) == (5, True)


class Pages(BaseHTTPRequestHandler):
    """A web server that knows nothing of streams: /200 is a page, /404 another."""

    def do_GET(self) -> None:
        status = self.path.split("/")[1]
        self.send_response(int(status) if status.isdigit() else 502)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(PAGE)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def pages(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_certificate_that_is_not_trusted(cli: Cli) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = cli.folder / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    with pages(context) as port:
        url = f"https://127.0.0.1:{port}"
        code, message = said(cli, "ls", "--url", url)
        assert (code, f"The certificate of 127.0.0.1:{port} is not trusted" in message) == (5, True)
        assert "SSL_CERT_FILE" in message
        trusted = cli.run("ls", "--url", url, env={"SSL_CERT_FILE": str(file)})
        assert "web page" in trusted.stderr, "the advice helps"
        code, message = said(cli, "ls", "--url", url.replace("https://", "http://"))
        assert (code, message.endswith("use https:// instead of http://.")) == (5, True)


def test_the_page_of_a_proxy_is_not_printed(cli: Cli) -> None:
    with pages() as port:
        for command in (("ls",), ("read", "x")):
            code, message = said(cli, *command, "--url", f"http://127.0.0.1:{port}")
            assert code == 1
            assert message.startswith("A web page ('502 Bad Gateway') came back")
            assert "<" not in message
            code, message = said(cli, *command, "--url", f"http://127.0.0.1:{port}/200")
            assert (code, message.startswith("A web page")) == (1, True)
        code, message = said(cli, "head", "x", "--url", f"http://127.0.0.1:{port}/404")
        assert (code, message.startswith("A web page")) == (3, True)


def test_tokens(cli: Cli, tmp_path: Path) -> None:
    with (
        running_server(memory=True, env={"PENSTOCK_TOKEN": "s3cret"}) as guarded,
        Cli(guarded.url, tmp_path) as there,
    ):
        code, message = said(there, "ls")
        assert (code, f"{there.url} needs a token: set PENSTOCK_TOKEN" in message) == (6, True)
        code, message = said(there, "ls", "--token", "guess")
        assert (code, message.startswith(f"{there.url} refuses this token.")) == (6, True)
        assert "guess" not in message
        assert there.ok("ls", "--token", "s3cret") == ""
    code, message = said(cli, "ls", "--token", "a\nb")
    assert (code, "printable ASCII" in message) == (2, True)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("", "write it as http://127.0.0.1:4437."),
        ("localhost:4437", "write it as http://localhost:4437."),
        ("ftp://host", "write it as http://127.0.0.1:4437."),
        ("http://host:port", "write it as http://127.0.0.1:4437."),
        ("http://host:1/v1/stream/a/b", "use http://host:1 and a/b as the name."),
        ("http://host:1/v1/streams", "use http://host:1."),
    ],
)
def test_urls_that_are_not_those_of_a_server(cli: Cli, url: str, advice: str) -> None:
    code, error = cli.failed("read", "x", "--url", url)
    assert (code, error.count("\n")) == (2, 1)
    assert f"{advice} See `penstock read --help`." in error


def test_a_path_where_nothing_is_served(cli: Cli) -> None:
    for command in (("ls",), ("read", "x")):
        code, message = said(cli, *command, "--url", f"{cli.url}/foo")
        assert (code, message.endswith(f"try --url {cli.url}")) == (3, True)


def test_a_server_that_audits_nothing(cli: Cli) -> None:
    code, message = said(cli, "audit")
    assert (code, message.startswith("Nothing is audited here: ")) == (3, True)


def test_contexts_that_are_unknown(cli: Cli) -> None:
    code, message = said(cli, "ls", "--context", "prod")
    assert (code, "There is no context 'prod' (contexts: none)." in message) == (1, True)
    assert "`penstock context add prod URL`" in message


def test_commands_that_are_misspelt(cli: Cli) -> None:
    assert said(cli, "raed", "x") == (
        2,
        "There is no command 'raed'. Did you mean `penstock read`? See `penstock --help`.",
    )
    assert "Did you mean `penstock read -f`?" in said(cli, "consume", "x")[1]
    assert said(cli, "state", "shwo", "x")[1].endswith(
        "Did you mean 'show'? See `penstock state --help`."
    )
    assert said(cli, "read", "x", "--folow")[1].endswith(
        "Did you mean '--follow'? See `penstock read --help`."
    )
    assert said(cli, "--url", cli.url, "ls") == (
        2,
        "--url is no option of `penstock` itself. Options follow the command, as in "
        "`penstock ls --url URL`. See `penstock --help`.",
    )
    assert said(cli, "read") == (2, "Missing argument 'STREAMS...'. See `penstock read --help`.")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("consume", "read -f"),
        ("pub", "append"),
        ("sub", "read -f"),
        ("Raed", "read"),
        ("creat", "create"),
        ("subscribtion", "subscription"),
        ("publsh", "append"),
    ],
)
def test_the_command_that_was_meant(name: str, command: str) -> None:
    assert unknown_command(name, COMMANDS).endswith(f"Did you mean `penstock {command}`?")


def test_nothing_is_suggested_for_nonsense() -> None:
    assert unknown_command("qqqq", COMMANDS) == "There is no command 'qqqq'."


def test_words_of_other_tools_lead_to_commands() -> None:
    assert not OTHER_WORDS.keys() & set(COMMANDS)
    assert {command.split()[0] for command in OTHER_WORDS.values()} <= {*COMMANDS, "--help"}


def test_arguments_that_cannot_be_sent(cli: Cli) -> None:
    cli.make("odd/a")
    huge = "a" * 100_000
    for command, text in [
        (("ls", huge), "too long"),
        (("read", "odd/a", "--offset", huge), "too long"),
        (("append", "odd/a", "--producer", "a\nb", "1"), "printable ASCII"),
        (("create", "odd/b", "-t", "a\nb"), "printable ASCII"),
    ]:
        code, error = cli.failed(*command)
        assert (code, error.count("\n"), text in error) == (1, 1, True)
    for command, text in [
        (("read", ""), "name is empty"),
        (("read", "odd/a", "--offset", ""), "offset is empty"),
        (("subscription", "show", ""), "empty"),
    ]:
        code, message = said(cli, *command)
        assert (code, text in message) == (2, True)
    (cli.folder / "checkpoint").write_bytes(b"\xff garbage")
    assert "no checkpoint" in said(cli, "read", "odd/a", "--checkpoint", "checkpoint")[1]
    assert "none/file: No such" in said(cli, "read", "odd/a", "--checkpoint", "none/file")[1]
    assert "none/file" in said(cli, "export", "odd/a", "none/file")[1]
    assert "'x' is not an offset" in said(cli, "read", "odd/a", "--offset", "x")[1]


def test_input_and_output_that_are_closed_or_full(cli: Cli) -> None:
    cli.make("ends/a", 1)
    penstock_command = f"{sys.executable} -m penstock.cli"
    for command, code, error in [
        (f"{penstock_command} read ends/a > /dev/full", 1, "Error: No space left on device.\n"),
        (f"{penstock_command} --help > /dev/full", 1, "Error: No space left on device.\n"),
        (f"{penstock_command} read ends/a >&-", 0, ""),
        (f"{penstock_command} append ends/a <&-", 0, ""),
        (f"{penstock_command} read none 2>&-", 3, ""),
    ]:
        done = cli.shell(command)
        assert (done.returncode, done.stderr) == (code, error)
    code, message = said(cli, "append", "ends/a", stdin=bytes(range(128, 256)))
    assert (code, message.startswith("Line 1 is not valid UTF-8")) == (1, True)
    assert said(cli, "append", "ends/a", "--whole")[1].endswith("stdin is empty.")


def test_spark_that_is_not_installed(cli: Cli) -> None:
    packages = cli.folder / "packages"
    packages.mkdir()
    spark = ("pyspark", "pyarrow", "deltalake", "duckdb", "pandas")
    for folder in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for entry in folder.iterdir():
            if not entry.name.startswith((*spark, "__editable__")):
                (packages / entry.name).symlink_to(entry)
    env = {"PYTHONPATH": f"{SOURCE.parent}:{packages}"}
    python = f"{sys.executable} -S -m penstock.cli"
    done = cli.shell(f"{python} demo --pipeline --once", env=env)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: A pipeline needs the package pyspark. "
        "Install it with pip install 'penstock-streams[spark]'.\n"
    )


def test_the_python_client_refuses_what_is_not_a_url() -> None:
    with pytest.raises(errors.InvalidUrl, match="write it as http://localhost:4437"):
        penstock.Client("localhost:4437")
    with pytest.raises(errors.InvalidUrl, match="not the URL of a server"):
        penstock.AsyncClient("")


def advice_of_servers() -> list[str]:
    """Every text in the server's code that tells a client to send a request."""
    texts = []
    for folder in ("http", "log", "state", "stp", "subscriptions"):
        for file in (SOURCE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "NAME"
                        for part in node.values
                    )
                    if re.search(r"\b(PUT|DELETE|POST) .*/v1/", text):
                        texts.append(text)
    return texts


def test_advice_of_servers_is_given_as_commands() -> None:
    texts = advice_of_servers()
    assert len(texts) >= 8
    for text in texts:
        shown = with_commands(text)
        assert "`penstock " in shown, text
        assert re.search(r"\b(PUT|DELETE|POST)\b|/v1/", shown) is None, shown


@pytest.mark.parametrize(
    ("url", "server", "name"),
    [
        ("http://h:1/v1/stream/a/b", "http://h:1", "a/b"),
        ("http://h:1/mount/v1/stream/a?offset=1", "http://h:1/mount", "a"),
        ("http://h/v1/stream/a%20b/__ds/trim", "http://h", "a b"),
        ("http://h/v1/state/a", "http://h", "a"),
        ("http://h/v1/stream/__ds/subscriptions/s", "http://h", "s"),
        ("http://h/v1/streams", "http://h", ""),
        ("http://h/mount/v1/activity", "http://h/mount", ""),
        ("http://h/v1/links/rotate", "http://h", ""),
        ("http://h/other/table", "http://h/other/table", ""),
        ("", "", ""),
    ],
)
def test_what_a_url_names(url: str, server: str, name: str) -> None:
    target = target_of(url)
    assert (target.server, target.name) == (server or "://", name)


def test_errors_without_a_request_are_shown_as_they_are() -> None:
    assert message_of(errors.StreamNotFound("There is no such thing.")) == "There is no such thing."


def test_read_follow_tells_of_an_outage(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        port = server.port
        with Cli(server.url, tmp_path) as cli:
            cli.make("outage", 1)
            with cli.start("read", "-f", "outage") as reader:
                assert reader.stdout is not None
                assert reader.stderr is not None
                assert reader.stdout.readline() == b"1\n"
                server.kill()
                lost = reader.stderr.readline().decode()
                url = f"http://127.0.0.1:{port}"
                assert lost == f"Lost the connection to {url}; trying again until it is back.\n"
                with running_server(data_dir=folder, args=["--port", str(port)]):
                    back = reader.stderr.readline().decode()
                    assert back == f"Connected to {url} again; nothing was missed.\n"
                    cli.client.stream("outage").append(2)
                    assert reader.stdout.readline() == b"2\n"
                    reader.kill()


def test_a_server_of_the_right_kind_is_not_complained_about(cli: Cli, server: Server) -> None:
    assert cli.ok("ls", "nothing/", "--url", f"{server.url}/") == ""
