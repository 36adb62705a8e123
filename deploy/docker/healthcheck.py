"""Exits with 0 if the server of this container is ready, else with 1 and the reason.

Asks where the settings of the environment say that the server listens.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4.0


def main(environ: dict[str, str]) -> str | None:
    """Return why the server is not ready, or None."""
    host = environ.get("PENSTOCK_HOST", "127.0.0.1")
    # 0.0.0.0 and :: are all addresses: this machine's own is one of them.
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104
    port = environ.get("PENSTOCK_PORT", "4437")
    is_tls = environ.get("PENSTOCK_TLS_CERT") or environ.get("PENSTOCK_TLS_SELF_SIGNED")
    url = f"{'https' if is_tls else 'http'}://{host}:{port}/readyz"
    # Whether it is ready, not who it is: the certificate is for another name.
    context = ssl._create_unverified_context() if is_tls else None  # noqa: S323
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context):  # noqa: S310
            return None
    except urllib.error.HTTPError as error:
        with error:
            return f"{url}: {error.code} {error.read(500)!r}"
    except (OSError, ValueError) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    sys.exit(main(dict(os.environ)))
