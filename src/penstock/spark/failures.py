"""What delta-rs, Arrow and the disk say when a table cannot be read or written, as one line for a
person with what to do. Knows no tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from penstock.errors import WarehouseBroken, WarehouseInUse

_COLOURS: Final = re.compile(r"\x1b\[\d*m")
_BACKTRACE: Final = re.compile(r"\s*(\d+: |at )")
_WORDS_MAX: Final = 400
_REFUSED: Final = re.compile(
    r"\b403\b|forbidden|access_?denied|signature|access_key", re.IGNORECASE
)
_NO_BUCKET: Final = re.compile(r"\b404\b|no_?such_?bucket", re.IGNORECASE)


_Method = TypeVar("_Method", bound=Callable[..., Any])


@contextmanager
def told(uri: str) -> Iterator[None]:
    """What goes wrong with a table in here is an error of ours."""
    try:
        yield
    except CommitFailedError as error:
        raise WarehouseInUse(
            f"Another writer has changed {uri} at the same moment: one pipeline writes a warehouse "
            "at a time. Stop the other one."
        ) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise WarehouseBroken(_sentence(uri, error)) from error


def tells(method: _Method) -> _Method:
    """The same for a method of something that has a `uri`."""

    @wraps(method)
    def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        with told(self.uri):
            return method(self, *args, **options)

    return cast("_Method", wrapped)


def _sentence(uri: str, error: Exception) -> str:
    if "://" in uri:
        return f"{uri} cannot be read or written: {words(error).rstrip('.')}. {_store(str(error))}"
    anew = "" if "/state/" not in uri else ", or delete it: the next run makes it anew from events"
    return (
        f"{uri} cannot be read or written: {words(error).rstrip('.')}. Look at the path and the "
        f"rights to it; if the table is damaged restore it from a copy{anew}."
    )


def _store(said: str) -> str:
    """What to look at if it is an object store that says so."""
    if _REFUSED.search(said):
        return (
            "Are the credentials right (warehouse.options, or the environment of driver and "
            "executors), and may they read, write, list and delete there?"
        )
    if _NO_BUCKET.search(said):
        return "Does the bucket exist?"
    return "Is the endpoint right, and can this machine reach it? Else the table may be damaged."


def words(error: Any) -> str:
    """What an error says, without the stack of Rust's and the drawing of its causes."""
    lines = _COLOURS.sub("", str(error)).replace("↳", " ").splitlines()
    said = " ".join(" ".join(each for each in lines if not _BACKTRACE.match(each)).split())
    if len(said) <= _WORDS_MAX:
        return said
    # The first causes and the last one: those between are wrappings.
    return f"{said[: _WORDS_MAX * 2 // 3]} … {said[-_WORDS_MAX // 3 :]}"
