"""TLS on one connection, without a socket: records, the end of a session, and what fails."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.http.native.tls import new_context
from penstock.http.native.tls_transport import TlsTransport
from penstock.http.sender import Certificate
from tests.helpers.certs import Authority


class Wire(asyncio.Transport):
    """The socket's transport: it records what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def take(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Above(asyncio.Protocol):
    """The protocol above: what it received, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.has_ended = False

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.has_ended = True
        return False


class Pair:
    """Both ends of a session: the transport under test, and a client without a socket."""

    def __init__(
        self,
        authority: Authority,
        context: ssl.SSLContext,
        *,
        client: ssl.SSLContext | None = None,
        session: ssl.SSLSession | None = None,
    ) -> None:
        # What a connection needs of the table.
        table: Any = SimpleNamespace(now=0.0, handshake_s=10.0, linger_s=5.0, opening=set())
        table.connection_gone = table.closed = lambda *_: None
        self.table = table
        self.wire, self.above = Wire(), Above()
        self.tls = TlsTransport(table, self.wire, context, self.established)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = (client or authority.client()).wrap_bio(
            self._in, self._out, server_hostname="127.0.0.1", session=session
        )
        self.is_established = False
        self.certificate: Certificate | None = None

    def established(self, tls: TlsTransport, certificate: Certificate | None) -> asyncio.Protocol:
        self.is_established = True
        self.certificate = certificate
        return self.above

    def shake_hands(self) -> None:
        with pytest.raises(ssl.SSLWantReadError):
            self.client.do_handshake()
        self.tls.start(self._out.read())
        while True:
            self.deliver()
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.upload()
            else:
                break
        self.upload()

    def upload(self) -> None:
        self.tls.data_received(self._out.read())

    def deliver(self) -> None:
        self._in.write(self.wire.take())

    def read(self, size: int) -> bytes:
        self.deliver()
        data = b""
        while len(data) < size:
            data += self.client.read(size)
        return data


def context_of(cert: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """The context of a server, as `Tls` makes it."""
    context = new_context()
    context.load_cert_chain(cert)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    pair = Pair(authority, context_of(authority.issue("server")))
    pair.shake_hands()
    assert pair.is_established
    assert pair.table.opening == set()
    return pair


def test_records_that_arrive_together_are_one_piece(pair: Pair) -> None:
    for _ in range(5):
        pair.client.write(b"x" * 1000)
    pair.upload()
    assert pair.above.pieces == [b"x" * 5000]


def test_a_record_in_parts_waits_until_it_is_whole(pair: Pair) -> None:
    pair.client.write(b"hello")
    data = pair._out.read()
    for at in range(len(data)):
        assert pair.above.pieces == []
        pair.tls.data_received(data[at : at + 1])
    assert pair.above.pieces == [b"hello"]


def test_a_write_of_many_records_goes_out_whole(pair: Pair) -> None:
    body = bytes(range(256)) * 4096
    pair.tls.write(memoryview(body))
    assert pair.read(len(body)) == body


def test_the_end_of_writing_is_said_and_the_connection_stays(pair: Pair) -> None:
    pair.tls.write(b"last")
    pair.tls.write_eof()
    assert pair.wire.calls == ["write_eof"]
    assert pair.read(4) == b"last"
    assert pair.client.read(1) == b""  # without the farewell this would raise
    pair.tls.write(b"more")
    pair.client.write(b"still sending")
    pair.upload()
    assert (pair.wire.sent, pair.above.pieces) == (b"", [])
    pair.tls.close()
    assert pair.wire.calls == ["write_eof", "close"]


def test_a_farewell_of_the_client_ends_its_input(pair: Pair) -> None:
    pair.client.write(b"bye")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.upload()
    assert (pair.above.pieces, pair.above.has_ended) == ([b"bye"], True)
    assert pair.wire.calls == ["close"]


def test_a_record_that_was_tampered_with_cuts_the_connection(pair: Pair) -> None:
    pair.client.write(b"hello")
    data = bytearray(pair._out.read())
    data[-1] ^= 1
    pair.tls.data_received(bytes(data))
    assert (pair.above.pieces, pair.wire.calls) == ([], ["abort"])


def test_a_failed_handshake_says_why_and_waits_for_the_client(authority: Authority) -> None:
    pair = Pair(authority, context_of(authority.issue("server"), authority.file))
    pair.shake_hands()  # a client of TLS 1.3 is done before the server misses its certificate
    assert not pair.is_established
    assert pair.wire.calls == ["write_eof"]  # not a reset, which could overtake the alert
    with pytest.raises(ssl.SSLError, match="certificate required"):
        pair.read(1)
    assert pair.tls.deadline == pair.table.linger_s
    pair.tls.data_received(b"more")
    pair.tls.overdue()
    assert pair.wire.calls == ["write_eof", "abort"]
    pair.tls.connection_lost(None)
    assert pair.table.opening == set()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_resumed_session_has_the_certificate_of_its_first(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = context_of(authority.issue("server"), authority.file)
    client = authority.client(authority.issue("alice", "a@example.com", common_name="alice"))
    client.maximum_version = version
    first = Pair(authority, context, client=client)
    first.shake_hands()
    first.tls.write(b"x")
    assert first.read(1) == b"x"  # the tickets of TLS 1.3 come before it
    second = Pair(authority, context, client=client, session=first.client.session)
    second.shake_hands()
    assert second.client.session_reused
    assert first.certificate == second.certificate
    assert second.certificate is not None
    assert second.certificate.common_name == "alice"
