"""`penstock serve`: runs the server until it is stopped."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Any

import click

from penstock.cli.options import SettingsCommand, resolved, setting_flags
from penstock.config.settings import Settings
from penstock.units import show_folder


@click.command("serve", cls=SettingsCommand)
@setting_flags
def command(**options: Any) -> None:
    """Run the server. It prints one line with its URL when it is ready."""
    run(resolved(options).settings)


def run(settings: Settings, *, note: str = "") -> None:
    """Run a server until it is stopped; `note` is printed when it is ready."""
    from penstock import certificates  # here, so that `--help` does not load the server
    from penstock.http.native.server import Server, serve
    from penstock.log.disk.files import Files
    from penstock.log.disk.worker_folders import check_layout

    if settings.workers > 1:
        _run_workers(settings, note=note)
        return
    if not settings.memory:
        check_layout(Files(), settings.data_dir, 1)
    folder = "in memory" if settings.memory else show_folder(settings.data_dir)
    if settings.cluster:
        folder = f"cluster {settings.cluster_name}"

    def on_ready(server: Server) -> None:
        click.echo(f"Penstock serving {server.url} (data: {folder})")
        if note:
            click.echo(note)
        if settings.tls_self_signed and server.tls is not None:
            cert = server.tls.files.cert
            click.echo(f"Its certificate is self-signed; SHA-256 {certificates.fingerprint(cert)}")
            click.echo(f"To trust it: penstock … --cacert {cert}, or curl --cacert {cert}")

    try:
        serve(settings, on_ready=on_ready)
    except OSError as error:
        raise click.ClickException(cannot_listen(error, settings)) from None


def _run_workers(settings: Settings, *, note: str) -> None:
    from penstock import certificates
    from penstock.workers.supervisor import supervise

    folder = show_folder(settings.data_dir)

    def on_ready(url: str, cert: Path | None) -> None:
        click.echo(f"Penstock serving {url} (data: {folder}, workers: {settings.workers})")
        if note:
            click.echo(note)
        if cert is not None:
            click.echo(f"Its certificate is self-signed; SHA-256 {certificates.fingerprint(cert)}")
            click.echo(f"To trust it: penstock … --cacert {cert}, or curl --cacert {cert}")

    try:
        supervise(settings, on_ready=on_ready)
    except OSError as error:
        raise click.ClickException(cannot_listen(error, settings)) from None


def cannot_listen(error: OSError, settings: Settings) -> str:
    """Return the message for a server that cannot listen on its address."""
    address = f"{settings.host}:{settings.port}"
    if isinstance(error, socket.gaierror):
        return f"{settings.host} is not an address ({error.strerror}). Choose another with --host."
    if error.errno == errno.EADDRINUSE:
        return f"{address} is in use by another program. Choose another port with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{settings.host} is not an address of this machine. Choose another with --host."
    if error.errno == errno.EACCES and error.filename is None:
        return f"Permission to listen on {address} is denied. Choose a port above 1023 with --port."
    raise error
