"""`pipeline.toml`: what a pipeline reads, stores and publishes. Checked as a whole, with errors
that name the setting and what it takes; opens no connection and starts no Spark.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from penstock import limits
from penstock.errors import InvalidOption, InvalidPipeline
from penstock.protocol.globs import matches
from penstock.spark.expectations import Action, Expectation, check_conditions
from penstock.spark.options import check_name, is_pattern, pattern_of
from penstock.spark.type_schema import TypeSchema, type_schema
from penstock.spark.warehouse.storage import StorageLocation, check_options, parse_location

SERVER: Final = "server"  # the schema of a type that is declared on the server
# Columns that conditions over a type may name beside its own.
EXPECTATION_COLUMNS: Final = [
    pa.field("_stream", pa.string()),
    pa.field("_key", pa.string()),
    pa.field("_value", pa.string()),
    pa.field("_operation", pa.string()),
    pa.field("_time", pa.timestamp("us", tz="UTC")),
]
ENV_TOKEN: Final = "PENSTOCK_TOKEN"  # noqa: S105 - the name of the variable, not a token
TABLE: Final = "table:"

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=100)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; an unknown name is an error."""


class Source(_Section, frozen=True):
    """The server and the streams that are read."""

    url: str
    streams: Annotated[list[str], msgspec.Meta(min_length=1)]
    token: str | None = None
    starting: str | dict[str, str] = "earliest"
    max_messages: _Positive | None = None
    max_bytes: _Positive | None = None
    min_partitions: _Positive = 1
    fail_on_data_loss: bool = True
    attempts: _Positive = limits.SPARK_ATTEMPTS_MAX


class Warehouse(_Section, frozen=True):
    """The location of the tables."""

    path: str
    checkpoint: str | None = None
    catalog: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_]+$")] | None = None
    database: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_]+$")] = "penstock"
    iceberg: dict[str, str] = {}
    options: dict[str, str] = {}


class Run(_Section, frozen=True):
    """How the pipeline runs."""

    interval_s: _Seconds = limits.PIPELINE_INTERVAL_S
    snapshots: Literal["keep", "replace"] = "keep"
    fold_rows: _Positive = limits.PIPELINE_FOLD_ROWS
    fold_percent: _Share = limits.PIPELINE_FOLD_PERCENT
    driver_messages: Annotated[int, msgspec.Meta(ge=0)] = limits.PIPELINE_DRIVER_MESSAGES
    driver_rows: Annotated[int, msgspec.Meta(ge=0)] | None = None
    optimize_batches: Annotated[int, msgspec.Meta(ge=0)] = limits.PIPELINE_COMPACT_FILES
    cluster: list[Literal["stream", "type", "key", "time", "ordinal", "kind"]] = []
    outbox_files: _Positive = limits.PIPELINE_OUTBOX_FILES
    keep_hours: Annotated[int, msgspec.Meta(ge=0)] = limits.PIPELINE_KEEP_HOURS
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    metrics_host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    spark: dict[str, str] = {}


class _Expect(_Section, frozen=True):
    sql: str
    action: Action = "warn"


class _Type(_Section, frozen=True):
    schema: str
    expect: dict[str, str | _Expect] = {}


class Publish(_Section, frozen=True):
    """A query whose result is published as a stream of state events, or as an STP table."""

    to: str
    sql: str | None = None
    function: str | None = None
    type: str | None = None
    chunk: _Positive = limits.SPARK_CHUNK_MESSAGES
    chunk_bytes: _Positive = limits.SPARK_CHUNK_BYTES
    body_bytes_max: _Positive = limits.BODY_BYTES_MAX
    expect: dict[str, str | _Expect] = {}
    on_error: Literal["stop", "continue"] = "stop"

    @property
    def is_table(self) -> bool:
        return self.to.startswith(TABLE)

    @property
    def target(self) -> str:
        return self.to.removeprefix(TABLE).strip("/")

    @property
    def expectations(self) -> tuple[Expectation, ...]:
        return _expectations(self.expect)


class _File(_Section, frozen=True):
    source: Source
    warehouse: Warehouse
    pipeline: Run = Run()
    types: dict[str, _Type] = {}
    publish: dict[str, Publish] = {}


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The checked settings of a pipeline."""

    source: Source
    warehouse: Warehouse
    run: Run = Run()
    types: dict[str, TypeSchema] = {}  # without those of `server_types` until these are known
    server_types: tuple[str, ...] = ()  # types whose schema is declared on the server
    expect: dict[str, tuple[Expectation, ...]] = {}  # by type
    publish: dict[str, Publish] = {}
    file: str | None = None  # where it was loaded from


def load_pipeline(path: Path, environ: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of a file; paths in it are relative to the folder of the file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidPipeline(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidPipeline(f"{path} cannot be read: {error}.") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPipeline(f"{path} is not TOML: {error}.") from None
    try:
        pipeline = make_pipeline(content, folder=path.parent, environ=environ)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{path}: {error.detail}") from None
    return msgspec.structs.replace(pipeline, file=str(path.absolute()))


def make_pipeline(
    content: Mapping[str, Any], *, folder: Path = Path(), environ: Mapping[str, str] | None = None
) -> Pipeline:
    """The pipeline of the content of such a file."""
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise InvalidPipeline(_message(str(error))) from None
    _check_source(file.source)
    for name, publish in file.publish.items():
        _check_publish(name, publish)
        _check_loop(name, publish, file.source)
    targets = [each.to for each in file.publish.values()]
    if len(set(targets)) != len(targets):
        raise InvalidPipeline("Two [publish] sections have the same `to`: each needs its own.")
    token = file.source.token or (os.environ if environ is None else environ).get(ENV_TOKEN)
    url = file.source.url.rstrip("/")
    source = msgspec.structs.replace(file.source, url=url, token=token)
    types = {
        name: _type(name, each.schema, folder)
        for name, each in file.types.items()
        if each.schema.strip() != SERVER
    }
    expect = {name: _expectations(each.expect) for name, each in file.types.items() if each.expect}
    for name, expectations in expect.items():
        if name in types:
            check_expectations(name, types[name], expectations)
    return Pipeline(
        source=source,
        warehouse=_absolute(file.warehouse, folder),
        run=file.pipeline,
        types=types,
        server_types=tuple(name for name in file.types if name not in types),
        expect=expect,
        publish=file.publish,
    )


def check_expectations(name: str, schema: TypeSchema, expectations: Sequence[Expectation]) -> None:
    """Raise an error for a condition that cannot be evaluated over the columns of a type."""
    columns = pa.schema([*schema.nullable, *EXPECTATION_COLUMNS])
    check_conditions(columns, expectations, f"types.{name}")


def _check_source(source: Source) -> None:
    if not source.url.startswith(("http://", "https://")):
        raise InvalidPipeline(
            f"source.url is {source.url!r}. It has to begin with http:// or https://."
        )
    if not all(name.strip("/ ") for name in source.streams):
        raise InvalidPipeline("source.streams names an empty stream.")
    for name in source.streams:
        try:
            check_name(name)
        except InvalidOption as error:
            raise InvalidPipeline(error.detail.replace("Option ", "source.", 1)) from None


def _check_publish(name: str, publish: Publish) -> None:
    where = f"publish.{name}"
    if not (name.isascii() and name.replace("_", "").replace("-", "").isalnum()):
        raise InvalidPipeline(f"{where}: the name may have only letters, digits, _ and -.")
    if len(name) > limits.PIPELINE_PUBLISH_NAME_MAX:
        raise InvalidPipeline(
            f"{where}: the name has more than {limits.PIPELINE_PUBLISH_NAME_MAX} characters."
        )
    if (publish.sql is None) == (publish.function is None):
        raise InvalidPipeline(f"{where} needs either sql or function.")
    if publish.function is not None and publish.function.count(":") != 1:
        raise InvalidPipeline(
            f"{where}.function is {publish.function!r}. Write module:name, as in reports:by_city."
        )
    if not publish.target:
        raise InvalidPipeline(f"{where}.to is empty. Name a stream, or table:… for an STP table.")


def _check_loop(name: str, publish: Publish, source: Source) -> None:
    """Raise an error if the pipeline would read what it publishes: each result would be an event of
    the next batch, for ever."""
    for stream in source.streams:
        is_read = (
            matches(pattern_of(stream), publish.target)
            if is_pattern(stream)
            else stream.strip("/") == publish.target
        )
        if is_read:
            raise InvalidPipeline(
                f"publish.{name}.to is {publish.to}, which source.streams selects ({stream}): the "
                "pipeline would read its own output. Publish somewhere else."
            )


def _expectations(section: Mapping[str, str | _Expect]) -> tuple[Expectation, ...]:
    return tuple(
        Expectation(name, each)
        if isinstance(each, str)
        else Expectation(name, each.sql, each.action)
        for name, each in section.items()
    )


def _absolute(warehouse: Warehouse, folder: Path) -> Warehouse:
    location = _location("path", warehouse.path, folder)
    if warehouse.checkpoint is not None:
        checkpoint = warehouse.checkpoint.rstrip("/")
        parsed = _location("checkpoint", checkpoint, folder)
        # A remote one stays as it is written: Hadoop has schemes of its own.
        checkpoint = parsed.path if parsed.scheme is None else checkpoint
    elif location.scheme is None:
        checkpoint = f"{location.path}/_checkpoint"
    else:
        # Only the driver needs it, and Spark's package has no file system for object stores.
        checkpoint = str((folder / "_checkpoint" / location.authority / location.path).absolute())
    check_options(location.uri, warehouse.options)
    return msgspec.structs.replace(warehouse, path=location.uri, checkpoint=checkpoint)


def _location(name: str, path: str, folder: Path) -> StorageLocation:
    if not path.strip():
        raise InvalidPipeline(f"warehouse.{name} is empty. Name a folder, or s3://….")
    location = parse_location(path.rstrip("/"))
    if location.scheme is not None:
        return location
    return location._replace(path=str((folder / location.path).absolute()))


def _type(name: str, schema: str, folder: Path) -> TypeSchema:
    try:
        if not schema.strip().endswith(".json"):
            return type_schema(schema)
        return type_schema(_document(folder / schema.strip()))
    except InvalidPipeline as error:
        raise InvalidPipeline(f"types.{name}: {error.detail}") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidPipeline(f"there is no file {path}.") from None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as error:
        raise InvalidPipeline(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(document, dict):
        raise InvalidPipeline(f"{path} is no JSON Schema. It has to be an object.")
    return document


def _message(reason: str) -> str:
    """The message of msgspec with the setting first, spelled as in the file."""
    message, _, setting = reason.partition(" - at `$.")
    setting = setting.removesuffix("`").replace("[...]", ".…")
    if message.startswith("Object contains unknown field"):
        name = message.split("`")[1]
        return f"{setting + '.' if setting else ''}{name} is not known. Is it misspelt?"
    if message.startswith("Object missing required field"):
        name = message.split("`")[1]
        return f"{setting + '.' if setting else ''}{name} is missing."
    return f"{setting}: {message[0].lower()}{message[1:]}." if setting else f"{message}."
