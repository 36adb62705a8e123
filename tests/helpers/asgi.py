"""`python -m tests.helpers.asgi serve [flags]`: like `penstock serve`, but ASGI under uvicorn."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import click
import uvicorn

from penstock.cli.options import resolved, setting_flags

APP = "tests.conformance.asgi_app:app"


class ReadyServer(uvicorn.Server):
    """Says when it serves, in the same words as the native server."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()
            click.echo(f"Penstock serving http://{host}:{port} (under uvicorn)")


@click.group()
def main() -> None:
    """Commands of the test server."""


@main.command()
@setting_flags
def serve(**options: Any) -> None:
    """Serve on a free port."""
    settings, origins = resolved(options)
    given = {
        name: getattr(settings, name) for name, origin in origins.items() if origin != "default"
    }
    host, port = given.pop("host", settings.host), given.pop("port", settings.port)
    os.environ["CONFORMANCE_SETTINGS"] = json.dumps(given, default=Path.__str__)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    config = uvicorn.Config(
        APP,
        lifespan="on",
        log_level="warning",
        # Not uvicorn's 5 s: a busy client would send into a connection that is being closed.
        timeout_keep_alive=int(settings.keepalive_timeout_s),
    )
    server = ReadyServer(config)
    # uvicorn sends itself the signal again when it has stopped; a clean stop is exit code 0.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server.run(sockets=[listener])
    if not server.started:
        raise click.ClickException("the application did not start")


if __name__ == "__main__":
    main()
