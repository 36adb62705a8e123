"""The TLS of a server: its context, made from the files that the settings name, and made again when
they change.

What a connection does with it is in tls_transport.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock import certificates
from penstock.config.setting import InvalidSetting

if TYPE_CHECKING:
    from penstock.config.settings import Settings

log = logging.getLogger("penstock.http")

CHECK_S: Final = 2.0
"""Time between two looks at the files. A change is taken up at the second look that sees it, so
that files which are being written are not read."""
FOLDER: Final = "tls"
"""The folder of the self-signed certificate, within the data folder."""
# Of TLS 1.2, whose other ciphers have no forward secrecy or are no AEAD; those of 1.3 are all good.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_REASONS = {
    "KEY_VALUES_MISMATCH": "the certificate and the key do not belong together",
    "EE_KEY_TOO_SMALL": "the key is too short",
    "CA_MD_TOO_WEAK": "the signature of a certificate is too weak",
}


class _Encrypted(Exception):
    """A key that needs a password."""


class Tls:
    """The context of new connections; those that are open go on with the one they began with."""

    __slots__ = (
        "_client_ca",
        "_is_required",
        "_loaded",
        "_seen",
        "_temporary",
        "_timer",
        "context",
        "files",
    )

    def __init__(self, settings: Settings) -> None:
        self._temporary: certificates.Pair | None = None
        if settings.tls_cert is not None:
            self.files = certificates.Pair(settings.tls_cert, settings.tls_key or settings.tls_cert)
        else:
            folder = None if settings.memory else settings.data_dir / FOLDER
            self.files = certificates.self_signed(folder, _own_names(settings.host))
            self._temporary = self.files if settings.memory else None
        self._client_ca = settings.tls_client_ca
        self._is_required = settings.tls_client_required
        self._timer: asyncio.TimerHandle | None = None
        self._loaded = self._seen = self._stamp()
        self.context = self._load()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look at the files from time to time."""
        self._timer = loop.call_later(CHECK_S, self._tick, loop)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._temporary is not None:
            certificates.remove_temporary(self._temporary)
            self._temporary = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(CHECK_S, self._tick, loop)
        self.check()

    def check(self) -> None:
        """Load the files again if they have changed, and not since the last look."""
        before, self._seen = self._seen, self._stamp()
        if self._seen == before and self._seen != self._loaded:
            self.reload()

    def reload(self) -> None:
        """Load the files again; if that fails, go on with what was loaded before."""
        self._loaded = self._seen = self._stamp()
        try:
            self.context = self._load()
        except InvalidSetting as error:
            log.error("TLS goes on with the certificate it has: %s", error.detail)
        else:
            log.info("loaded the TLS certificate of %s", self.files.cert)

    def _stamp(self) -> certificates.Stamp:
        return certificates.stamp(self._paths())

    def _paths(self) -> list[Path]:
        return [*self.files, *([] if self._client_ca is None else [self._client_ca])]

    def _load(self) -> ssl.SSLContext:
        """Return a new context. A new one has new keys for tickets: nobody resumes a session that
        an earlier client CA has let in."""
        for path in self._paths():
            if (reason := certificates.unreadable(path)) is not None:
                raise InvalidSetting(f"The TLS file {path} cannot be read: {reason}.")
        context = new_context()
        cert, key = self.files
        where = f"{cert}" if cert == key else f"{cert} and {key}"
        try:
            context.load_cert_chain(cert, key, password=_refuse_password)
        except _Encrypted:
            raise InvalidSetting(
                f"The TLS key {key} is encrypted; store it without a password, readable by the "
                "server alone."
            ) from None
        except (ssl.SSLError, OSError) as error:
            raise InvalidSetting(f"The TLS files {where} cannot be used: {_why(error)}.") from None
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (ssl.SSLError, OSError) as error:
                raise InvalidSetting(
                    f"The client CA {self._client_ca} cannot be used: {_why(error)}."
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED if self._is_required else ssl.CERT_OPTIONAL
        _warn_of_expiry(cert)
        return context


def open_tls(settings: Settings) -> Tls | None:
    """Return the TLS that the settings ask for; None for plain HTTP. InvalidSetting says why their
    files cannot be used."""
    return Tls(settings) if settings.tls_cert is not None or settings.tls_self_signed else None


def new_context() -> ssl.SSLContext:
    """Return a context without a certificate: TLS 1.2 and 1.3, HTTP/1.1, sessions by ticket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    # A renegotiation costs the server far more than the client that asks for it.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    return context


def _own_names(host: str) -> list[str]:
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    return names if host in ("0.0.0.0", "::") else [*names, host]  # noqa: S104 - compared only


def _refuse_password() -> str:
    raise _Encrypted


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason in (None, "NO_START_LINE", "NO_CERTIFICATE_OR_CRL_FOUND"):
            return "a file is not in PEM format, or lacks the certificate or the key"
        return _REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return error.strerror or str(error)


def _warn_of_expiry(cert: Path) -> None:
    """Log a certificate that clients refuse. The server starts with it: its clock may be wrong."""
    try:
        end = certificates.expires(cert)
    except (OSError, ValueError):  # OpenSSL has read it, so it is good enough for clients
        return
    if end <= datetime.now(UTC):
        log.warning("the TLS certificate %s has expired on %s", cert, end.date().isoformat())
