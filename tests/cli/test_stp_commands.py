"""`penstock stp`, as processes against server processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.stp import Row, Table
from tests.helpers.cli import Cli
from tests.helpers.server import running_server

FLAGS = ["--development", "--follow-retry", "0.01"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cli]:
    with running_server(memory=True, args=FLAGS) as server, Cli(server.url, tmp_path) as cli:
        yield cli


def test_follow_status_and_unfollow(here: Cli) -> None:
    assert here.ok("stp", "status") == "The server follows no table and notifies no URL.\n"
    with running_server(memory=True, args=FLAGS) as source:
        origin = Cli(source.url, here.folder)
        with origin:
            table = Table(origin.client, "endpoints")
            table.create("endpoint_manifest")
            table.put("fhir_read", "https://a.example/r")
            surl, nurl = table.url, f"{source.url}/v1/notify/endpoints"
            output = here.ok("stp", "follow", surl, "--into", "copy", "--nurl", nurl)
            assert output == f"copy follows {surl}\n"
            mirror = Table(here.client, "copy")
            while not here.client.stream("copy").exists() or not _rows(mirror):
                pass
            assert [(row.key, row.record) for row in _rows(mirror)] == [
                ("fhir_read", "https://a.example/r")
            ]
            shown = here.json("stp", "status", "copy")
            assert (shown["surl"], shown["seqno"], shown["appended"]) == (surl, 1, 1)
            lines = here.ok("stp", "status").splitlines()
            assert lines[0].split() == ["TABLE", "SEQNO", "STATE", "SOURCE"]
            assert lines[1].split() == ["copy", "1", "following", surl]
            # The source was asked to tell us.
            (listener,) = origin.json("stp", "status")["listeners"]
            assert listener["nurl"] == f"{here.url}/v1/notify/copy"
            assert "endpoints  changed  active" in origin.ok("stp", "status")
            named = here.ok("stp", "follow", surl)
            assert named == f"mirror/127.0.0.1_{source.port}/endpoints follows {surl}\n"
            linked = here.json("stp", "follow", surl, "--into", "copy", "--links", "2")
            assert linked["links"]["depth"] == 2
    assert here.ok("stp", "unfollow", "copy") == "copy no longer follows another table\n"
    code, error = here.failed("stp", "unfollow", "copy")
    assert (code, error.count("\n")) == (3, 1)
    assert "follows nothing" in error


def test_what_cannot_be_followed_is_said_in_a_line(here: Cli) -> None:
    for surl, reason in [
        ("junk", "not an absolute https URL"),
        ("https://10.0.0.1/t", "not a public address"),
        ("http://192.0.2.1/t", "plain http does not go"),
    ]:
        code, error = here.failed("stp", "follow", surl, "--into", "x")
        assert code != 0
        assert reason in error
        assert error.count("\n") == 1


def test_advertised_nurls_are_listed_used_and_forgotten(here: Cli) -> None:
    assert here.ok("stp", "nurls") == "No peer has advertised such a Notify URL.\n"
    with running_server(memory=True, args=FLAGS) as peer:
        nurl = f"{peer.url}/v1/notify/matches"
        here.ok("notify", "hub", f"match={nurl}", "--surl", f"{peer.url}/v1/table/patients")
        (shown,) = here.json("stp", "nurls", "--event", "match")
        assert (shown["nurl"], shown["state"]) == (nurl, "waiting")
        assert shown["source"] == f"{peer.url}/v1/table/patients"
        head, line = here.ok("stp", "nurls").splitlines()
        assert head.split() == ["NURL", "EVENT", "STATE", "TABLE", "SOURCE"]
        assert "hub/match or hub" in line
        assert here.ok("stp", "notify", "matches", "--event", "match") == f"notified {nurl}\n"
        code, error = here.failed("stp", "notify", "matches")
        assert (code, "--event" in error) == (2, True)
    code, error = here.failed("stp", "notify", "matches", "--nurl", nurl)
    assert code == 1
    assert error.startswith(f"{nurl}: ")
    assert here.ok("stp", "forget", "--nurl", nurl) == "1 removed\n"
    code, error = here.failed("stp", "forget", "--nurl", nurl)
    assert (code, error.count("\n")) == (3, 1)


def _rows(table: Table) -> list[Row]:
    return list(table.read())
