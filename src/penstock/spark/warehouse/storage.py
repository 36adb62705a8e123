"""The location of a warehouse, which is a folder of this machine or a path in an object store, and
the same options for every engine that goes there: delta-rs, and Arrow's file systems for DuckDB and
Spark's tasks. Knows no tables.
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
    azure_for_delta,
    gcs_arguments,
    s3_arguments,
    s3_for_delta,
    s3_with_endpoint,
)

_URI: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(/{1,3})(.*)", re.DOTALL)
_SPELLINGS: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
_STORES: Final = ("s3", "gs", "abfss", "hdfs")
_AZURE_HOST: Final = ".dfs.core.windows.net"


class StorageLocation(NamedTuple):
    """The parts of a path or URL; without a scheme it is a path of this machine."""

    scheme: str | None
    authority: str
    path: str  # within the authority

    @property
    def uri(self) -> str:
        if self.scheme is None:
            return self.path
        return f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")


def parse_location(uri: str) -> StorageLocation:
    """The parts of a path or URL. `s3a://` becomes `s3://`, `file:///` a path of this machine."""
    match = _URI.fullmatch(uri)
    if match is None:
        return StorageLocation(None, "", uri)
    spelling, slashes, rest = match[1].lower(), match[2], match[3]
    scheme = _SPELLINGS.get(spelling, spelling)
    if scheme == "file":
        host, _, path = rest.partition("/") if slashes == "//" else ("", "", rest)
        if host not in ("", "localhost"):
            raise InvalidPipeline(f"{uri} is on another machine. Mount it, and name the folder.")
        return StorageLocation(None, "", "/" + unquote(path))
    if scheme not in _STORES or slashes != "//":
        raise InvalidPipeline(
            f"{_without_secrets(uri)}: Python cannot open {spelling}:{slashes}. "
            "Use a folder, s3://, gs://, abfss:// or hdfs://."
        )
    authority, _, path = rest.partition("/")
    if scheme in ("s3", "gs") and "@" in authority:
        raise InvalidPipeline(
            f"{_without_secrets(uri)} contains credentials, which would be seen wherever the path "
            "is. Put them into warehouse.options or the environment."
        )
    if "?" in path or not authority:
        raise InvalidPipeline(
            f"{_without_secrets(uri)} is no path for tables. Write it as {scheme}://BUCKET/PATH."
        )
    return StorageLocation(scheme, authority, path.strip("/"))


def canonical(uri: str) -> str:
    """The one spelling of a location."""
    return parse_location(uri).uri


def is_remote(uri: str) -> bool:
    return parse_location(uri).scheme is not None


def filesystem(uri: str, options: Mapping[str, str] | None = None) -> tuple[fs.FileSystem, str]:
    """The file system of a location, and the path in it. Runs in executors, too."""
    location = parse_location(uri)
    if location.scheme is None:
        return fs.LocalFileSystem(), str(Path(location.path).absolute())
    options = options or {}
    path = f"{location.authority}/{location.path}".rstrip("/")
    try:
        if location.scheme == "s3":
            return _s3(_frozen(_s3_arguments(location, options))), path
        if location.scheme == "gs":
            return _gcs(_frozen(gcs_arguments(options))), path
        if location.scheme == "abfss":
            container = location.authority.partition("@")[0]
            arguments = azure_arguments(_account(location), options, os.environ)
            return _azure(_frozen(arguments)), f"{container}/{location.path}".rstrip("/")
        opened: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(location.uri)
        return opened
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidPipeline(f"{location.uri} cannot be opened from Python: {error}.") from error


def check_options(uri: str, options: Mapping[str, str]) -> None:
    """Raise an error if the options cannot be used; opens no connection."""
    location = parse_location(uri)
    if location.scheme == "s3":
        s3_arguments(options, os.environ)
    elif location.scheme == "gs":
        gcs_arguments(options)
    elif location.scheme == "abfss":
        azure_arguments(_account(location), options, os.environ)


def delta_options(uri: str, options: Mapping[str, str] | None) -> dict[str, str] | None:
    """The options of delta-rs for the location of a table."""
    location = parse_location(uri)
    if location.scheme == "abfss":
        return azure_for_delta(options or {}) or None
    if location.scheme != "s3":
        return dict(options) if options else None
    options = options or {}
    arguments = _s3_arguments(location, options)
    return s3_for_delta(options, os.environ, arguments.get("region")) or None


def options_for_tasks(uri: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options for tasks, whose machines may lack the driver's environment."""
    return (
        s3_with_endpoint(options, os.environ)
        if parse_location(uri).scheme == "s3"
        else dict(options)
    )


def move_folder(files: fs.FileSystem, source: str, target: str) -> None:
    """Rename a folder. Object stores cannot: there all files are copied, then deleted."""
    if isinstance(files, fs.LocalFileSystem):
        files.move(source, target)
        return
    for entry in files.get_file_info(fs.FileSelector(source, recursive=True)):
        if entry.type == fs.FileType.File:
            files.copy_file(entry.path, f"{target}{entry.path.removeprefix(source)}")
    files.delete_dir(source)


def _without_secrets(uri: str) -> str:
    """A path that may be shown: without what stands before an @ or after a ?."""
    return re.sub(r"(//)[^/@]*@", r"\1…@", uri.partition("?")[0])


def _account(location: StorageLocation) -> str | None:
    """The storage account in the path of an Azure container."""
    return location.authority.partition("@")[2].removesuffix(_AZURE_HOST) or None


def _s3_arguments(location: StorageLocation, options: Mapping[str, str]) -> dict[str, Any]:
    arguments = s3_arguments(options, os.environ)
    if "region" not in arguments:
        region = _region_of(location.authority)
        if region is not None:
            arguments["region"] = region
    return arguments


@lru_cache(maxsize=64)
def _region_of(bucket: str) -> str | None:
    """The region of a bucket of Amazon's, which is public; None if Amazon cannot be reached."""
    try:
        return str(fs.resolve_s3_region(bucket))
    except (pa.ArrowException, OSError):
        return None


def _frozen(arguments: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(arguments.items()))


# Shared by all files of a warehouse: each file system has its own connections and credentials.
@lru_cache(maxsize=16)
def _s3(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    # A small file then takes one request instead of three.
    return fs.S3FileSystem(**dict(arguments), allow_delayed_open=True)


@lru_cache(maxsize=16)
def _gcs(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    return fs.GcsFileSystem(**dict(arguments))


@lru_cache(maxsize=16)
def _azure(arguments: tuple[tuple[str, Any], ...]) -> fs.FileSystem:
    return fs.AzureFileSystem(**dict(arguments))
