"""`penstock subscription` and `penstock work`, as processes against a server process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock import AsyncClient
from penstock.errors import AlreadyClaimed, Fenced, NoPendingWork, SubscriptionExists
from tests.helpers.cli import Cli
from tests.helpers.server import running_server

COLLECT = "import os, sys; print(os.environ['PENSTOCK_STREAM'], *sys.stdin.read().split())"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Cli]:
    with running_server(memory=True) as server, Cli(server.url, tmp_path) as cli:
        yield cli


def test_create_show_list_and_delete(here: Cli) -> None:
    assert here.ok("subscription", "ls") == "There are no subscriptions.\n"
    here.make("jobs/old", 1)
    create = ["subscription", "create", "jobs", "--pattern", "jobs/*", "--wake-stream", "wake"]
    text = here.ok(*create, "--stream", "extra", "--description", "does jobs")
    assert "subscription  jobs\n" in text
    assert "jobs/old  glob      0000" in text
    assert "extra     explicit  -1" in text
    assert here.ok(*create, "--stream", "extra", "--description", "does jobs") == text
    code, error = here.failed(*create)
    assert (code, "exists with another configuration" in error) == (4, True)
    shown = here.json("subscription", "show", "jobs")
    assert (shown["type"], shown["pending"]) == ("pull-wake", 0)
    lines = here.ok("subscription", "ls").splitlines()
    assert lines[0].split() == ["ID", "TYPE", "STATUS", "STREAMS", "PENDING", "OF", "TO"]
    assert lines[1].split() == ["jobs", "pull-wake", "active", "2", "0", "jobs/*", "wake"]
    assert here.json("subscription", "ls", "jo")["streams"] == 2
    assert here.ok("subscription", "rm", "jobs") == "deleted jobs\n"
    code, error = here.failed("subscription", "show", "jobs")
    assert (code, error.count("\n")) == (3, 1)


def test_streams_are_added_and_removed(here: Cli) -> None:
    here.ok("subscription", "create", "jobs", "--pattern", "jobs/*", "--wake-stream", "wake")
    assert here.ok("subscription", "add", "jobs", "x", "jobs/a") == "added 2 to jobs\n"
    links = {each["path"]: each["link_type"] for each in _links(here)}
    assert links == {"x": "explicit", "jobs/a": "explicit"}
    done = here.ok("subscription", "remove", "jobs", "x", "jobs/a")
    assert done == "removed x from jobs\nremoved jobs/a from jobs\n"
    assert {each["path"]: each["link_type"] for each in _links(here)} == {"jobs/a": "glob"}
    for refused in (["add", "jobs", "wake"], ["add", "nobody", "x"], ["remove", "nobody", "x"]):
        code, error = here.failed("subscription", *refused)
        assert (code != 0, error.count("\n")) == (True, 1)
    assert here.failed("subscription", "add", "jobs")[0] == 2


def _links(here: Cli) -> list[dict[str, str]]:
    links: list[dict[str, str]] = here.json("subscription", "show", "jobs")["streams"]
    return links


def test_the_signing_key_is_replaced(here: Cli) -> None:
    first = here.json("subscription", "rotate-key")
    text = here.ok("subscription", "rotate-key")
    second = text.split()[0]
    assert text.startswith("ds_")
    assert " signs from 20" in text
    keys = httpx2.get(f"{here.url}/v1/stream/__ds/jwks.json").json()["keys"]
    assert [key["kid"] for key in keys] == [first["kid"], second]
    assert here.client.rotate_webhook_key().kid == second


def test_what_is_refused_is_said_in_a_line(here: Cli) -> None:
    hook = ["subscription", "create", "s", "--pattern", "a/*", "--webhook"]
    code, error = here.failed(*hook, "http://10.0.0.1/x")
    assert (code, error.count("\n")) == (1, 1)
    assert here.failed(*hook, "https://a.example/", "--wake-stream", "w")[0] == 2
    assert here.failed("subscription", "create", "s", "--pattern", "a/*")[0] == 2
    code, error = here.failed(*hook, "https://a.example/hook")
    assert (code, error.count("\n"), "--public-url" in error) == (1, 1, True)


def test_a_webhook_has_no_work_for_a_worker(tmp_path: Path) -> None:
    arguments = ["--public-url", "https://streams.example.com"]
    with (
        running_server(memory=True, args=arguments) as server,
        Cli(server.url, tmp_path) as cli,
    ):
        hook = ["--webhook", "https://a.example/hook"]
        cli.ok("subscription", "create", "s", "--pattern", "a/*", *hook)
        _, error = cli.failed("work", "s", "--", "true")
        assert "webhook" in error


def test_work_is_done_once_and_acked(here: Cli) -> None:
    here.ok("subscription", "create", "jobs", "--pattern", "jobs/**", "--wake-stream", "wake")
    here.make("jobs/a", 1, {"x": [2]})
    here.make("jobs/b", "text", content_type="text/plain")
    done = here.ok("work", "jobs", "--once", "--", sys.executable, "-c", COLLECT)
    assert sorted(done.splitlines()) == ['jobs/a 1 {"x":[2]}', "jobs/b text"]
    assert here.json("subscription", "show", "jobs")["pending"] == 0
    assert here.ok("work", "jobs", "--once", "--", sys.executable, "-c", COLLECT) == ""


def test_work_that_fails_is_given_back(here: Cli) -> None:
    here.ok("subscription", "create", "jobs", "--pattern", "jobs/*", "--wake-stream", "wake")
    here.make("jobs/a", 1)
    code, error = here.failed("work", "jobs", "--once", "--", "false")
    assert (code, "exited with 1 for jobs/a" in error) == (1, True)
    shown = here.json("subscription", "show", "jobs")
    assert (shown["pending"], shown["holder"]) == (1, None)
    code, error = here.failed("work", "jobs", "--once", "--", "no-such-command")
    assert "no-such-command" in error
    assert here.json("subscription", "show", "jobs")["holder"] is None
    assert here.ok("work", "jobs", "--once", "--", "cat") == "1\n"


def test_a_worker_waits_for_the_next_wake_and_gives_back_when_stopped(here: Cli) -> None:
    here.ok("subscription", "create", "jobs", "--pattern", "jobs/*", "--wake-stream", "wake")
    script = "import sys; print(sys.stdin.read().strip(), flush=True)"
    stream = here.make("jobs/a", 0)
    with here.start("work", "jobs", "--", sys.executable, "-c", script) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"0\n"
        for number in range(1, 4):
            stream.append(number)
            assert worker.stdout.readline() == f"{number}\n".encode()
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 130
    slow = "import sys, time; print('on it', flush=True); time.sleep(60)"
    with here.start("work", "jobs", "--", sys.executable, "-c", slow) as worker:
        assert worker.stdout is not None
        stream.append(4)
        assert worker.stdout.readline() == b"on it\n"
        assert here.json("subscription", "show", "jobs")["holder"] is not None
        worker.send_signal(signal.SIGINT)
        assert worker.wait(20) == 130
    shown = here.json("subscription", "show", "jobs")
    assert (shown["holder"], shown["pending"]) == (None, 1)


def test_a_long_command_keeps_its_lease(here: Cli) -> None:
    here.ok(
        *("subscription", "create", "jobs", "--pattern", "jobs/*", "--wake-stream", "wake"),
        *("--lease-ms", "1000"),
    )
    here.make("jobs/a", 1)
    script = "import time; time.sleep(1.5)"  # the command takes longer than the lease
    assert here.ok("work", "jobs", "--once", "--", sys.executable, "-c", script) == ""
    shown = here.json("subscription", "show", "jobs")
    assert (shown["pending"], shown["generation"]) == (0, 1)


def test_the_library_says_what_the_server_says(here: Cli) -> None:
    client = here.client
    client.stream("wake").create()
    subscription = client.subscription("a b/c")
    info = subscription.create(pattern="jobs/*", wake_stream="wake")
    assert info.id == "a b/c"
    assert [each.id for each in client.subscriptions()] == ["a b/c"]
    with pytest.raises(SubscriptionExists):
        subscription.create(pattern="other/*", wake_stream="wake")
    with pytest.raises(NoPendingWork):
        subscription.claim("w1")
    subscription.add("extra/x")
    offset = client.stream("extra/x").create(body=1).offset
    wake = subscription.claim("w1")
    assert [each.path for each in wake.pending] == ["extra/x"]
    with pytest.raises(AlreadyClaimed) as busy:
        subscription.claim("w2")
    assert busy.value.said == {"current_holder": "w1", "generation": 1}
    assert subscription.ack(wake) is False
    assert subscription.ack(wake, {"extra/x": offset}, done=True) is False
    with pytest.raises(Fenced):
        subscription.release(wake)
    subscription.remove("extra/x")
    assert subscription.show().streams == []
    subscription.delete()
    assert list(client.subscriptions()) == []


def test_the_asyncio_library_does_the_same(here: Cli) -> None:
    async def run() -> None:
        async with AsyncClient(here.url) as client:
            await client.stream("wake").create()
            subscription = client.subscription("s")
            await subscription.create(pattern="jobs/*", wake_stream="wake")
            offset = (await client.stream("jobs/a").create(body=1)).offset
            wake = await subscription.claim("w1")
            assert await subscription.ack(wake) is False
            await subscription.release(wake)
            with pytest.raises(Fenced):
                await subscription.ack(wake, done=True)
            wake = await subscription.claim("w1")
            assert wake.generation == 2
            assert await subscription.ack(wake, {"jobs/a": offset}, done=True) is False
            assert (await client.rotate_webhook_key()).kid.startswith("ds_")
            await subscription.add("x")
            await subscription.remove("x")
            info = await subscription.show()
            assert isinstance(info.streams, list)
            assert [each.acked_offset for each in info.streams] == [offset]
            assert [each.id async for each in client.subscriptions()] == ["s"]
            await subscription.delete()

    asyncio.run(run())
