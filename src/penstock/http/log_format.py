"""The format of log lines: coloured text on a terminal, one JSON object per line elsewhere.

Code logs through the standard library and knows nothing of this.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

import structlog

HIDDEN: Final = "***"
_SECRET_CHARACTERS_MIN: Final = 8
"""Shorter secrets are not looked for: they may be part of any text."""
_HIDDEN: Final = (
    (re.compile(r"(?i)\b(bearer|basic) +(?!token)[^\s\"',;\\]+"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            r"(?i)\b(\w*(?:link|token|secret|password|penstock|signature))"
            r"(=[\"'\\]*|[\"'\\]+: *[\"'\\]+)[^\s&;\"'\\]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"//[^/@\s\"']*@"), f"//{HIDDEN}@"),
    (re.compile(r"(https?://[^\s\"'?\\]+)\?[^\s\"'\\]*"), rf"\1?{HIDDEN}"),
    (re.compile(r"\bpst_[\w-]+"), f"pst_{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"), f"eyJ{HIDDEN}"),
)
"""What looks like a credential. No line is meant to have one: this is for what a bug may quote."""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without what looks like a credential, and without given secrets."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, replacement in _HIDDEN:
        text = pattern.sub(replacement, text)
    return text


def configure(
    level: str,
    stream: TextIO | None = None,
    *,
    form: str = "auto",
    secrets: Iterable[str] = (),
) -> None:
    """Send log records of Penstock at `level` and above, and warnings of asyncio, to stderr.

    `form` is that of the lines: `text`, `json`, or what suits the stream (`auto`)."""
    hidden = tuple(secret for secret in secrets if len(secret) >= _SECRET_CHARACTERS_MIN)

    def without_secrets(logger: Any, name: str, event: Any) -> Any:
        return redact(event, hidden) if isinstance(event, str) else event

    out = sys.stderr if stream is None else stream
    renderer: structlog.typing.Processor
    if form == "text" or (form == "auto" and out.isatty()):
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty())
    else:
        renderer = structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
            without_secrets,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger("penstock")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    for name in ("asyncio", "opentelemetry"):
        other = logging.getLogger(name)
        other.handlers = [handler]
        other.setLevel(logging.WARNING)
        other.propagate = False
