"""Objects in a folder, in memory, or in a cloud's object store, behind one small interface.

Calls block and belong on threads. Folders and memory need nothing; S3, Google Cloud Storage and
Azure need the extra `penstock-streams[objectstore]`, which is imported when such a store is opened.
Knows nothing of what the objects are for.
"""

from __future__ import annotations

import errno
import os
import random
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from penstock.backoff import Backoff
from penstock.errors import (
    BucketNotFound,
    InvalidStorageUrl,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageExtraMissing,
    StorageFull,
    StorageUnavailable,
)
from penstock.file_sync import sync_data, sync_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")
Data = bytes | bytearray | memoryview

CLOUDS: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "azure": "az", "abfss": "az"}
"""Schemes of URLs that need the extra, and the cloud of each."""
PART_BYTES: Final = 8 * 1024 * 1024
"""Larger objects are sent in parts of this size, a few at a time."""
PARTS_AT_ONCE: Final = 4
ATTEMPTS_MAX: Final = 6
RETRY_TIMEOUT_S: Final = 60
BACKOFF: Final = Backoff(base_s=0.5, cap_s=20, jitter=0.5)
LIST_SIZE: Final = 1000
UNFINISHED: Final = ".unfinished"
"""The ending of files that are still being written."""

_ADVICE: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_REGION, or AWS_ENDPOINT_URL for a "
    "store that is not Amazon's), or give the machine a role",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS to the file of a service account, or run on Google Cloud",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN",
}
# Endpoints that are asked for credentials when the environment has none.
_NO_CREDENTIALS: Final = re.compile(
    r"169\.254\.\d+\.\d+|metadata\.google\.internal|Account must be specified|"
    r"InvalidAccessKeyId|application.default.credentials|Missing .*credential",
    re.IGNORECASE,
)
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|bucket does not exist|ContainerNotFound")
_THROTTLED: Final = re.compile(r"\b(?:429|503) |SlowDown|TooManyRequests|ServerBusy")


class Blob(NamedTuple):
    """An object as the store lists it. `modified_s` is by the clock of the store."""

    key: str
    size: int
    modified_s: float


class ObjectStore(Protocol):
    """Objects by key. A key is a relative path of plain characters with `/` between its parts."""

    url: str
    """The store as messages name it: without credentials."""
    confirms_checksums: bool
    """Whether a `put` that returns was checked by the store against a checksum of the sender."""

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        """Write or replace an object: whole and durable when this returns, or not there at all.
        Only a `put` of bytes is tried again when the store is throttled."""

    def put_if_absent(self, key: str, data: Data) -> bool:
        """Write an object unless there is one, in one step; False if there is one."""

    def get(self, key: str) -> bytes:
        """Return a whole object; ObjectNotFound if there is none."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive) of an object; fewer only at its end."""

    def head(self, key: str) -> Blob | None:
        """Return an object's size and time; None if there is none."""

    def list(self, prefix: str = "") -> Iterator[Blob]:
        """Yield the objects under a prefix, which is empty or a folder without a slash behind."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; one that is not there is no error."""

    def remove_unfinished(self) -> None:
        """Remove what killed writers have left of objects that never were. Clouds do that
        themselves, by a lifecycle rule for multipart uploads. Only while nobody else writes."""


def open_store(url: str, *, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Return the store at a URL: `file:///…` or a plain path, `memory://name`,
    `s3://bucket/prefix`, `gs://…` or `az://container/prefix`.

    Nothing is connected to. Credentials are those of the standard environment of each cloud;
    `options`, under the names of object_store (`aws_endpoint_url`, …), take precedence.
    """
    scheme, separator, rest = url.partition("://")
    if not url.strip():
        raise InvalidStorageUrl("The address of the storage is empty. Name a folder or a URL.")
    if not separator:
        return FolderStore(Path(url))
    scheme = scheme.lower()
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise InvalidStorageUrl(f"{url!r} names no folder. Write file:///path/of/the/folder.")
        return FolderStore(Path(unquote(parts.path)))
    if scheme == "memory":
        return MemoryStore.named(rest)
    if scheme not in CLOUDS:
        raise InvalidStorageUrl(
            f"{scheme}:// is no storage that Penstock knows. Use a folder, s3://, gs:// or az://."
        )
    if not urlsplit(url).netloc:
        raise InvalidStorageUrl(f"{url!r} names no bucket. Write {scheme}://BUCKET/PREFIX.")
    return CloudStore(url, CLOUDS[scheme], options or {})


class FolderStore:
    """Objects as files of a folder, each synced before its name appears."""

    confirms_checksums = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder.expanduser().absolute()
        self.url = str(self._folder)

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        pieces = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
        self._write(key, pieces, os.replace)

    def put_if_absent(self, key: str, data: Data) -> bool:
        return self._write(key, (data,), os.link)

    def _write(
        self, key: str, pieces: Iterable[Data], publish: Callable[[Path, Path], None]
    ) -> bool:
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
        with self._translated():
            self._make_folder(path.parent)
            try:
                with open(temporary, "xb", buffering=0) as file:
                    for piece in pieces:
                        _write_all(file.fileno(), piece)
                    sync_data(file.fileno())
                    # What is read back to check it comes from the disk, not from memory.
                    if hasattr(os, "posix_fadvise"):
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                try:
                    publish(temporary, path)
                except FileExistsError:
                    return False
            finally:
                temporary.unlink(missing_ok=True)
            sync_folder(path.parent)
        return True

    def get(self, key: str) -> bytes:
        with self._translated(key):
            return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, end: int) -> bytes:
        with self._translated(key), open(self._path(key), "rb") as file:
            file.seek(start)
            return file.read(end - start)

    def head(self, key: str) -> Blob | None:
        with self._translated():
            try:
                status = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Blob(key, status.st_size, status.st_mtime)

    def list(self, prefix: str = "") -> Iterator[Blob]:
        with self._translated():
            for folder, folders, names in os.walk(self._path(prefix)):
                folders.sort()
                for name in sorted(names):
                    path = Path(folder, name)
                    if name.endswith(UNFINISHED):
                        continue
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        status = path.stat()
                        key = path.relative_to(self._folder).as_posix()
                        yield Blob(key, status.st_size, status.st_mtime)

    def delete(self, keys: Iterable[str]) -> None:
        with self._translated():
            for key in keys:
                self._path(key).unlink(missing_ok=True)

    def remove_unfinished(self) -> None:
        with self._translated():
            for path in self._folder.rglob(f"*{UNFINISHED}"):
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            sync_folder(each.parent)

    def _translated(self, key: str = "") -> _FolderErrors:
        return _FolderErrors(self.url, key)


class _FolderErrors:
    """Turns errors of the file system into those of a storage."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError) and self._key:
            raise ObjectNotFound(f"{self._url} has no {self._key!r}.") from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise StorageDenied(
                f"{error.filename or self._url}: {reason}. Let the user of the server write there."
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"The disk of {self._url} is full. Free some space.") from error
        raise StorageError(f"{error.filename or self._url}: {reason}.") from error


class MemoryStore:
    """Objects in the memory of this process, for tests; stores of one name share them."""

    confirms_checksums = False
    _named: ClassVar[dict[str, MemoryStore]] = {}

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        return cls._named.setdefault(name, cls(name))

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        whole = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        with self._lock:
            self._objects[key] = (whole, time.time())

    def put_if_absent(self, key: str, data: Data) -> bool:
        with self._lock:
            if key in self._objects:
                return False
            self._objects[key] = (bytes(data), time.time())
            return True

    def get(self, key: str) -> bytes:
        try:
            return self._objects[key][0]
        except KeyError:
            raise ObjectNotFound(f"{self.url} has no {key!r}.") from None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self.get(key)[start:end]

    def head(self, key: str) -> Blob | None:
        entry = self._objects.get(key)
        return None if entry is None else Blob(key, len(entry[0]), entry[1])

    def list(self, prefix: str = "") -> Iterator[Blob]:
        for key, (data, modified_s) in sorted(self._objects.items()):
            if not prefix or key.startswith(prefix + "/"):
                yield Blob(key, len(data), modified_s)

    def delete(self, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def remove_unfinished(self) -> None:
        pass


class CloudStore:
    """Objects of S3, Google Cloud Storage or Azure, through obstore."""

    def __init__(self, url: str, cloud: str, options: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2] if cloud != "az" else parts.netloc
        self.url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"
        # S3 signs the checksum of a request, and refuses one whose body has another.
        self.confirms_checksums = cloud == "s3"
        self._cloud = cloud
        try:
            import obstore
            import obstore.store
        except ImportError:
            raise StorageExtraMissing(
                f"{parts.scheme}:// needs the package obstore. Install it with "
                "`pip install 'penstock-streams[objectstore]'`."
            ) from None
        self._api = obstore
        self._errors = obstore.exceptions
        self._client: Client = self._attempt(
            "", lambda: _client(obstore.store.from_url, self.url, cloud, options)
        )

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        def send() -> object:
            return self._api.put(
                self._client, key, data, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )

        is_repeatable = isinstance(data, bytes | bytearray | memoryview)
        self._attempt(key, send, attempts_max=ATTEMPTS_MAX if is_repeatable else 1)

    def put_if_absent(self, key: str, data: Data) -> bool:
        def send() -> bool:
            try:
                self._api.put(self._client, key, data, mode="create", use_multipart=False)
            except self._errors.AlreadyExistsError:
                return False
            return True

        return self._attempt(key, send)

    def get(self, key: str) -> bytes:
        return self._attempt(key, lambda: bytes(self._api.get(self._client, key).bytes()))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        if start >= end:
            return b""
        get_range = self._api.get_range
        return self._attempt(key, lambda: bytes(get_range(self._client, key, start=start, end=end)))

    def head(self, key: str) -> Blob | None:
        try:
            return _blob(self._attempt(key, lambda: self._api.head(self._client, key)))
        except ObjectNotFound:
            return None

    def list(self, prefix: str = "") -> Iterator[Blob]:
        pages = self._api.list(self._client, prefix or None, chunk_size=LIST_SIZE)
        # A page that fails was tried by obstore itself; an iterator cannot step back.
        while page := self._attempt("", lambda: next(pages, None), attempts_max=1):
            yield from map(_blob, page)

    def delete(self, keys: Iterable[str]) -> None:
        batch = list(keys)
        for start in range(0, len(batch), LIST_SIZE):
            chosen = batch[start : start + LIST_SIZE]
            self._attempt("", partial(self._api.delete, self._client, chosen))

    def remove_unfinished(self) -> None:
        pass

    def _attempt(
        self, key: str, function: Callable[[], T], *, attempts_max: int = ATTEMPTS_MAX
    ) -> T:
        """Call `function`; again after a wait while the store is throttled. obstore itself has
        tried connections and errors of the server again by then."""
        attempt = 1
        while True:
            try:
                return function()
            except (self._errors.BaseError, OSError, ValueError) as error:
                failure = self._failure(key, error)
                if attempt >= attempts_max or not _THROTTLED.search(str(error)):
                    raise failure from error
            time.sleep(BACKOFF.wait_s(attempt, random.random()))
            attempt += 1

    def _failure(self, key: str, error: Exception) -> StorageError:
        text = str(error).partition("\n\nDebug source")[0]
        errors = self._errors
        if _NO_BUCKET.search(text):
            return BucketNotFound(f"{self.url}: there is no such bucket. Create it first.")
        if isinstance(error, errors.UnauthenticatedError) or _NO_CREDENTIALS.search(text):
            return StorageDenied(
                f"{self.url}: there are no credentials that the store accepts. Set "
                f"{_ADVICE[self._cloud]}."
            )
        if isinstance(error, errors.PermissionDeniedError) or "403 Forbidden" in text:
            return StorageDenied(
                f"{self.url}: the credentials do not allow this ({_brief(text)}). Allow to list, "
                "get, put and delete objects there."
            )
        if isinstance(error, FileNotFoundError):
            return ObjectNotFound(f"{self.url} has no {key!r}.")
        if _THROTTLED.search(text):
            return StorageUnavailable(
                f"{self.url}: the store refuses so many requests ({_brief(text)}). Try again later."
            )
        if "after " in text and "retries" in text:
            return StorageUnavailable(f"{self.url} cannot be reached ({_brief(text)}). Try again.")
        return StorageError(f"{self.url}: {_brief(text)}.")


def _client(
    from_url: Callable[..., Any], url: str, cloud: str, options: Mapping[str, str]
) -> Client:
    config = {name.lower(): value for name, value in options.items()}
    variables = {name.lower(): value for name, value in os.environ.items()}
    if cloud == "s3" and "aws_checksum_algorithm" not in config | variables:
        config["aws_checksum_algorithm"] = "SHA256"
    endpoints = [
        (config | variables).get(name, "")
        for name in ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "azure_endpoint")
    ]
    client: Client = from_url(
        url,
        config=config,
        # A store without TLS is one that somebody has named so.
        client_options={"allow_http": any(each.startswith("http:") for each in endpoints)},
        retry_config={
            "max_retries": ATTEMPTS_MAX,
            "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S),
        },
    )
    return client


def _blob(meta: Mapping[str, Any]) -> Blob:
    return Blob(meta["path"], meta["size"], meta["last_modified"].timestamp())


def _brief(text: str) -> str:
    """Return the part of obstore's message that a person can use, in one line."""
    match = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
    line = match[1] if match else " ".join(text.split())
    return line[:300].rstrip(". ")


def _write_all(fd: int, data: Data) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
