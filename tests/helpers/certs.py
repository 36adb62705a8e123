"""Certificates for tests: an authority, and what it issues, as files and contexts."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """A certificate authority of a test, with its files in `folder`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._ca = trustme.CA(organization_name=name)
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(
        self, name: str, *identities: str, common_name: str | None = None, expired: bool = False
    ) -> Path:
        """Return a PEM file with a key and the certificate for `identities`."""
        now = datetime.now(UTC)
        end = now - timedelta(days=1) if expired else now + timedelta(days=30)
        leaf = self._ca.issue_cert(
            *(identities or ("127.0.0.1", "localhost")),
            common_name=common_name,
            not_before=now - timedelta(days=2),
            not_after=end,
        )
        path = self._folder / f"{name}.pem"
        path.unlink(missing_ok=True)
        leaf.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def client(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority alone."""
        context = ssl.create_default_context(cafile=self.file)
        if certificate is not None:
            context.load_cert_chain(certificate)
        return context


def split(pem: Path) -> tuple[Path, Path]:
    """Return the certificates and the key of a PEM file as two files."""
    text = pem.read_text()
    begin = text.index("-----BEGIN CERTIFICATE")
    cert, key = pem.with_suffix(".crt"), pem.with_suffix(".key")
    key.write_text(text[:begin])
    cert.write_text(text[begin:])
    return cert, key
