"""The format of log lines: coloured text on a terminal, one JSON object per line elsewhere.

Code logs through the standard library and knows nothing of this.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send log records of Penstock at `level` and above to stderr."""
    out = sys.stderr if stream is None else stream
    renderer: structlog.typing.Processor
    if out.isatty():
        renderer = structlog.dev.ConsoleRenderer()
    else:
        renderer = structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger("penstock")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False
