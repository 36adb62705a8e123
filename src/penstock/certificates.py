"""The files of TLS: whether they have changed, what a certificate says, and a self-signed one for a
first try.

Knows no connections and no settings.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509

SELF_SIGNED_AGE: Final = timedelta(days=397)
"""How long a self-signed certificate is valid: browsers take none that is valid for longer."""
SELF_SIGNED_RENEWAL: Final = timedelta(days=30)
"""How long before its end a start replaces it."""
_CLOCK_SKEW = timedelta(hours=1)
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")

Stamp = tuple[tuple[int, int, int] | None, ...]


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    cert: Path
    key: Path


def stamp(paths: Iterable[Path]) -> Stamp:
    """Return a value that changes with the files; None stands for one that cannot be looked at."""
    return tuple(map(_stamp, paths))


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def unreadable(path: Path) -> str | None:
    """Return why a file cannot be read; None if it can."""
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return None


def fingerprint(cert: Path) -> str:
    """Return the SHA-256 fingerprint of the first certificate in a PEM file, as tools show it."""
    from cryptography.hazmat.primitives import hashes

    return _first(cert).fingerprint(hashes.SHA256()).hex(":").upper()


def expires(cert: Path) -> datetime:
    """Return when the first certificate in a PEM file ends."""
    return _first(cert).not_valid_after_utc


def _first(cert: Path) -> x509.Certificate:
    from cryptography import x509

    return x509.load_pem_x509_certificates(cert.read_bytes())[0]


def self_signed(folder: Path | None, names: Iterable[str]) -> Pair:
    """Return the self-signed certificate for `names` in `folder`: the one that is there, or a new
    one if there is none, it ends soon or has other names. Without a folder it is a temporary one.
    """
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="penstock-tls-"))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pair = Pair(folder / "cert.pem", folder / "key.pem")
    wanted = [name for name in dict.fromkeys(names) if _is_address(name) or _is_host(name)]
    if not _is_usable(pair, wanted):
        _make(pair, wanted)
    return pair


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_host(name: str) -> bool:
    return _HOST_NAME.fullmatch(name) is not None


def _is_usable(pair: Pair, names: list[str]) -> bool:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        cert = _first(pair.cert)
        key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
        present = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    if cert.not_valid_after_utc - datetime.now(UTC) < SELF_SIGNED_RENEWAL:
        return False
    return cert.public_key() == key.public_key() and set(present) >= set(_general_names(names))


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    return [
        x509.IPAddress(ipaddress.ip_address(name)) if _is_address(name) else x509.DNSName(name)
        for name in names
    ]


def _make(pair: Pair, names: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock, self-signed")])
    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        (
            *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
            *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        ),
        False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now - _CLOCK_SKEW + SELF_SIGNED_AGE)
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(digital_signature=True, **usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(own_id, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own_id), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    encoded = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_private(pair.key, encoded)
    _write_private(pair.cert, certificate.public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, data: bytes) -> None:
    """Replace a file by one that only its owner can read, never half written."""
    half = path.with_name(path.name + ".new")
    half.unlink(missing_ok=True)
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)


def remove_temporary(pair: Pair) -> None:
    """Remove a certificate that `self_signed` has made without a folder."""
    for path in pair:
        path.unlink(missing_ok=True)
    pair.cert.parent.rmdir()
