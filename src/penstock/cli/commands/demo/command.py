"""`penstock demo`: shows a server, a small stream and a live reader step by step.

Uses the server over HTTP only, as any client does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import click

from penstock.cli.commands.demo import pipeline as demo_pipeline
from penstock.config.settings import ENV_PREFIX

HOST = "127.0.0.1"
PORT = 4437
STREAM = "/v1/stream/demo/orders"
READY_PREFIX = "Penstock serving "
STOP_TIMEOUT_S = 20.0
ANSWER_TIMEOUT_S = 15.0

ORDERS = (
    {"order": 1, "item": "turbine", "status": "placed"},
    {"order": 1, "item": "turbine", "status": "paid"},
    {"order": 1, "item": "turbine", "status": "shipped"},
)


@click.command("demo")
@click.option("--once", is_flag=True, help="Stop the server after the demo.")
@click.option("--pipeline", is_flag=True, help="Also run a Spark pipeline over live changes.")
@click.option(
    "--data-dir",
    metavar="FOLDER",
    default="./data",
    help="Folder of the streams.  [default: ./data]",
)
@click.option("--port", type=int, help=f"Port to listen on.  [default: {PORT}, or a free one]")
def command(once: bool, pipeline: bool, data_dir: str, port: int | None) -> None:
    """Start a server with a demo stream and follow it.

    The tables of --pipeline are stored in FOLDER-pipeline.
    """
    if pipeline:
        demo_pipeline.check_packages()
    signal.signal(signal.SIGTERM, _interrupt)
    port = _free_or_any(PORT) if port is None else port
    tables = Path(f"{data_dir.rstrip('/')}-pipeline")
    if pipeline and not Path(data_dir).exists():
        demo_pipeline.remove_tables(tables)
    try:
        with _server(port, data_dir) as (url, process):
            _show(url)
            if pipeline:
                demo_pipeline.show(url, tables, stay=not once)
            elif not once:
                click.echo("\nThe server keeps running. Ctrl-C stops it.")
                if process.wait() != 0:
                    sys.exit(1)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        raise  # the reader of the output has closed the pipe
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise click.ClickException(
            f"The server of the demo has stopped responding: {error!r}."
        ) from None
    click.echo("Stopped.")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _free_or_any(port: int) -> int:
    """Return `port`, or 0 for any free one if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
    return port


@contextmanager
def _server(port: int, data_dir: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a server process, and stop it at the end."""
    arguments = ["serve", "--host", HOST, "--port", str(port), "--data-dir", data_dir]
    arguments += ["--config", os.devnull]  # the demo must not depend on this machine's settings
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        env={name: text for name, text in os.environ.items() if not name.startswith(ENV_PREFIX)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C reaches this process only; the server gets one SIGTERM
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith(READY_PREFIX):
            process.wait()
            sys.exit(1)  # the server has printed the reason
        click.echo(line)
        yield line.removeprefix(READY_PREFIX).split()[0], process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _show(url: str) -> None:
    """Create a stream, follow it and append to it; print each step."""
    address = urlsplit(url).netloc
    status, offset = _send(address, "PUT", None)
    outcome = "created" if status == 201 else "exists, with the messages of earlier runs"
    click.echo(f"\n1. PUT  {STREAM}\n   {outcome}; its tail is {offset}")
    click.echo(f"\n2. GET  {STREAM}?offset={offset}&live=sse\n   a live reader waits at the tail")
    reader = HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    try:
        reader.request("GET", f"{STREAM}?offset={offset}&live=sse")
        response = reader.getresponse()
        if response.status != 200:
            raise HTTPException(f"GET returned {response.status}")
        click.echo(f"\n3. POST {STREAM}")
        for order in ORDERS:
            _send(address, "POST", json.dumps(order).encode())
            click.echo(f"   appended {json.dumps(order)}")
        click.echo("\n   and the reader received")
        for message in _messages(response, len(ORDERS)):
            click.echo(f"   {message}")
    finally:
        reader.close()
    _suggest(url)


def _send(address: str, method: str, body: bytes | None) -> tuple[int, str]:
    """Send a request. Return the status and the next offset of the stream."""
    connection = HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(method, STREAM, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status >= 300:
            raise HTTPException(f"{method} {STREAM} returned {response.status}")
        return response.status, response.headers["Stream-Next-Offset"]
    finally:
        connection.close()


def _messages(response: HTTPResponse, count: int) -> Iterator[str]:
    """Yield the first `count` JSON messages of an SSE response, as they arrive."""
    event, data = "", [""]
    while count > 0:
        received = response.readline()
        if not received:
            raise HTTPException("the connection of the live reader was closed")
        line = received.decode().rstrip("\n")
        if line.startswith("event:"):
            event = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:"))
        elif line == "":
            if event == "data":
                for message in json.loads("\n".join(data))[:count]:
                    count -= 1
                    yield json.dumps(message)
            event, data = "", [""]


def _suggest(url: str) -> None:
    stream = url + STREAM
    click.echo(
        f"""
Try it yourself:

  Read everything from the start
    curl -i '{stream}?offset=-1'
  Follow it live, in one terminal
    curl -N '{stream}?offset=now&live=sse'
  Append, in another
    curl -X POST -H 'Content-Type: application/json' -d '{{"order": 2}}' '{stream}'
  List the streams
    curl '{url}/v1/streams'"""
    )
