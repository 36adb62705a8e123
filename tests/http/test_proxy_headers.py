"""What a proxy says of its client, as pure rules: forwarded headers and the PROXY protocol."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.native.proxy_header import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    InvalidProxyHeader,
    ProxyHeader,
    crc32c,
    parse,
)
from penstock.http.sender import Certificate, Proxies, Sender, plain_address

PROXIES = Proxies(["10.0.0.0/8", "fd00::/8"])
PROXY = Sender("10.0.0.1", is_proxy=True)


def client(**headers: str) -> tuple[str, str]:
    """The client's address and scheme, of a request with these headers from a trusted proxy."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    sender = PROXIES.client(PROXY, named)
    return sender.peer, sender.scheme


@pytest.mark.parametrize(
    ("chain", "peer"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, 10.1.2.3", "203.0.113.7"),  # two proxies of ours
        ("6.6.6.6, 203.0.113.7", "203.0.113.7"),  # the client has sent one itself
        ("6.6.6.6,10.9.9.9, 203.0.113.7 ,10.1.2.3", "203.0.113.7"),
        ("10.5.5.5, 10.1.2.3", "10.5.5.5"),  # a client within the trusted network
        ("2001:db8::7", "2001:db8::7"),
        ("2001:DB8:0::7, fd00::1", "2001:db8::7"),
        ("[2001:db8::7]:1234", "2001:db8::7"),
        ("203.0.113.7:1234", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("unknown", "10.0.0.1"),
        ("203.0.113.7, unknown, 10.1.2.3", "10.1.2.3"),  # nothing before a gap is certain
        ("", "10.0.0.1"),
        (",,,", "10.0.0.1"),
        ("203.0.113.7, " + "10.1.2.3, " * 100 + "10.1.2.3", "10.1.2.3"),
    ],
)
def test_the_last_address_that_is_not_trusted_is_the_client(chain: str, peer: str) -> None:
    assert client(x_forwarded_for=chain) == (peer, "http")


@pytest.mark.parametrize(
    ("proto", "scheme"),
    [
        ("https", "https"),
        ("HTTPS", "https"),
        ("http", "http"),
        ("https, http", "http"),
        ("x", "http"),
    ],
)
def test_the_scheme_is_that_of_the_last_proxy(proto: str, scheme: str) -> None:
    assert client(x_forwarded_proto=proto) == ("10.0.0.1", scheme)


@pytest.mark.parametrize(
    ("forwarded", "expected"),
    [
        ("for=203.0.113.7;proto=https", ("203.0.113.7", "https")),
        ('For="[2001:db8::7]:99";Proto=HTTPS;by=10.0.0.1', ("2001:db8::7", "https")),
        (
            "for=6.6.6.6;proto=http, for=203.0.113.7;proto=https, for=10.2.2.2",
            ("203.0.113.7", "https"),
        ),
        ("for=203.0.113.7, for=_hidden;proto=https", ("10.0.0.1", "https")),
        ('for="203.0.113.7:80"', ("203.0.113.7", "http")),
        ("for=unknown;proto=https", ("10.0.0.1", "https")),
        # What a stranger left open does not hide what the proxy has added.
        ('for="6.6.6.6, for=203.0.113.7;proto=https', ("203.0.113.7", "https")),
        ('for=", for="[2001:db8::7]"', ("2001:db8::7", "http")),
        ("junk", ("10.0.0.1", "http")),
        ("", ("10.0.0.1", "http")),
    ],
)
def test_the_standard_header_is_understood(forwarded: str, expected: tuple[str, str]) -> None:
    assert client(forwarded=forwarded) == expected


def test_the_standard_header_counts_only_alone() -> None:
    """A proxy that sets the X- headers passes on what its client sent as `Forwarded`."""
    both = {"x_forwarded_for": "203.0.113.7", "forwarded": "for=6.6.6.6;proto=https"}
    assert client(**both) == ("203.0.113.7", "http")
    assert client(x_forwarded_proto="https", forwarded="for=6.6.6.6") == ("10.0.0.1", "https")


def test_strangers_are_not_believed() -> None:
    stranger = Sender("203.0.113.9", is_proxy=PROXIES.trusts("203.0.113.9"))
    headers = {
        b"x-forwarded-for": b"6.6.6.6",
        b"x-forwarded-proto": b"https",
        b"forwarded": b"for=6.6.6.6",
    }
    assert PROXIES.client(stranger, headers) is stranger
    assert not Proxies([]).trusts("127.0.0.1")
    assert not PROXIES.trusts("")


def test_the_certificate_of_a_proxy_is_not_that_of_its_client() -> None:
    certificate = Certificate("proxy", (), (), (), "00")
    proxy = Sender("10.0.0.1", "https", certificate, is_proxy=True)
    assert PROXIES.client(proxy, {}).certificate is certificate
    assert PROXIES.client(proxy, {b"x-forwarded-for": b"203.0.113.7"}).certificate is None


def test_an_ipv4_client_of_an_ipv6_socket_has_its_usual_address() -> None:
    assert plain_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_address("fe80::1%eth0") == "fe80::1"
    assert plain_address("10.0.0.1") == "10.0.0.1"
    assert plain_address("") == ""


# The PROXY protocol


def block(
    addresses: bytes,
    *,
    family: int = 0x11,
    command: int = 0x21,
    tlvs: bytes = b"",
    length: int | None = None,
) -> bytes:
    content = addresses + tlvs
    size = len(content) if length is None else length
    return SIGNATURE + struct.pack(">BBH", command, family, size) + content


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


V4 = bytes([203, 0, 113, 7, 10, 0, 0, 1]) + struct.pack(">HH", 1234, 443)
V6 = bytes.fromhex("20010db8" + "0" * 22 + "07" + "fd" + "0" * 28 + "01") + struct.pack(">HH", 1, 2)
UNIX = b"/client".ljust(108, b"\0") + b"/server".ljust(108, b"\0")
SSL = tlv(0x20, b"\x05" + struct.pack(">I", 0) + tlv(0x21, b"TLSv1.3"))


def with_checksum(header: bytes) -> bytes:
    at = header.index(tlv(3, bytes(4)))
    return header[: at + 3] + struct.pack(">I", crc32c(header)) + header[at + 7 :]


VALID = {
    "IPv4": (block(V4), "203.0.113.7", False),
    "IPv6": (block(V6, family=0x21), "2001:db8::7", False),
    "datagram": (block(V4, family=0x12), "203.0.113.7", False),
    "UNIX": (block(UNIX, family=0x31), None, False),
    "unspecified": (block(b"anything", family=0), None, False),
    "local": (block(V4, command=0x20), None, False),
    "local and empty": (block(b"", command=0x20, family=0), None, False),
    "TLVs": (block(V4, tlvs=tlv(0x04, b"noop") + tlv(0xEA, b"\1vpce-1")), "203.0.113.7", False),
    "TLS": (block(V4, tlvs=SSL), "203.0.113.7", True),
    "plain TLV": (block(V4, tlvs=tlv(0x20, bytes(5))), "203.0.113.7", False),
    "checksum": (with_checksum(block(V4, tlvs=tlv(3, bytes(4)))), "203.0.113.7", False),
    "line IPv4": (b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443\r\n", "203.0.113.7", False),
    "line IPv6": (b"PROXY TCP6 2001:db8::7 fd00::1 1234 443\r\n", "2001:db8::7", False),
    "line unknown": (b"PROXY UNKNOWN\r\n", None, False),
    "line unknown with more": (b"PROXY UNKNOWN a b c\r\n", None, False),
}


@pytest.mark.parametrize("name", VALID)
def test_a_header_names_the_client_however_it_is_split(name: str) -> None:
    header, peer, is_tls = VALID[name]
    for size in range(len(header)):
        assert parse(header[:size]) is None
    assert parse(header + b"GET / HTTP/1.1\r\n") == ProxyHeader(len(header), peer, is_tls)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x16\3\1",
        b"\r\n\r\n\0\r\nQUIX\n",
        block(V4, command=0x11),  # version 1 in a block
        block(V4, command=0x22),
        block(V4, family=0x41),
        block(V4, family=0x13),
        block(V4[:-1]),
        block(V4, family=0x21),  # too short for IPv6
        block(V4, length=HEADER_BYTES_MAX),
        block(V4, tlvs=b"\4\0"),
        block(V4, tlvs=b"\4\0\5abc"),
        block(V4, tlvs=tlv(3, b"\1\2\3\4")),
        block(V4, tlvs=tlv(3, b"")),
        block(V4, tlvs=tlv(0x20, b"\1")),
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 443 \r\n",
        b"PROXY TCP4 2001:db8::7 fd00::1 1234 443\r\n",
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1234 70000\r\n",
        b"PROXY TCP4 0203.0.113.7 10.0.0.1 1234 443\r\n",
        b"PROXY TCP5 203.0.113.7 10.0.0.1 1234 443\r\n",
        b"PROXY " + b"x" * 101,
        b"proxy UNKNOWN\r\n",
    ],
)
def test_a_malformed_header_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidProxyHeader):
        parse(data)


@given(st.binary(max_size=300))
def test_any_block_is_a_header_or_refused_or_incomplete(content: bytes) -> None:
    for start in (SIGNATURE, SIGNATURE + b"\x21\x11", b"PROXY ", b""):
        try:
            header = parse(start + content)
        except InvalidProxyHeader:
            continue
        assert header is None or 0 < header.size <= len(start + content)


def test_the_checksum_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
