"""`penstock demo`: a server, a small stream and a live reader, shown step by step.

Talks to the server over HTTP only, as any client would.
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
@click.option("--once", is_flag=True, help="Stop after the demo instead of serving on.")
@click.option("--pipeline", is_flag=True, help="Show a Spark pipeline over live changes, too.")
@click.option("--data-dir", metavar="FOLDER", default="./data", help="[default: ./data]")
@click.option("--port", type=int, help=f"[default: {PORT}, or a free one if that is taken]")
def command(once: bool, pipeline: bool, data_dir: str, port: int | None) -> None:
    """Start a server with a small demo stream and tail it live.

    With --pipeline its tables are kept beside the data, in FOLDER-pipeline.
    """
    if pipeline:
        demo_pipeline.check_packages()
    signal.signal(signal.SIGTERM, _interrupt)
    port = _free_or_any(PORT) if port is None else port
    tables = Path(f"{data_dir.rstrip('/')}-pipeline")
    if pipeline and not Path(data_dir).exists():
        demo_pipeline.forget(tables)
    try:
        with _server(port, data_dir) as (url, process):
            _show(url)
            if pipeline:
                demo_pipeline.show(url, tables, stay=not once)
            elif not once:
                click.echo("\nThe server runs on. Ctrl-C stops it.")
                if process.wait() != 0:
                    sys.exit(1)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        raise  # whoever read our output has gone
    except (HTTPException, TimeoutError, ConnectionError) as error:
        raise click.ClickException(f"the demo lost its server: {error!r}") from None
    click.echo("Stopped.")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _free_or_any(port: int) -> int:
    """`port`, or 0 (any free one) when something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
    return port


@contextmanager
def _server(port: int, data_dir: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process that is stopped, cleanly, on the way out."""
    arguments = ["serve", "--host", HOST, "--port", str(port), "--data-dir", data_dir]
    arguments += ["--config", os.devnull]  # a demo is the same whatever this machine's settings
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *arguments],
        env={name: text for name, text in os.environ.items() if not name.startswith(ENV_PREFIX)},
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,  # Ctrl-C reaches us only; the server gets exactly one SIGTERM
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.startswith(READY_PREFIX):
            process.wait()
            sys.exit(1)  # the server has said why on stderr
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
    """Create, tail, append; each step as a line."""
    address = urlsplit(url).netloc
    status, offset = _send(address, "PUT", None)
    created = "created" if status == 201 else "found, with what earlier runs appended"
    click.echo(f"\n1. PUT  {STREAM}\n   {created}; its tail is {offset}")
    click.echo(f"\n2. GET  {STREAM}?offset={offset}&live=sse\n   a live reader waits there")
    reader = HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    try:
        reader.request("GET", f"{STREAM}?offset={offset}&live=sse")
        response = reader.getresponse()
        if response.status != 200:
            raise HTTPException(f"GET answered {response.status}")
        click.echo(f"\n3. POST {STREAM}")
        for order in ORDERS:
            _send(address, "POST", json.dumps(order).encode())
            click.echo(f"   appended {json.dumps(order)}")
        click.echo("\n   and the reader got")
        for message in _messages(response, len(ORDERS)):
            click.echo(f"   {message}")
    finally:
        reader.close()
    _suggest(url)


def _send(address: str, method: str, body: bytes | None) -> tuple[int, str]:
    """The status and the stream's next offset."""
    connection = HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(method, STREAM, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status >= 300:
            raise HTTPException(f"{method} {STREAM} answered {response.status}")
        return response.status, response.headers["Stream-Next-Offset"]
    finally:
        connection.close()


def _messages(response: HTTPResponse, count: int) -> Iterator[str]:
    """The first `count` JSON messages of an SSE response, as they come."""
    event, data = "", [""]
    while count > 0:
        line = response.readline().decode().rstrip("\n")
        if line.startswith("event:"):
            event = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data.append(line.removeprefix("data:"))
        elif line == "":
            if event == "data":
                for message in json.loads("\n".join(data))[:count]:
                    count -= 1
                    yield json.dumps(message)
            elif event == "":
                raise HTTPException("the live reader was cut off")
            event, data = "", [""]


def _suggest(url: str) -> None:
    stream = url + STREAM
    click.echo(
        f"""
Try it yourself:

  Read everything from the start
    curl -i '{stream}?offset=-1'
  Tail it live, in one terminal
    curl -N '{stream}?offset=now&live=sse'
  Append, in another
    curl -X POST -H 'Content-Type: application/json' -d '{{"order": 2}}' '{stream}'
  List the streams
    curl '{url}/v1/streams'"""
    )
