"""The PROXY protocol, versions 1 and 2: the line or block with which a proxy begins a connection
and that names the client.

Pure: bytes in, a value out.
"""

from __future__ import annotations

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from penstock.http.sender import plain_address

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
HEADER_BYTES_MAX: Final = 4096
"""The longest header that is accepted. Real ones have some hundred bytes."""
_LINE_BYTES_MAX = 107  # of version 1, with its line end
_FIXED = struct.Struct(">12sBBH")
_ADDRESSES = {1: 12, 2: 36, 3: 216}  # bytes by family: IPv4, IPv6, UNIX
_LOCAL, _PROXY = 0x20, 0x21  # version 2 and the command
_TLV = struct.Struct(">BH")
_CHECKSUM, _SSL = 0x03, 0x20  # types of TLVs
_CLIENT_SSL = 0x01
_LINE = re.compile(rb"PROXY (?:UNKNOWN(?: [ -~]*)?|(TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\r\n")


class ProxyHeader(NamedTuple):
    """What a proxy says of a connection, and how many bytes it took to say it."""

    size: int
    peer: str | None
    """The client's address; None if the connection is the proxy's own, or has no address."""
    is_tls: bool = False
    """Whether the client has connected to the proxy with TLS."""


class InvalidProxyHeader(ValueError):
    """Bytes that do not begin with a header of the PROXY protocol."""


def parse(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of `data`; None if more bytes are needed."""
    start = data[: len(SIGNATURE)]
    if SIGNATURE.startswith(start):
        return _parse_block(data)
    if b"PROXY ".startswith(data[:6]):
        return _parse_line(data)
    raise InvalidProxyHeader("it does not begin with a PROXY header")


def _parse_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX) + 2
    if end == 1:
        if len(data) >= _LINE_BYTES_MAX:
            raise InvalidProxyHeader("its PROXY line is too long")
        return None
    match = _LINE.fullmatch(data[:end])
    if match is None:
        raise InvalidProxyHeader("its PROXY line is malformed")
    family, source, destination, *ports = match.groups()
    if family is None:
        return ProxyHeader(end, None)
    kind = IPv4Address if family == b"TCP4" else IPv6Address
    try:
        peer = kind(source.decode("ascii"))
        kind(destination.decode("ascii"))
    except ValueError:
        raise InvalidProxyHeader("its PROXY line has no valid addresses") from None
    if any(int(port) > 65535 for port in ports):
        raise InvalidProxyHeader("its PROXY line has no valid ports")
    return ProxyHeader(end, plain_address(str(peer)))


def _parse_block(data: bytes) -> ProxyHeader | None:
    if len(data) < _FIXED.size:
        return None
    _, command, transport, length = _FIXED.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidProxyHeader("its PROXY header is of an unknown version or command")
    size = _FIXED.size + length
    if size > HEADER_BYTES_MAX:
        raise InvalidProxyHeader("its PROXY header is too long")
    family, kind = transport >> 4, transport & 0x0F
    if family > 3 or kind > 2:
        raise InvalidProxyHeader("its PROXY header is of an unknown address family")
    addresses = _ADDRESSES.get(family, 0)
    if command == _PROXY and length < addresses:
        raise InvalidProxyHeader("its PROXY header is too short for its addresses")
    if len(data) < size:
        return None
    if command == _LOCAL:
        return ProxyHeader(size, None)
    is_tls = _read_tlvs(data[:size], _FIXED.size + addresses) if family else False
    source = data[_FIXED.size :]
    if family == 1:
        return ProxyHeader(size, str(IPv4Address(source[:4])), is_tls)
    if family == 2:
        return ProxyHeader(size, plain_address(str(IPv6Address(source[:16]))), is_tls)
    return ProxyHeader(size, None, is_tls)


def _read_tlvs(header: bytes, at: int) -> bool:
    """Check the TLVs of a header; return whether the client has connected with TLS."""
    is_tls = False
    while at < len(header):
        if len(header) - at < _TLV.size:
            raise InvalidProxyHeader("its PROXY header ends within a TLV")
        kind, length = _TLV.unpack_from(header, at)
        at += _TLV.size
        value = header[at : at + length]
        if len(value) < length:
            raise InvalidProxyHeader("its PROXY header ends within a TLV")
        if kind == _CHECKSUM:
            zeroed = header[:at] + bytes(length) + header[at + length :]
            if length != 4 or crc32c(zeroed) != int.from_bytes(value, "big"):
                raise InvalidProxyHeader("its PROXY header has a wrong checksum")
        elif kind == _SSL:
            if length < 5:
                raise InvalidProxyHeader("its PROXY header has a TLV that is too short")
            is_tls = bool(value[0] & _CLIENT_SSL)
        at += length
    return is_tls


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum; zlib has another polynomial."""
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum = _CRC[(checksum ^ byte) & 0xFF] ^ checksum >> 8
    return checksum ^ 0xFFFFFFFF


def _crc_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = tuple(map(_crc_entry, range(256)))
