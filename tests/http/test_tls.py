"""TLS of the native server with real clients: openssl, curl's kind of requests, our own client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock.access.principal import ROOT
from penstock.client.retry import NO_RETRY
from penstock.errors import ConnectionFailed
from penstock.http.message import Request, Response
from penstock.http.native.connections import REFUSED_PER_ADDRESS_MAX
from tests.helpers.certs import Authority, split
from tests.helpers.server import Server, ServerDidNotStart, running_server
from tests.http.wire import Events, FakeApp, get, native, on_loop, until

openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
WAIT_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    cert = authority.issue("server")
    with running_server(memory=True, args=["--tls-cert", str(cert)]) as running:
        yield running


def s_client(server: Server, *args: str) -> str:
    """Everything that `openssl s_client` says of a connection."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", *args],
        input=b"",
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    return (done.stdout + done.stderr).decode(errors="replace")


def connect(server: Server, context: ssl.SSLContext) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
    return context.wrap_socket(raw, server_hostname="127.0.0.1")


def ask(sock: ssl.SSLSocket | socket.socket, request: bytes = b"") -> bytes:
    """The response to a request whose response has no body or a short one."""
    sock.sendall(request or b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = b""
    while b"\r\n\r\n" not in received:
        piece = sock.recv(65536)
        if not piece:
            return received
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length is not None and len(body) < int(length[1]):
        body += sock.recv(65536)
    return head + b"\r\n\r\n" + body


def serial(context: ssl.SSLContext, server: Server) -> str:
    """The fingerprint of the certificate that the server shows now."""
    with connect(server, context) as sock:
        shown = sock.getpeercert(binary_form=True)
        assert shown is not None
        return hashlib.sha256(shown).hexdigest()


def until_true(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# What is spoken


@openssl
@pytest.mark.parametrize(("flag", "protocol"), [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")])
def test_tls_1_2_and_1_3_are_spoken_with_alpn(
    server: Server, authority: Authority, flag: str, protocol: str
) -> None:
    said = s_client(server, flag, "-alpn", "h2,http/1.1", "-CAfile", str(authority.file))
    assert re.search(rf"New, {protocol}, Cipher is \S*(GCM|CHACHA20)", said)
    assert "ALPN protocol: http/1.1" in said
    assert "Verify return code: 0 (ok)" in said


@openssl
def test_tls_1_1_is_refused(server: Server) -> None:
    # Level 0, or openssl itself refuses before it sends anything.
    said = s_client(server, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert "Cipher is (NONE)" in said
    assert re.search(r"alert (number 70|protocol version)", said)


@openssl
@pytest.mark.parametrize(
    "cipher", ["AES128-SHA", "ECDHE-RSA-AES128-SHA256", "ECDHE-ECDSA-AES128-SHA"]
)
def test_ciphers_without_forward_secrecy_or_authentication_are_refused(
    server: Server, cipher: str
) -> None:
    assert "Cipher is (NONE)" in s_client(server, "-tls1_2", "-cipher", cipher)


@openssl
@pytest.mark.parametrize("flag", ["-tls1_2", "-tls1_3"])
def test_a_session_is_resumed(server: Server, tmp_path: Path, flag: str) -> None:
    session = str(tmp_path / "session")
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", flag]
    # In TLS 1.3 the ticket comes after the handshake: -ign_eof waits for the end of a response.
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for option, expected in (("-sess_out", b"New, TLS"), ("-sess_in", b"Reused, TLS")):
        done = subprocess.run(
            [*command, "-ign_eof", option, session],
            input=request,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert expected in done.stdout
        assert b"HTTP/1.1 200" in done.stdout


@openssl
def test_a_client_cannot_renegotiate(server: Server) -> None:
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-tls1_2"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        output, _ = process.communicate(b"R\n", timeout=WAIT_S)
    assert b"no renegotiation" in output


def test_responses_and_urls_say_https(server: Server, authority: Authority) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with httpx2.Client(base_url=server.url, verify=authority.client()) as client:
        created = client.put("/v1/stream/urls", headers={"Content-Type": "application/json"})
        assert created.headers["location"] == f"{server.url}/v1/stream/urls"
        # Nobody is trusted here: the header of a stranger changes nothing.
        spoofed = client.put("/v1/stream/urls2", headers={"X-Forwarded-Proto": "http"})
        assert spoofed.headers["location"] == f"{server.url}/v1/stream/urls2"


# What is not TLS


def test_plain_http_is_told_to_use_https(server: Server) -> None:
    response = httpx2.get(f"http://127.0.0.1:{server.port}/v1/stream/x")
    assert response.status_code == 400
    assert "https://" in response.json()["detail"]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2\3",
        b"\x16\3\1\0\5hello",
        b"\x16\3\1\xff\xff" + os.urandom(70_000),
        b"\x80\x2e\1\0\2\0\x15\0\0\0\x10",  # SSLv2
        b"\x16",
    ],
    ids=["binary", "no hello", "long", "sslv2", "one byte"],
)
def test_garbage_ends_the_connection_and_nothing_else(
    server: Server, authority: Authority, data: bytes
) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as sock,
        contextlib.suppress(ConnectionError),
    ):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    with connect(server, authority.client()) as sock:
        assert b" 200 " in ask(sock)


def test_a_handshake_that_stalls_is_ended(authority: Authority, tmp_path: Path) -> None:
    cert = authority.issue("stall")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    half = outgoing.read()[:100]
    args = ["--tls-cert", str(cert), "--tls-handshake-timeout", "0.3"]
    with running_server(memory=True, args=args) as server:
        for start in (b"", half[:1], half):
            with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as sock:
                sock.sendall(start)
                begun = time.monotonic()
                with contextlib.suppress(ConnectionError):
                    assert sock.recv(65536) == b""
                assert time.monotonic() - begun < WAIT_S / 2
        with connect(server, authority.client()) as sock:
            assert b" 200 " in ask(sock)


@on_loop
async def test_unfinished_handshakes_count_as_connections(authority: Authority) -> None:
    cert = authority.issue("count")
    async with native(tls_cert=cert, connections_max=1) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as sock:
            sock.setblocking(False)
            await until(lambda: server.table.count() == 1)
            assert server.table.opening
        await until(lambda: server.table.count() == 0)


@on_loop
async def test_unfinished_handshakes_of_an_address_are_limited(authority: Authority) -> None:
    settings: dict[str, Any] = {
        "tls_cert": authority.issue("few"),
        "connections_per_address_max": 2,
    }
    async with native(**settings) as server, contextlib.AsyncExitStack() as stack:
        most = 2 + REFUSED_PER_ADDRESS_MAX
        for _ in range(most + 5):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            writer.write(b"\x16")
        await until(lambda: server.table.count() == most)
        assert len(server.table.opening) == most
    assert server.table._per_address == {}


@on_loop
async def test_connections_of_an_address_are_counted_once(authority: Authority) -> None:
    settings: dict[str, Any] = {
        "tls_cert": authority.issue("once"),
        "connections_per_address_max": 2,
    }
    async with native(**settings) as server, contextlib.AsyncExitStack() as stack:
        streams = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=authority.client()
            )
            stack.callback(writer.close)
            streams.append((reader, writer))
            await until(lambda: not server.table.opening)
        for (reader, writer), status in zip(streams, (b"200", b"200", b"429"), strict=True):
            writer.write(get("/"))
            assert status in await reader.readline()


# Certificates of the server


def test_an_expired_certificate_is_refused_by_clients_and_logged(authority: Authority) -> None:
    cert = authority.issue("expired", expired=True)
    with running_server(memory=True, args=["--tls-cert", str(cert)]) as server:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            connect(server, authority.client())
        assert "has expired" in server.stderr


def test_a_certificate_of_another_host_is_refused(authority: Authority) -> None:
    cert = authority.issue("other", "elsewhere.example")
    with (
        running_server(memory=True, args=["--tls-cert", str(cert)]) as server,
        pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"),
    ):
        connect(server, authority.client())


def test_a_changed_certificate_is_taken_up_while_connections_go_on(authority: Authority) -> None:
    cert = authority.issue("reloaded")
    client = authority.client()
    with running_server(memory=True, args=["--tls-cert", str(cert)]) as server:
        before = serial(client, server)
        with connect(server, client) as old:
            assert b" 200 " in ask(old)
            authority.issue("reloaded")
            until_true(lambda: serial(client, server) != before)
            assert b" 200 " in ask(old)  # the old connection knows nothing of it


def test_a_broken_certificate_is_logged_and_the_old_one_stays(authority: Authority) -> None:
    cert, key = split(authority.issue("broken"))
    client = authority.client()
    args = ["--tls-cert", str(cert), "--tls-key", str(key)]
    with running_server(memory=True, args=args) as server:
        before = serial(client, server)
        good = cert.read_text()
        other, other_key = split(authority.issue("another"))
        for text, reason in (
            (good[: len(good) // 2], "PEM"),
            (other.read_text(), "do not belong together"),
            ("", "PEM"),
        ):
            cert.write_text(text)
            # A signal, so that the test need not wait for the next look at the files.
            os.kill(server.pid, signal.SIGHUP)
            until_true(functools.partial(_is_last_line, server, reason))
            assert serial(client, server) == before
        cert.unlink()
        os.kill(server.pid, signal.SIGHUP)
        until_true(lambda: "No such file" in server.stderr)
        assert serial(client, server) == before
        cert.write_text(other.read_text())
        key.write_text(other_key.read_text())
        os.kill(server.pid, signal.SIGHUP)
        until_true(lambda: serial(client, server) != before)
        assert server.running


def _is_last_line(server: Server, text: str) -> bool:
    return text in "".join(server.stderr.splitlines()[-1:])


def test_files_that_cannot_be_used_stop_a_start_with_one_line(
    authority: Authority, tmp_path: Path
) -> None:
    cert, key = split(authority.issue("start"))
    _, other = split(authority.issue("start-other"))
    text = tmp_path / "text.pem"
    text.write_text("hello")
    encrypted = tmp_path / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", encrypted],
        check=True,
    )
    for args, reason in (
        (["--tls-cert", "/nowhere.pem"], "/nowhere.pem cannot be read: No such file"),
        (["--tls-cert", str(text)], "PEM"),
        (["--tls-cert", str(cert)], "PEM"),  # without a key
        (["--tls-cert", str(cert), "--tls-key", str(other)], "do not belong together"),
        (["--tls-cert", str(cert), "--tls-key", str(encrypted)], "is encrypted"),
        (
            ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(text)],
            "client CA",
        ),
        (["--tls-key", str(key)], "needs tls_cert"),
        (["--tls-cert", str(cert), "--tls-self-signed"], "exclude each other"),
        (["--tls-self-signed", "--tls-client-required"], "needs tls_client_ca"),
        (["--proxy-protocol"], "needs trusted_proxies"),
    ):
        with pytest.raises(ServerDidNotStart) as failure, running_server(memory=True, args=args):
            pass
        message = str(failure.value).strip()
        assert reason in message
        assert len(message.splitlines()) == 1, message


# The self-signed one


def test_a_self_signed_certificate_is_made_once_and_private(tmp_path: Path) -> None:
    shown = []
    for _ in range(2):
        with running_server(data_dir=tmp_path / "data", args=["--tls-self-signed"]) as server:
            cert = tmp_path / "data/tls/cert.pem"
            context = ssl.create_default_context(cafile=cert)
            for host in ("127.0.0.1", "localhost", "::1", socket.gethostname()):
                raw = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
                with context.wrap_socket(raw, server_hostname=host) as sock:
                    assert b" 200 " in ask(sock)
            shown.append(serial(context, server))
            assert server.process.stdout is not None
            printed = server.process.stdout.readline() + server.process.stdout.readline()
            assert shown[-1].upper() in printed.replace(":", "")
            assert f"--cacert {cert}" in printed
    assert shown[0] == shown[1]
    for name in ("cert.pem", "key.pem"):
        assert (tmp_path / "data/tls" / name).stat().st_mode & 0o777 == 0o600


def test_in_memory_the_self_signed_certificate_leaves_nothing(tmp_path: Path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    with running_server(memory=True, args=["--tls-self-signed"], env=env) as server:
        (cert,) = tmp_path.glob("penstock-tls-*/cert.pem")
        with connect(server, ssl.create_default_context(cafile=cert)) as sock:
            assert b" 200 " in ask(sock)
    assert list(tmp_path.glob("penstock-tls-*")) == []


# Certificates of clients


def test_client_certificates_are_verified(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other-ca")
    good = authority.issue("client", "alice@example.com", common_name="alice")
    expired = authority.issue("client-expired", "bob@example.com", expired=True)
    foreign = other.issue("client-foreign", "eve@example.com")
    ca = ["--tls-cert", str(authority.issue("server-mtls")), "--tls-client-ca", str(authority.file)]
    for args, without in ((ca, True), ([*ca, "--tls-client-required"], False)):
        with running_server(memory=True, args=args) as server:
            assert _is_let_in(server, authority.client()) is without
            assert _is_let_in(server, authority.client(good))
            assert not _is_let_in(server, authority.client(expired))
            assert not _is_let_in(server, authority.client(foreign))


def _is_let_in(server: Server, context: ssl.SSLContext) -> bool:
    # With TLS 1.3 the client learns of a refusal when it first reads.
    try:
        with connect(server, context) as sock:
            return b" 200 " in ask(sock)
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            raise
        return False


@on_loop
async def test_requests_of_two_certificates_are_never_mixed_up(authority: Authority) -> None:
    """The same bytes on connections with different certificates: the guard sees each of them."""
    refused: list[Request] = []

    class Routing(FakeApp):
        def refuse(self, head: Request) -> Response | None:
            head.principal = ROOT
            refused.append(head)
            return None

    app = Routing()
    app.routes[b"/who"] = lambda request: Response(
        200, [], request.certificate.common_name.encode() if request.certificate else b"nobody"
    )
    alice = authority.issue("alice", "spiffe.example", "a@example.com", common_name="alice")
    bob = authority.issue("bob", "bob.example", common_name="bob")
    settings = {"tls_cert": authority.issue("mixed"), "tls_client_ca": authority.file}
    async with native(app, **settings) as server:
        connections = {}
        for name, cert in (("alice", alice), ("bob", bob), ("nobody", None)):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=authority.client(cert)
            )
            connections[name] = (reader, writer)
        for turn in range(4):
            for name, (reader, writer) in connections.items():
                refused.clear()
                writer.write(get("/who"))
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                assert (await reader.readexactly(size)).decode() == name
                # Only a head without a certificate is let in because it was let in before.
                assert len(refused) == (0 if name == "nobody" and turn > 0 else 1)
        for _, writer in connections.values():
            writer.close()
    certificate = next(r.certificate for r in app.requests if r.certificate)
    assert certificate.common_name == "alice"
    assert certificate.dns == ("spiffe.example",)
    assert certificate.emails == ("a@example.com",)
    der = ssl.PEM_cert_to_DER_cert(
        split(alice)[0].read_text().split("-----END")[0] + "-----END CERTIFICATE-----\n"
    )
    assert certificate.sha256 == hashlib.sha256(der).hexdigest()


# HTTP over it


def test_large_bodies_long_polls_and_events(server: Server, authority: Authority) -> None:
    with httpx2.Client(base_url=server.url, verify=authority.client(), timeout=WAIT_S) as client:
        body = os.urandom(8 << 20)
        client.headers["Content-Type"] = "application/octet-stream"
        client.put("/v1/stream/big")
        for _ in range(2):
            assert client.post("/v1/stream/big", content=body).status_code == 204
        read = b""
        offset = "-1"
        while len(read) < 2 * len(body):
            page = client.get("/v1/stream/big", params={"offset": offset})
            read, offset = read + page.content, page.headers["stream-next-offset"]
        assert read == body + body

        done: list[bytes] = []
        poll = threading.Thread(
            target=lambda: done.append(
                client.get("/v1/stream/big", params={"offset": offset, "live": "long-poll"}).content
            )
        )
        poll.start()
        with client.stream("GET", "/v1/stream/big", params={"offset": "now", "live": "sse"}) as sse:
            lines = sse.iter_lines()
            assert next(lines)  # the first control event: it is subscribed
            client.post("/v1/stream/big", content=b"hello")
            poll.join(WAIT_S)
            assert done == [b"hello"]
            assert any("aGVsbG8=" in line for line in lines)


@on_loop
async def test_a_reader_that_takes_nothing_is_cut_off(authority: Authority) -> None:
    ready = threading.Event()
    leave = threading.Event()

    def stall(port: int) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", port))
        with authority.client().wrap_socket(raw, server_hostname="127.0.0.1") as sock:
            sock.sendall(get("/events"))
            ready.set()
            leave.wait(WAIT_S)

    async with native(tls_cert=authority.issue("stalls"), write_stall_timeout_s=0.1) as server:
        events = Events()
        server.app.routes[b"/events"] = lambda _: Response(200, [], events)
        client = threading.Thread(target=stall, args=(server.port,))
        client.start()
        await events.attached.wait()
        while not events.sink.congested:
            events.sink.write(bytes(65536))
        await events.detached.wait()
        assert not server.table.events
        leave.set()
        client.join()
    ready.clear()
    leave.clear()


def test_what_was_acknowledged_over_tls_survives_a_kill(
    authority: Authority, tmp_path: Path
) -> None:
    args = ["--tls-cert", str(authority.issue("killed"))]
    with (
        running_server(data_dir=tmp_path / "data", args=args) as server,
        httpx2.Client(base_url=server.url, verify=authority.client()) as client,
    ):
        client.put("/v1/stream/a", headers={"Content-Type": "application/json"})
        for n in range(20):
            assert client.post("/v1/stream/a", json=n).status_code == 204
        server.kill()
    with (
        running_server(data_dir=tmp_path / "data", args=args) as server,
        httpx2.Client(base_url=server.url, verify=authority.client()) as client,
    ):
        assert client.get("/v1/stream/a").json() == list(range(20))


def test_a_stop_ends_events_and_says_goodbye(authority: Authority) -> None:
    args = ["--tls-cert", str(authority.issue("stops"))]
    with (
        running_server(memory=True, args=args) as server,
        connect(server, authority.client()) as sock,
    ):
        ask(sock, b"PUT /v1/stream/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        sock.sendall(b"GET /v1/stream/a?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = sock.recv(65536)
        with connect(server, authority.client()) as idle:
            assert server.terminate() == 0
            # Without TLS's own goodbye a read raises SSLEOFError.
            while piece := sock.recv(65536):
                received += piece
            assert received.endswith(b"0\r\n\r\n")
            assert idle.recv(1) == b""


# Our own client


def test_the_client_trusts_the_ca_that_it_is_told(server: Server, authority: Authority) -> None:
    with penstock.Client(server.url, ca=authority.file) as client:
        stream = client.stream("ours")
        stream.create(content_type="application/json")
        stream.append({"n": 1})
        assert stream.read().messages == [{"n": 1}]
    with (
        penstock.Client(server.url, retry=NO_RETRY) as client,
        pytest.raises(ConnectionFailed, match="certificate"),
    ):
        client.stream("ours").head()
    with penstock.Client(server.url, verify=False) as client:
        assert client.stream("ours").head()
