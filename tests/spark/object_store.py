"""An S3 server on 127.0.0.1: moto's, as a process of its own, with what it leaves out of a store:
it knows who may come in, and a conditional write is one step.

`python -m tests.spark.object_store` prints its port and serves until it is terminated.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from pyarrow import fs

from tests.helpers.server import ROOT

PACKAGES = ROOT / ".venv" / "store"
KEY, SECRET = "penstock-tests", "a secret of the tests"
BUCKET = "lake"
_REFUSED = (
    b"<Error><Code>InvalidAccessKeyId</Code><Message>This store does not know you.</Message>"
    b"</Error>"
)


class Store(NamedTuple):
    """A store that runs, with one empty bucket."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    @property
    def files(self) -> fs.S3FileSystem:
        """A look at it that owes nothing to the code under test."""
        return fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            scheme="http",
            endpoint_override=self.url.removeprefix("http://"),
            region="us-east-1",
            allow_bucket_creation=True,
        )


def missing() -> str | None:
    """Why there can be no store, if so."""
    if (PACKAGES / "moto").is_dir():
        return None
    return "moto is not installed in .venv/store: `make .venv/.stamp-store`"


@contextmanager
def running_store() -> Iterator[Store]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.object_store"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{PACKAGES}{os.pathsep}{ROOT}"},
    )
    try:
        assert process.stdout is not None
        store = Store(f"http://127.0.0.1:{int(process.stdout.readline())}")
        store.files.create_dir(BUCKET)
        yield store
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def guarded(application: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """moto lets everybody in, and looks before it writes instead of doing both at once."""
    one_at_a_time = threading.Lock()

    def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if f"Credential={KEY}/" not in environ.get("HTTP_AUTHORIZATION", ""):
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [_REFUSED]
        with one_at_a_time:
            found: Iterable[bytes] = application(environ, start)
            return found

    return answer


def main() -> None:
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = guarded(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
