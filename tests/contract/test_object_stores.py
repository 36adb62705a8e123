"""What every object store does: a folder, the memory of the process, and a real S3 server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from penstock import object_store
from penstock.backoff import Backoff
from penstock.errors import (
    BucketNotFound,
    InvalidStorageUrl,
    ObjectNotFound,
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from penstock.object_store import PART_BYTES, Data, FolderStore, ObjectStore, open_store
from tests.spark.object_store import BUCKET, Store, missing, running_store


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    if reason := missing():
        pytest.skip(reason)
    with running_store() as store:
        yield store


@pytest.fixture(params=["folder", "file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    match request.param:
        case "folder":
            return open_store(str(tmp_path / "not" / "there yet"))
        case "file":
            return open_store((tmp_path / "a folder").as_uri())
        case "memory":
            return open_store(f"memory://{tmp_path}")
    server: Store = request.getfixturevalue("s3")
    return open_store(f"s3://{BUCKET}/{tmp_path.name}/deep", options=server.options)


def test_what_was_put_is_got(store: ObjectStore) -> None:
    store.put("packs/ab/one", b"0123456789")
    assert store.get("packs/ab/one") == b"0123456789"
    assert store.get_range("packs/ab/one", 2, 5) == b"234"
    assert store.get_range("packs/ab/one", 8, 100) == b"89"
    store.put("packs/ab/one", memoryview(b"other"))
    assert store.get("packs/ab/one") == b"other"


def test_pieces_become_one_object(store: ObjectStore) -> None:
    pieces: list[Data] = [b"a" * 3, bytearray(b"b"), memoryview(b"c")]
    store.put("pieces", iter(pieces))
    assert store.get("pieces") == b"aaabc"


def test_a_large_object_is_sent_in_parts(store: ObjectStore) -> None:
    data = bytes(range(256)) * (2 * PART_BYTES // 256) + b"rest"
    store.put("large", data)
    head = store.head("large")
    assert head is not None
    assert head.size == len(data)
    assert store.get_range("large", PART_BYTES - 3, PART_BYTES + 3) == b"\xfd\xfe\xff\x00\x01\x02"


def test_the_first_of_two_writers_wins(store: ObjectStore) -> None:
    assert store.put_if_absent("lock", b"first")
    assert not store.put_if_absent("lock", b"second")
    assert store.get("lock") == b"first"


def test_of_many_writers_at_once_one_wins(store: ObjectStore) -> None:
    winners: list[int] = []

    def write(number: int) -> None:
        if store.put_if_absent("race", str(number).encode()):
            winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(number).encode() for number in winners] == [store.get("race")]


def test_what_is_not_there_is_said_so(store: ObjectStore) -> None:
    assert store.head("nothing") is None
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFound, match="'nothing'"):
        store.get("nothing")
    with pytest.raises(ObjectNotFound, match="'nothing'"):
        store.get_range("nothing", 0, 1)
    store.delete(["nothing"])


def test_a_prefix_lists_what_is_below_it(store: ObjectStore) -> None:
    for key in ("a/1", "a/b/2", "ab/3", "c"):
        store.put(key, key.encode())
    assert sorted(blob.key for blob in store.list("a")) == ["a/1", "a/b/2"]
    assert {blob.key: blob.size for blob in store.list()} == {
        "a/1": 3,
        "a/b/2": 5,
        "ab/3": 4,
        "c": 1,
    }
    store.delete(["a/1", "c", "nothing"])
    assert sorted(blob.key for blob in store.list()) == ["a/b/2", "ab/3"]


def test_no_unfinished_object_is_listed_or_left(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)

    def pieces() -> Iterator[bytes]:
        yield b"begun"
        assert list(store.list()) == []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("a/b", pieces())
    assert list(store.list()) == []
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "empty"),
        ("ftp://host/x", "ftp:// is no storage"),
        ("s3://", "names no bucket"),
        ("file://host/x", "file:///path"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidStorageUrl, match=message):
        open_store(url)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        open_store(str(tmp_path / "file" / "below")).put("key", b"")


def test_a_missing_bucket_is_named(s3: Store) -> None:
    store = open_store("s3://nowhere/x", options=s3.options)
    with pytest.raises(BucketNotFound, match="s3://nowhere/x: there is no such bucket"):
        store.put("key", b"")
    with pytest.raises(BucketNotFound):
        list(store.list())


def test_wrong_credentials_are_said_so(s3: Store) -> None:
    options = {**s3.options, "AWS_ACCESS_KEY_ID": "somebody else"}
    with pytest.raises(StorageDenied, match="AWS_SECRET_ACCESS_KEY"):
        open_store(f"s3://{BUCKET}/x", options=options).get("key")


def test_azure_without_an_account_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageDenied, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://container/x")


def test_credentials_come_from_the_environment(s3: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.options.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/environment")
    store.put("key", b"value")
    assert store.get("key") == b"value"


class Throttled(BaseHTTPRequestHandler):
    """Answers 429 a few times before it takes an object."""

    refusals: ClassVar[int] = 0

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        refused = Throttled.refusals > 0
        Throttled.refusals -= 1
        self.send_response(429 if refused else 200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("refusals", "arrives"), [(2, True), (1 << 30, False)])
def test_a_throttled_store_is_asked_again(
    refusals: int, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "BACKOFF", Backoff(base_s=0.01, cap_s=0.01))
    monkeypatch.setattr(object_store, "ATTEMPTS_MAX", 3)
    Throttled.refusals = refusals
    server = HTTPServer(("127.0.0.1", 0), Throttled)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        options = {
            "aws_endpoint_url": f"http://127.0.0.1:{server.server_port}",
            "aws_access_key_id": "a",
            "aws_secret_access_key": "b",
        }
        store = open_store("s3://bucket/x", options=options)
        if arrives:
            store.put("key", b"value")
        else:
            with pytest.raises(StorageUnavailable, match="so many requests"):
                store.put("key", b"value")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_without_the_extra_a_cloud_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from penstock.object_store import open_store\n"
        "open_store('memory://x').put('a', b'')\n"
        "try: open_store('s3://b/x')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'penstock-streams[objectstore]'" in done.stdout
