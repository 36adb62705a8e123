"""`penstock backup`, `restore` and `scrub` as processes against a server process, on folders and on
a real S3 server; and whether everything of a restored server is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock import Client
from penstock.client.sync.subscription import Subscription
from penstock.errors import SequenceGap, StreamRecreated
from tests.helpers.cli import Cli
from tests.helpers.folders import flip
from tests.helpers.server import Server, running_server
from tests.spark.object_store import BUCKET, missing, running_store

ROOT_TOKEN = "root-token-of-the-tests"
LIVE = "/v1/streams/live?stream=events@now"
ARGS = ["--inline-bytes-max", "100", "--disk-reserve-bytes", "0"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cli]:
    with (
        running_server(data_dir=tmp_path / "data", args=ARGS) as server,
        Cli(server.url, tmp_path) as cli,
    ):
        yield cli


def test_a_backup_is_made_listed_checked_and_restored(here: Cli, tmp_path: Path) -> None:
    stream = here.make("a", *range(100))
    first = here.json("backup", "place")  # the folder of the command, not that of the server
    assert (first["state"], first["backup"]["streams"]) == ("done", 1)
    stream.append(100)
    assert "1 stream" in here.ok("backup", tmp_path / "place")
    ids = [line.split()[0] for line in here.ok("backup", "list", "place").splitlines()[1:]]
    assert ids[0] == first["backup"]["id"]
    assert len(ids) == 2
    assert here.ok("backup", "verify", "place") == "2 backups, no problems found\n"
    assert ids[1] in here.ok("restore", "place", "--data-dir", "new")
    assert "no problems found" in here.ok("verify", "new")
    moment = first["backup"]["cut_at"]
    assert ids[0] in here.ok("restore", "place", "--data-dir", "old", "--at", moment)
    for folder, count in (("new", 101), ("old", 100)):
        assert f" {count} messages" in here.ok("verify", folder)

    here.ok("backup", "place", "--keep", 1)
    assert len(here.ok("backup", "list", "place").splitlines()) == 2
    flip(next(path for path in (tmp_path / "place" / "packs").rglob("*") if path.is_file()), 40)
    code, error = here.failed("backup", "verify", "place")
    assert (code, "1 problem found" in error) == (1, True)
    code, error = here.failed("restore", "place", "--data-dir", "third")
    assert (code, "does not match its checksum" in error) == (1, True)
    code, error = here.failed("verify", "third")
    assert (code, "not finished" in error) == (2, True)


def test_what_cannot_be_done_is_said_in_one_line(here: Cli) -> None:
    here.ok("backup", "place")
    assert "There are no backups" in here.ok("backup", "list", "nowhere")
    for line, reason in {
        "backup data/backups": "is in the data folder",
        "backup ftp://x/y": "no storage that Penstock knows",
        "backup verify place --backup x": "no backup 'x'",
        "backup verify nowhere": "nowhere has no backup",
        "backup place --keep 0": "x>=1",
        "backup place --rate fast": "a size such as",
        "restore nowhere --data-dir r": "has no backup",
        "restore place --data-dir data": "is not empty",
        "restore place --data-dir r --at 2001-01-01": "of that time or before",
        "restore place --data-dir r --at soon": "is not a time",
        "restore place --data-dir r --at 1h": "of that time or before",
        "restore place --data-dir r --at 2030-01-01 --backup x": "either",
        "backup place --data-dir data": "is in use",
        "backup place --data-dir nowhere": "is not a Penstock data folder",
    }.items():
        _, error = here.failed(*line.split())
        assert reason in error


def test_the_folder_of_a_stopped_server_is_backed_up(tmp_path: Path) -> None:
    with running_server(data_dir=tmp_path / "data", args=ARGS) as server:
        with Cli(server.url, tmp_path) as cli:
            cli.make("a", 1, 2, 3)
        server.kill()  # the journal alone has it
    with Cli("http://127.0.0.1:9", tmp_path) as cli:
        cli.ok("backup", "place", "--data-dir", "data")
        cli.ok("restore", "place", "--data-dir", "restored")
        assert " 3 messages" in cli.ok("verify", "restored")
        assert " 3 messages" in cli.ok("verify", "data")


def test_a_backup_is_canceled_and_a_second_one_refused(tmp_path: Path) -> None:
    args = [*ARGS, "--backup-rate", "20KiB"]
    with (
        running_server(data_dir=tmp_path / "data", args=args) as server,
        Cli(server.url, tmp_path) as cli,
    ):
        cli.make("a", "x" * 500_000)
        assert "has begun" in cli.ok("backup", "place", "--no-wait")
        code, error = cli.failed("backup", "place")
        assert (code, "penstock backup cancel" in error) == (4, True)
        assert cli.ok("backup", "cancel") == "The backup was stopped.\n"
        assert cli.ok("backup", "cancel") == "No backup is running.\n"
        assert "There are no backups" in cli.ok("backup", "list", "place")
        assert "new" in cli.ok("backup", "place", "--rate", 0)
        # A stop does not wait for a backup.
        cli.make("b", "x" * 500_000)
        cli.ok("backup", "place", "--no-wait")
        assert server.terminate() == 0


def test_a_server_in_memory_says_that_it_has_nothing(cli: Cli) -> None:
    for command in (["backup", "place"], ["scrub"]):
        code, error = cli.failed(*command)
        assert (code, "in memory" in error) == (4, True)


def test_a_scrub_of_a_live_folder_names_the_flipped_bit(here: Cli, tmp_path: Path) -> None:
    here.make("a", *["x" * 100] * 50)
    assert here.ok("scrub", "--status") == "There was no scrub since the server started.\n"
    here.ok("backup", "place")  # its checkpoint has written the segment
    assert "no problems found" in here.ok("scrub", "--wait")
    segment = next((tmp_path / "data" / "segments").rglob("*.segment"))
    flip(segment, 200)
    done = here.run("scrub", "--wait")
    assert done.returncode == 1
    assert f"{segment.name}, byte 0 (stream a)" in done.stdout
    assert "penstock restore" in done.stdout
    metrics = httpx2.get(f"{here.url}/metrics").text
    assert "penstock_scrub_errors_total 1.0" in metrics
    # A damaged block is no reason to lose the rest.
    done = here.run("backup", "another")  # what a place has is not read again
    assert done.returncode == 1
    assert f"damaged: a: {segment.name}, byte 0" in done.stdout
    assert "is complete" in done.stderr


def test_an_object_store_takes_backups(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    with (
        running_store() as store,
        running_server(data_dir=tmp_path / "data", args=ARGS, env=store.options) as server,
        Cli(server.url, tmp_path) as cli,
    ):
        cli.env.update(store.options)
        stream = cli.make("a", *range(100))
        place = f"s3://{BUCKET}/backups/penstock"
        cli.ok("backup", place)
        stream.append(100)
        second = cli.json("backup", place)
        assert second["destination"] == place
        assert cli.ok("backup", "verify", place) == "2 backups, no problems found\n"
        cli.ok("restore", place, "--data-dir", "restored")
        assert " 101 messages" in cli.ok("verify", "restored")
        cli.ok("backup", place, "--keep", 1)
        assert len(cli.ok("backup", "list", place).splitlines()) == 2
        _, error = cli.failed("backup", "s3://no-such-bucket/x")
        assert "there is no such bucket" in error


def test_everything_of_a_restored_server_is_as_it_was(tmp_path: Path) -> None:
    args = [*ARGS, "--token", ROOT_TOKEN]
    with running_server(data_dir=tmp_path / "data", args=args) as server:
        before = Written(server)
        with Cli(server.url, tmp_path) as cli:
            cli.env["PENSTOCK_TOKEN"] = ROOT_TOKEN
            code, error = cli.failed("backup", "place", "--token", before.token)
            assert (code, "admin" in error) == (6, True)
            cli.ok("backup", "place")
        before.lose()
    with Cli("http://127.0.0.1:9", tmp_path) as cli:
        cli.ok("restore", "place", "--data-dir", "restored")
    with running_server(data_dir=tmp_path / "restored", args=args) as server:
        before.check(server)


def _acked(subscription: Subscription) -> str:
    streams = subscription.show().streams
    assert isinstance(streams, list)
    [link] = [each for each in streams if each.path == "jobs/1"]
    return link.acked_offset


class Written:
    """One of everything on a server, and how it is to be after a restore."""

    def __init__(self, server: Server) -> None:
        client = self._open(server)
        self.events = client.stream("events")
        self.events.create("application/json")
        self.events.append_many([{"n": n} for n in range(50)])
        self.offset = self.events.head().offset
        response = self._get(server, "/v1/stream/events?offset=-1")
        self.etag = response.headers["etag"]
        producer = {"Producer-Id": "p", "Producer-Epoch": "0"}
        self._post(server, "events", {"n": 50}, {**producer, "Producer-Seq": "0"})
        fork = self.events.fork("fork", at=self.offset)
        fork.append({"of": "the fork"})
        self.token = client.create_token(["read:events"], name="reader").token
        subscription = client.subscription("jobs")
        subscription.create(pattern="jobs/*", wake_stream="wakes")
        jobs = client.stream("jobs/1")
        jobs.create("application/json")
        jobs.append_many(["first", "second"])
        wake = subscription.claim("w")
        [link] = [each for each in wake.streams if each.path == "jobs/1"]
        subscription.ack(wake, {"jobs/1": link.tail_offset}, done=True)
        self.acked = link.tail_offset
        schema = {"types": {"user": {"schema": {"required": ["name"]}}}}
        client.stream("users").create("application/json")
        with self._http(server) as http:
            assert http.put("/v1/schema/users", json=schema).is_success
        client.close()
        self.server = server

    def lose(self) -> None:
        """Go on after the backup: none of this may mean anything to the restored server."""
        client = self._open(self.server)
        stream = client.stream("events")
        stream.append_many([{"lost": n} for n in range(20)])
        self.lost_offset = stream.head().offset
        self.lost_etag = self._get(self.server, "/v1/stream/events?offset=-1").headers["etag"]
        self.lost_cursor = self._cursor(self.server)
        client.stream("new").create("application/json")
        client.stream("new").append("lost")
        self.new_offset = client.stream("new").head().offset
        client.close()

    def check(self, server: Server) -> None:
        client = self._open(server)
        events = client.stream("events")
        assert [each["n"] for each in events.read_json()] == list(range(51))
        assert events.read_json(self.offset) == [{"n": 50}]
        assert client.stream("fork").read_json(self.offset) == [{"of": "the fork"}]
        again = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}
        assert self._post(server, "events", {"n": 50}, again).status_code == 204
        gap = self._post(server, "events", {"n": 60}, {**again, "Producer-Seq": "9"})
        assert (gap.status_code, gap.json()["code"]) == (409, SequenceGap.code)
        with Client(server.url, token=self.token) as reader:
            assert reader.stream("events").head().offset == events.head().offset
        event = {"type": "user", "key": "1", "value": {}, "headers": {"operation": "insert"}}
        refused = self._post(server, "users", event)
        assert refused.status_code == 422
        self._check_lost(server, client)
        self._check_subscription(client)
        client.close()

    def _check_lost(self, server: Server, client: Client) -> None:
        events = client.stream("events")
        for _ in range(3):
            with pytest.raises(StreamRecreated, match="restored from a backup"):
                events.read_json(self.lost_offset)
            response = self._get(
                server, "/v1/stream/events?offset=-1", {"If-None-Match": self.lost_etag}
            )
            assert response.status_code == 200
            # As many bytes as were lost: positions are the same, the data is another.
            events.append_many([{"home": n} for n in range(20)])
            assert self._resume(server, self.lost_cursor) == 400
        assert self._resume(server, self._cursor(server)) == 200
        tail = events.head().offset
        assert [each.offset for each in client.list("events")] == [tail]
        assert events.read_json(tail) == []
        client.stream("new").create("application/json")
        client.stream("new").append("kept")
        with pytest.raises(StreamRecreated):
            client.stream("new").read_json(self.new_offset)

    def _check_subscription(self, client: Client) -> None:
        subscription, jobs = client.subscription("jobs"), client.stream("jobs/1")
        assert _acked(subscription) == self.acked
        jobs.append("third")
        wake = subscription.claim("w")
        [link] = [each for each in wake.streams if each.path == "jobs/1"]
        assert (link.acked_offset, link.has_pending) == (self.acked, True)
        assert jobs.read_json(link.acked_offset) == ["third"]
        subscription.ack(wake, {"jobs/1": link.tail_offset}, done=True)
        assert _acked(subscription) == jobs.head().offset
        assert jobs.read_json(_acked(subscription)) == []

    def _cursor(self, server: Server) -> str:
        """Return the cursor of a live response at the tail, with which the next one resumes."""
        with self._http(server) as http, http.stream("GET", LIVE) as response:
            lines = (line for line in response.iter_lines() if line.startswith("id:"))
            return next(lines).removeprefix("id:").strip()

    def _resume(self, server: Server, cursor: str) -> int:
        with (
            self._http(server) as http,
            http.stream("GET", LIVE, headers={"Last-Event-ID": cursor}) as response,
        ):
            return response.status_code

    def _open(self, server: Server) -> Client:
        return Client(server.url, token=ROOT_TOKEN)

    def _http(self, server: Server) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {ROOT_TOKEN}"}
        return httpx2.Client(base_url=server.url, headers=headers)

    def _get(
        self, server: Server, path: str, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        with self._http(server) as http:
            return http.get(path, headers=headers)

    def _post(
        self, server: Server, path: str, value: Any, headers: dict[str, str] | None = None
    ) -> httpx2.Response:
        with self._http(server) as http:
            content = json.dumps([value]).encode()
            headers = {"Content-Type": "application/json", **(headers or {})}
            return http.post(f"/v1/stream/{path}", content=content, headers=headers)
