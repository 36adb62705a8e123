"""Where a warehouse is: a folder of this machine or a place in an object store, and how each engine
gets there with the same options (delta-rs, Arrow's file systems, and through those DuckDB and
Spark's tasks). Knows no tables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from penstock.errors import InvalidPipeline
from penstock.spark.warehouse.storage_options import (
    azure_arguments,
    gcs_arguments,
    s3_arguments,
    s3_for_delta,
    s3_with_place,
)

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,3})(.*)", re.DOTALL)
_SPELLINGS: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_STORES: Final = ("s3", "gs", "abfss", "hdfs")
_AZURE_HOST: Final = ".dfs.core.windows.net"


class Place(NamedTuple):
    """A path taken apart; without a scheme it is of this machine."""

    scheme: str | None
    authority: str
    path: str  # within it

    @property
    def uri(self) -> str:
        if self.scheme is None:
            return self.path
        return f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")


def place_of(uri: str) -> Place:
    """The parts of a path or URL. `s3a://` is `s3://`, `file:///` a folder."""
    found = _URI.fullmatch(uri)
    if found is None:
        return Place(None, "", uri)
    spelled, slashes, rest = found[1].lower(), found[2], found[3]
    scheme = _SPELLINGS.get(spelled, spelled)
    if scheme == "file":
        host, _, path = rest.partition("/") if slashes == "//" else ("", "", rest)
        if host not in ("", "localhost"):
            raise InvalidPipeline(f"{uri} is of another machine: mount it, and name the folder.")
        return Place(None, "", "/" + unquote(path))
    if scheme not in _STORES or slashes != "//":
        raise InvalidPipeline(
            f"{_without_secrets(uri)}: there is no way to reach {spelled}:{slashes} from Python. "
            "Use a folder, s3://, gs://, abfss:// or hdfs://."
        )
    authority, _, path = rest.partition("/")
    if scheme in ("s3", "gs") and "@" in authority:
        raise InvalidPipeline(
            f"{_without_secrets(uri)} has credentials in it: they would be seen wherever the path "
            "is. Put them into warehouse.options or the environment."
        )
    if "?" in path or not authority:
        raise InvalidPipeline(
            f"{_without_secrets(uri)} is no place to keep tables: it is {scheme}://BUCKET/PATH."
        )
    return Place(scheme, authority, path.strip("/"))


def canonical(uri: str) -> str:
    """One spelling for each place."""
    return place_of(uri).uri


def is_remote(uri: str) -> bool:
    return place_of(uri).scheme is not None


def filesystem(uri: str, options: Mapping[str, str] | None = None) -> tuple[fs.FileSystem, str]:
    """The file system of a place, and the path of it there. Runs in executors too."""
    place = place_of(uri)
    if place.scheme is None:
        return fs.LocalFileSystem(), str(Path(place.path).absolute())
    given = options or {}
    within = f"{place.authority}/{place.path}".rstrip("/")
    try:
        if place.scheme == "s3":
            return _s3(_frozen(_s3_arguments(place, given))), within
        if place.scheme == "gs":
            return _gcs(_frozen(gcs_arguments(given))), within
        if place.scheme == "abfss":
            container = place.authority.partition("@")[0]
            arguments = azure_arguments(_account(place), given, os.environ)
            return _azure(_frozen(arguments)), f"{container}/{place.path}".rstrip("/")
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(place.uri)
        return found
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidPipeline(f"{place.uri} cannot be opened from Python: {error}.") from error


def check_options(uri: str, options: Mapping[str, str]) -> None:
    """An error if options cannot be what they are said to be; nothing is asked."""
    place = place_of(uri)
    if place.scheme == "s3":
        s3_arguments(options, os.environ)
    elif place.scheme == "gs":
        gcs_arguments(options)
    elif place.scheme == "abfss":
        azure_arguments(_account(place), options, os.environ)


def delta_options(uri: str, options: Mapping[str, str] | None) -> dict[str, str] | None:
    """What delta-rs is told of the place of a table."""
    place = place_of(uri)
    if place.scheme != "s3":
        return dict(options) if options else None
    given = options or {}
    arguments = _s3_arguments(place, given)
    return s3_for_delta(given, os.environ, arguments.get("region")) or None


def options_for_tasks(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """What tasks are told, who may run on machines that know less than the driver."""
    return s3_with_place(options, os.environ) if place_of(uri).scheme == "s3" else dict(options)


def move_folder(files: fs.FileSystem, source: str, target: str) -> None:
    """Rename a folder. Object stores cannot: there each file is copied before any goes."""
    if isinstance(files, fs.LocalFileSystem):
        files.move(source, target)
        return
    for each in files.get_file_info(fs.FileSelector(source, recursive=True)):
        if each.type == fs.FileType.File:
            files.copy_file(each.path, f"{target}{each.path.removeprefix(source)}")
    files.delete_dir(source)


def _without_secrets(uri: str) -> str:
    """A path that may be shown: what is before an @, or after a ?, is nobody's business."""
    return re.sub(r"(//)[^/@]*@", r"\1…@", uri.partition("?")[0])


def _account(place: Place) -> str | None:
    """The storage account that a path of Azure's names."""
    return place.authority.partition("@")[2].removesuffix(_AZURE_HOST) or None


def _s3_arguments(place: Place, options: Mapping[str, str]) -> dict[str, Any]:
    found = s3_arguments(options, os.environ)
    if "region" not in found:
        region = _region_of(place.authority)
        if region is not None:
            found["region"] = region
    return found


@lru_cache(maxsize=64)
def _region_of(bucket: str) -> str | None:
    """Amazon tells anybody; whoever cannot reach it there is told by the first request."""
    try:
        return str(fs.resolve_s3_region(bucket))
    except (pa.ArrowException, OSError):
        return None


def _frozen(arguments: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(arguments.items()))


# One for all files of a warehouse: each has its own connections and search for credentials.
@lru_cache(maxsize=16)
def _s3(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    # Opened late, a small file is one request instead of three.
    return fs.S3FileSystem(**dict(arguments), allow_delayed_open=True)


@lru_cache(maxsize=16)
def _gcs(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    return fs.GcsFileSystem(**dict(arguments))


@lru_cache(maxsize=16)
def _azure(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    return fs.AzureFileSystem(**dict(arguments))
