"""Where warehouses may be, and what each engine is told of the place: values alone, no store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from penstock.errors import InvalidOption, InvalidPipeline
from penstock.spark.config import make_pipeline
from penstock.spark.error_text import error_message
from penstock.spark.sessions.session import needs_classic, session
from penstock.spark.sink.chunking import record_chunking
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.remote_files import shared_out
from penstock.spark.warehouse.storage import canonical, delta_options, filesystem, is_remote
from penstock.spark.warehouse.storage_options import (
    azure_arguments,
    gcs_arguments,
    s3_arguments,
    s3_for_delta,
    s3_with_endpoint,
)

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
ARROW_KEYS = {"access_key": "k", "secret_key": "s"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("./warehouse", "./warehouse"),
        ("/data/a:b", "/data/a:b"),
        ("file:///data/a%20b", "/data/a b"),
        ("file:/data", "/data"),
        ("file://localhost/data", "/data"),
        ("s3://lake/shop", "s3://lake/shop"),
        ("S3A://lake/shop/", "s3://lake/shop"),
        ("s3n://lake", "s3://lake"),
        ("gcs://lake/x", "gs://lake/x"),
        ("abfs://box@acc.dfs.core.windows.net/x", "abfss://box@acc.dfs.core.windows.net/x"),
    ],
)
def test_each_place_has_one_spelling(given: str, wanted: str) -> None:
    assert canonical(given) == wanted
    assert is_remote(given) == ("://" in wanted)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("dbfs:/shop", "Python cannot open dbfs:/"),
        ("http://127.0.0.1/x", "Python cannot open http://"),
        ("s3:/lake/x", "Python cannot open s3:/"),
        ("file://elsewhere/x", "is on another machine"),
        ("s3://", "Write it as s3://BUCKET/PATH"),
        ("s3://lake/x?endpoint_override=y", "Write it as s3://BUCKET/PATH"),
    ],
)
def test_a_place_that_cannot_be_reached_is_refused(given: str, words: str) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        canonical(given)


def test_a_path_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(InvalidPipeline, match="contains credentials") as refused:
        canonical("s3://me:hidden@lake/x")
    assert "hidden" not in refused.value.detail


@pytest.mark.parametrize(
    ("options", "environ", "wanted"),
    [
        ({}, {}, {}),
        (KEYS, {}, ARROW_KEYS),
        ({"access_key_id": "k", "aws_secret_access_key": "s"}, {}, ARROW_KEYS),
        ({**KEYS, "AWS_SESSION_TOKEN": "t"}, {}, {**ARROW_KEYS, "session_token": "t"}),
        ({}, {**KEYS, "AWS_REGION": "eu-west-1"}, {"region": "eu-west-1"}),
        ({"region": "eu-west-3"}, {"AWS_REGION": "eu-west-1"}, {"region": "eu-west-3"}),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/"},
            {},
            {"scheme": "http", "endpoint_override": "127.0.0.1:9000", "region": "us-east-1"},
        ),
        (
            {"endpoint": "https://store.example"},
            {"AWS_ENDPOINT_URL": "http://other", "AWS_DEFAULT_REGION": "r"},
            {"scheme": "https", "endpoint_override": "store.example", "region": "r"},
        ),
        (
            {},
            {"AWS_ENDPOINT_URL_S3": "https://store.example", "AWS_ENDPOINT_URL": "http://other"},
            {"scheme": "https", "endpoint_override": "store.example", "region": "us-east-1"},
        ),
        (
            {"AWS_SKIP_SIGNATURE": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "True"},
            {},
            {"anonymous": True, "force_virtual_addressing": True},
        ),
        (
            {"AWS_IAM_ROLE_ARN": "a:b", "AWS_IAM_ROLE_SESSION_NAME": "n"},
            {},
            {"role_arn": "a:b", "session_name": "n"},
        ),
        ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true", "max_retries": "3"}, {}, {}),
    ],
)
def test_options_of_delta_rs_are_arguments_of_arrow(
    options: dict[str, str], environ: dict[str, str], wanted: dict[str, Any]
) -> None:
    found = s3_arguments(options, environ)
    assert found == wanted
    if found.keys() & {"access_key", "anonymous"}:  # else it would look for credentials
        assert isinstance(fs.S3FileSystem(**found), fs.S3FileSystem)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "k"}, "both or neither"),
        ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "http:// or https://"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/lake"}, "nothing after it"),
        ({"AWS_PROFILE": "me"}, "in the environment of driver and executors"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, str], words: str) -> None:
    given = {"source": {"url": "http://127.0.0.1:1", "streams": ["a"]}}
    with pytest.raises(InvalidPipeline, match=words):
        make_pipeline({**given, "warehouse": {"path": "s3://lake/x", "options": options}})


def test_delta_rs_is_told_what_it_needs_beside_the_options() -> None:
    endpoint = "http://127.0.0.1:9000"
    found = s3_for_delta(KEYS, {"AWS_ENDPOINT_URL_S3": endpoint}, "us-east-1")
    place = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
    assert found == {**KEYS, **place, "AWS_ALLOW_HTTP": "true"}
    secure = {"AWS_ENDPOINT_URL": "https://store.example", "AWS_REGION": "r"}
    assert s3_for_delta(secure, {}, "other") == secure
    assert delta_options("/data", {}) is None


def test_tasks_are_told_where_the_store_is_and_no_credentials_of_the_driver() -> None:
    environ = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "r"}
    place = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_REGION": "r"}
    assert s3_with_endpoint({}, environ) == place
    assert s3_with_endpoint({**KEYS, "aws_region": "own"}, environ) == {
        **KEYS,
        "aws_region": "own",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }


def test_azure_and_google_take_their_own_names() -> None:
    given = {"azure_storage_account_key": "a2V5"}
    wanted = {"account_name": "acc", "account_key": "a2V5"}
    assert azure_arguments("acc", given, {}) == wanted
    assert azure_arguments("acc", {}, {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}) == wanted
    assert azure_arguments(None, {**given, "ACCOUNT_NAME": "acc"}, {"ACCESS_KEY": "no"}) == wanted
    with pytest.raises(InvalidPipeline, match="names no storage account"):
        azure_arguments(None, given, {})
    emulator = azure_arguments("acc", {**given, "AZURE_STORAGE_ENDPOINT": "http://h:1/acc"}, {})
    assert (emulator["blob_storage_scheme"], emulator["dfs_storage_authority"]) == ("http", "h:1")
    other = {**given, "endpoint": "https://acc.blob.core.usgovcloudapi.net/"}
    elsewhere = azure_arguments("acc", other, {})
    assert elsewhere["blob_storage_authority"] == ".blob.core.usgovcloudapi.net"
    assert elsewhere["dfs_storage_authority"] == ".dfs.core.usgovcloudapi.net"
    for wrong in ("https://h/other", "acc.blob.core.windows.net", "ftp://h/acc"):
        with pytest.raises(InvalidPipeline, match="The endpoint of the storage account is"):
            azure_arguments("acc", {**given, "azure_endpoint": wrong}, {})
    place = "abfss://box@acc.dfs.core.windows.net/x"
    plain = {"AZURE_STORAGE_ENDPOINT": "http://h:1/acc"}
    assert delta_options(place, plain) == {**plain, "allow_http": "true"}
    assert delta_options(place, given) == given
    files, path = filesystem("abfss://box@acc.dfs.core.windows.net/x/y", given)
    assert isinstance(files, fs.AzureFileSystem)
    assert path == "box/x/y"
    with pytest.raises(InvalidPipeline, match="environment of driver and executors"):
        gcs_arguments({"GOOGLE_SERVICE_ACCOUNT": "/key.json"})
    files, path = filesystem("gs://lake/x", {"google_skip_signature": "true"})
    assert isinstance(files, fs.GcsFileSystem)
    assert path == "lake/x"


def test_one_file_system_serves_all_files_of_a_warehouse() -> None:
    options = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    first, path = filesystem("s3a://lake/a/b", options)
    assert path == "lake/a/b"
    assert filesystem("s3://lake/c", options)[0] is first
    assert filesystem("s3://lake/c", {**options, "AWS_REGION": "r"})[0] is not first


@pytest.mark.parametrize(
    ("warehouse", "path", "checkpoint"),
    [
        ({"path": "kept"}, "{}/kept", "{}/kept/_checkpoint"),
        ({"path": "file://{}/kept"}, "{}/kept", "{}/kept/_checkpoint"),
        ({"path": "s3a://lake/shop/"}, "s3://lake/shop", "{}/_checkpoint/lake/shop"),
        ({"path": "s3://lake", "checkpoint": "own"}, "s3://lake", "{}/own"),
        ({"path": "s3://lake", "checkpoint": "s3a://b/c/"}, "s3://lake", "s3a://b/c"),
    ],
)
def test_the_checkpoint_of_a_remote_warehouse_is_the_drivers(
    warehouse: dict[str, str], path: str, checkpoint: str, tmp_path: Path
) -> None:
    given = {name: value.format(tmp_path) for name, value in warehouse.items()}
    if "lake" in given["path"]:
        given["options"] = KEYS  # type: ignore[assignment]
    source = {"url": "http://127.0.0.1:1", "streams": ["a"]}
    found = make_pipeline({"source": source, "warehouse": given}, folder=tmp_path).warehouse
    assert found.path == path.format(tmp_path)
    assert found.checkpoint == checkpoint.format(tmp_path)


def test_the_record_of_a_sink_needs_a_checkpoint_that_python_can_open(tmp_path: Path) -> None:
    record_chunking(f"file:{tmp_path}/a", "s", {"chunkMessages": 1})
    assert (tmp_path / "a" / "penstock" / "sink-s.json").exists()
    with pytest.raises(InvalidOption, match="Python cannot open dbfs:/"):
        record_chunking("dbfs:/a", "s", {"chunkMessages": 1})
    assert not Path("dbfs:").exists()


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    def file(name: str, rows: int) -> TableFile:
        return TableFile(name, rows, {}, {}, {})

    given = [file("a", 10), file("b", 20), file("c", 128 * 1024), file("d", 1), file("e", 1)]
    assert shared_out(given) == [["a", "b"], ["c"], ["d", "e"]]
    assert shared_out([]) == []


def test_a_pipeline_refuses_a_session_of_spark_connect() -> None:
    # As they are told apart: the real one needs gRPC, which is not among our packages.
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(InvalidOption, match="this is a session of Spark Connect"):
        needs_classic(remote, "A pipeline")
    with pytest.raises(InvalidOption, match=r"SparkSession.builder.remote"):
        session(master="sc://127.0.0.1:15002")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ERROR\nModuleNotFoundError: No module named 'penstock.spark'\n", "lacks the package pen"),
        ('java.io.IOException: Cannot run program "/a/python": error=2', "the Python /a/python"),
    ],
)
def test_an_executor_without_the_right_python_is_told_in_a_sentence(
    output: str, words: str
) -> None:
    found = error_message(RuntimeError(f"Job aborted.\n{output}"))
    assert words in found
    assert "spark.pyspark.python" in found
