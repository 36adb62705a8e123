"""Units as people write them: sizes, durations, switches and the like, to values and back.

Knows no settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, NamedTuple

NUMBER_MAX = 2**53 - 1  # the largest number that every JSON and TOML reader holds exactly

_SIZE = re.compile(r"(\d{1,16})\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)
_SECONDS = re.compile(r"(\d{1,16}(?:\.\d{1,9})?)\s*(?:s)?", re.ASCII)
_COUNT = re.compile(r"\d{1,16}", re.ASCII)
_HOST = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*", re.ASCII)
_ORIGIN = re.compile(
    rf"([a-z][a-z0-9+.-]*)://({_HOST.pattern}|\[[0-9a-f:.]+\])(?::(\d{{1,5}}))?", re.ASCII
)
_DEFAULT_PORTS = {("http", 80), ("https", 443)}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class Kind(NamedTuple):
    """The notation of a value. `parse` raises ValueError for text that `expects` excludes, or a
    PenstockError that says more."""

    expects: str
    metavar: str
    type: type
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def parse_size(text: str) -> int:
    """``65536``, ``512k``, ``64MiB``, ``1 GB``: bytes. All prefixes are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    size = int(match[1]) << 10 * _POWERS[(match[2] or "").lower()]
    if size > NUMBER_MAX:
        raise ValueError(text)
    return size


def show_size(size: int) -> str:
    """Return the shortest text that parses to the same size."""
    for power, prefix in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{prefix}"
    return str(size)


def parse_seconds(text: str) -> float:
    """``30``, ``0.5`` or ``30s``: seconds, never negative or infinite."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return float(match[1])


def show_seconds(seconds: float) -> str:
    return f"{seconds:.15g}"


def parse_count(text: str) -> int:
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(match[0])


def parse_workers(text: str) -> int:
    """``4``, or ``auto``: as many as this process has cores."""
    if text.strip().lower() != "auto":
        return parse_count(text)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_switch(text: str) -> bool:
    try:
        return _SWITCH[text.strip().lower()]
    except KeyError:
        raise ValueError(text) from None


def show_switch(value: bool) -> str:
    return "true" if value else "false"


def parse_text(text: str) -> str:
    """Return the text if it is printable ASCII: some settings appear in response headers."""
    text = text.strip()
    if not text or not text.isascii() or not text.isprintable():
        raise ValueError(text)
    return text


def parse_list(text: str) -> tuple[str, ...]:
    """Return the texts between the commas. Empty text is the empty list."""
    return tuple(parse_text(part) for part in text.split(",")) if text.strip() else ()


def show_list(texts: tuple[str, ...]) -> str:
    return ",".join(texts)


def parse_networks(text: str) -> tuple[str, ...]:
    """``10.0.0.0/8,fd00::/8``: networks without host bits, in their usual spelling."""
    return tuple(str(ip_network(part)) for part in parse_list(text))


def parse_origins(text: str) -> tuple[str, ...]:
    """``https://app.example,http://localhost:3000``: origins as browsers write them. Or ``*``."""
    texts = parse_list(text)
    return texts if texts == ("*",) else tuple(parse_origin(part) for part in texts)


def parse_origin(text: str) -> str:
    """Return the origin in lower case and without a default port: browsers write it like that."""
    match = _ORIGIN.fullmatch(text.lower())
    if match is None or (match[3] is not None and int(match[3]) > 65535):
        raise ValueError(text)
    scheme, host, port = match.groups()
    is_default = port is None or (scheme, int(port)) in _DEFAULT_PORTS
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


def parse_hosts(text: str) -> tuple[str, ...]:
    """``streams.example.com,*.internal,10.0.0.1``: names and addresses without ports. Or ``*``."""
    return tuple(_parse_host(part.lower()) for part in parse_list(text))


def _parse_host(text: str) -> str:
    if text != "*" and _HOST.fullmatch(text.removeprefix("*.")) is None:
        return str(ip_address(text))  # raises ValueError
    return text


def parse_folder(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise ValueError(text)
    return Path(text)


def show_folder(folder: Path) -> str:
    """Return the path of a folder. A relative one starts with a dot."""
    text = str(folder)
    return text if folder.is_absolute() or text.startswith(".") else f"./{text}"


SIZE = Kind("a size such as 65536, 512k or 64MiB", "SIZE", int, parse_size, show_size)
SECONDS = Kind("seconds such as 30 or 0.5", "SECONDS", float, parse_seconds, show_seconds)
RATE = Kind("a number such as 100 or 0.5", "N", float, parse_seconds, show_seconds)
COUNT = Kind("a whole number", "N", int, parse_count)
WORKERS = Kind("a whole number, or auto", "N", int, parse_workers)
SWITCH = Kind("true or false", "BOOLEAN", bool, parse_switch, show_switch)
TEXT = Kind("printable ASCII text", "TEXT", str, parse_text)
SECRET = Kind("printable ASCII text", "TEXT", str, parse_text, lambda _: "(set, not shown)")
LIST = Kind("texts separated by commas", "LIST", tuple, parse_list, show_list)
SECRETS = LIST._replace(show=lambda value: "(set, not shown)" if value else "")
NETWORKS = Kind(
    "networks such as 10.0.0.0/8, separated by commas",
    "LIST",
    tuple,
    parse_networks,
    show_list,
)
ORIGINS = Kind(
    "origins such as https://app.example.com:8443 (no path), separated by commas, or *",
    "LIST",
    tuple,
    parse_origins,
    show_list,
)
HOSTS = Kind(
    "host names such as streams.example.com (no port), separated by commas, or *",
    "LIST",
    tuple,
    parse_hosts,
    show_list,
)
FOLDER = Kind("a folder", "FOLDER", Path, parse_folder, show_folder)
FILE = Kind("a file", "FILE", Path, parse_folder)


def choice(*names: str) -> Kind:
    """Return the kind whose values are `names`."""

    def parse(text: str) -> str:
        if (word := text.strip().lower()) not in names:
            raise ValueError(text)
        return word

    return Kind(f"one of {', '.join(names)}", "|".join(names), str, parse)
