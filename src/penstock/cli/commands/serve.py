"""`penstock serve`: runs the server until it is stopped."""

from __future__ import annotations

import errno
import socket
from typing import Any

import click

from penstock.cli.options import SettingsCommand, resolved, setting_flags
from penstock.config.settings import Settings
from penstock.units import show_folder


@click.command("serve", cls=SettingsCommand)
@setting_flags
def command(**options: Any) -> None:
    """Run the server. It prints one line with its URL when it is ready."""
    settings = resolved(options).settings

    from penstock import certificates  # here, so that `--help` does not load the server
    from penstock.http.native.server import Server, serve

    folder = "in memory" if settings.memory else show_folder(settings.data_dir)

    def on_ready(server: Server) -> None:
        click.echo(f"Penstock serving {server.url} (data: {folder})")
        if settings.tls_self_signed and server.tls is not None:
            cert = server.tls.files.cert
            click.echo(f"Its certificate is self-signed; SHA-256 {certificates.fingerprint(cert)}")
            click.echo(f"To trust it: penstock … --cacert {cert}, or curl --cacert {cert}")

    try:
        serve(settings, on_ready=on_ready)
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
