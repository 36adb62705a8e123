"""The audit log: every admin action is in it, with who and from where, and nothing secret."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.access import audit
from penstock.access.audit import PATH, AuditLog, Deed
from penstock.access.principal import Principal
from penstock.access.rules import parse_rules
from penstock.clock import ManualClock
from penstock.errors import DiskFull
from penstock.http.app import App
from penstock.http.endpoint import Endpoint
from penstock.http.message import Response
from penstock.http.sender import Sender
from penstock.log import open_engine
from penstock.log.retention import decode
from tests.helpers.app import Answer, Client, make_request, run_with_app, settings_of, with_app
from tests.helpers.cli import Cli
from tests.helpers.server import running_server

JSON = "application/json"
ROOT: dict[str, str] = {"authorization": "Bearer root"}
ACCESS: dict[str, Any] = {"auth_token": "root"}


async def as_root(
    client: Client, method: str, target: str, content: object = None, **headers: str
) -> Answer:
    body = b"" if content is None else json.dumps(content).encode()
    return await client.send(method, target, body, **ROOT, **headers)


async def events(client: Client) -> list[dict[str, Any]]:
    answer = await as_root(client, "GET", "/v1/audit")
    assert answer.status == 200, answer
    content: list[dict[str, Any]] = answer.json()
    return content


@with_app(**ACCESS, development=True, public_url="http://127.0.0.1:8080")
async def test_every_action_is_recorded_under_its_name(client: Client) -> None:
    async def act(method: str, target: str, content: object = None) -> None:
        answer = await as_root(client, method, target, content, content_type=JSON)
        assert answer.status < 300, (method, target, answer)

    await act("PUT", "/v1/stream/s")
    await act("POST", "/v1/stream/s", [1])
    assert await events(client) == []  # Appends and reads are no actions.
    await act("PUT", "/v1/stream/s/__ds/retention", {"age": 86400})
    await act("DELETE", "/v1/stream/s/__ds/retention")
    await act("POST", "/v1/stream/s/__ds/trim", {"before": "now"})
    await act("PUT", "/v1/schema/s", {"types": {}})
    await act("POST", "/v1/stream/s/__ds/compact")
    await act("DELETE", "/v1/schema/s")
    await act("PUT", "/v1/table/t", {"schema": "x"})
    await act("PUT", "/v1/table/t?key=1", {"a": 1})
    subscription = {"type": "pull-wake", "pattern": "s*", "wake_stream": "w"}
    await act("PUT", "/v1/stream/w")
    base = "/v1/stream/__ds/subscriptions/mail"
    await act("PUT", base, subscription)
    await act("POST", f"{base}/streams", {"streams": ["s"]})
    await act("DELETE", f"{base}/streams/s")
    await act("DELETE", base)
    await act("POST", "/v1/stream/__ds/rotate-key")
    await act("DELETE", "/v1/stream/s")
    recorded = [(event["action"], event["path"], event["status"]) for event in await events(client)]
    assert recorded == [
        ("retention.set", "s", 200),
        ("retention.remove", "s", 204),
        ("stream.trim", "s", 200),
        ("schema.set", "s", 201),
        ("stream.compact", "s", 200),
        ("schema.remove", "s", 204),
        ("table.declare", "t", 201),
        ("subscription.set", "mail", 201),
        ("subscription.add", "mail/streams", 204),
        ("subscription.remove", "mail/streams/s", 204),
        ("subscription.remove", "mail", 204),
        ("keys.rotate", "__ds/keys", 200),
        ("stream.delete", "s", 204),
    ]


@with_app(**ACCESS)
async def test_every_route_that_changes_more_than_messages_is_audited(client: Client) -> None:
    """A new route that nobody has thought of fails here."""
    router = client.app._router
    resources = {
        "streams": router._streams,
        **{path.decode(): methods for path, methods in router._fixed.items()},
        **{path.decode(): methods for path, methods in router._prefixes.items()},
        **{f"…/__ds/{name}": methods for name, methods in router._suffixes.items()},
    }
    silent = {
        f"{method} {name}"
        for name, methods in resources.items()
        for method, endpoint in methods.items()
        if method not in ("GET", "HEAD") and not endpoint.action
    }
    assert silent == {
        "PUT streams",
        "POST streams",
        "POST /v1/table/",
        "DELETE /v1/table/",
        "POST /v1/notify/",
        "POST /v1/link",
        # The cookie of a browser, which can do what its token can.
        "POST /v1/session",
        "DELETE /v1/session",
    }


@with_app(**ACCESS)
async def test_an_event_says_who_when_and_from_where(client: Client) -> None:
    client.app.access.add_bearer({"t": Principal("ci", parse_rules(["*:**"]), id="tok_1")}.get)
    await as_root(client, "PUT", "/v1/stream/a")
    request = make_request("DELETE", "/v1/stream/a", authorization="Bearer t", x_request_id="r-1")
    request.sender = Sender("192.0.2.7")
    assert client.app.refuse(request) is None
    answer = client.app.handle(request)
    assert not isinstance(answer, Response)
    assert (await answer).status == 204
    assert await events(client) == [
        {
            "time": "2027-01-15T08:00:00.000Z",
            "action": "stream.delete",
            "path": "a",
            "status": 204,
            "principal": "ci",
            "principal_id": "tok_1",
            "address": "192.0.2.7",
            "request_id": "r-1",
        }
    ]


@with_app(**ACCESS)
async def test_a_request_id_that_is_none_is_left_out(client: Client) -> None:
    for sent in ("a b", "x" * 129, "ü", ""):
        await as_root(client, "PUT", "/v1/stream/a")
        await as_root(client, "DELETE", "/v1/stream/a", x_request_id=sent)
    assert ["request_id" in event for event in await events(client)] == [False] * 4


@with_app(**ACCESS)
async def test_failures_are_no_events_and_refusals_are_some(
    client: Client,
) -> None:
    client.app.access.add_bearer({"t": Principal("reader", parse_rules(["read:a"]))}.get)
    await as_root(client, "PUT", "/v1/stream/a")
    assert (await as_root(client, "DELETE", "/v1/stream/none")).status == 404
    token = {"authorization": "Bearer t"}
    assert (await client.send("DELETE", "/v1/stream/a", b"", **token)).status == 403
    assert (await client.send("POST", "/v1/nurls", b"{}", **token)).status == 403
    assert (await client.send("DELETE", "/v1/stream/b", b"", **token)).status == 404
    assert (await client.send("DELETE", "/v1/stream/a")).status == 401
    assert (await client.send("POST", "/v1/stream/a", b"", **token)).status == 403
    recorded = [(e["action"], e["path"], e["status"], e["principal"]) for e in await events(client)]
    assert recorded == [
        ("stream.delete", "a", 403, "reader"),
        ("nurls.send", "__ds/nurls", 403, "reader"),
    ]


@with_app(**ACCESS)
async def test_refusals_cannot_fill_the_log(client: Client) -> None:
    now = 1000.0
    client.app.audit._monotonic = lambda: now
    client.app.access.add_bearer({"t": Principal("reader", parse_rules(["read:a"]))}.get)
    for _ in range(audit.REFUSALS_MAX + 40):
        await client.send("DELETE", "/v1/stream/a", b"", authorization="Bearer t")
    await as_root(client, "PUT", "/v1/stream/a")
    await as_root(client, "DELETE", "/v1/stream/a")
    recorded = await events(client)
    assert [event["status"] for event in recorded] == [403] * audit.REFUSALS_MAX + [204]
    now += audit.REFUSALS_S
    await client.send("DELETE", "/v1/stream/a", b"", authorization="Bearer t")
    assert (await events(client))[-1]["suppressed"] == 40


@with_app(**ACCESS)
async def test_a_deletion_is_recorded_though_its_client_has_gone(client: Client) -> None:
    await as_root(client, "PUT", "/v1/stream/a")
    request = make_request("DELETE", "/v1/stream/a", b"", **ROOT)
    assert client.app.refuse(request) is None
    client.app.handle(request)  # Nobody renders the response.
    while client.engine.active_streams() and not client.app.audit.written:
        await asyncio.sleep(0)
    assert [event["status"] for event in await events(client)] == [204]


@with_app(**ACCESS)
async def test_an_action_that_is_cut_off_has_an_unknown_outcome(client: Client) -> None:
    await as_root(client, "PUT", "/v1/stream/a", content_type=JSON)
    body = b'{"types": {}}'
    task = asyncio.ensure_future(client.send("PUT", "/v1/schema/a", body, **ROOT))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert [(each["action"], each["status"]) for each in await events(client)] == [
        ("schema.set", None)
    ]


@with_app()
async def test_an_open_server_audits_nothing_by_itself(client: Client) -> None:
    await client.put("a")
    await client.delete("a")
    answer = await client.send("GET", "/v1/audit")
    assert answer.status == 404
    assert "`audit`" in answer.json()["detail"]
    assert await client.engine.list_streams("", "", 10) == []


@with_app(audit="on")
async def test_an_open_server_audits_if_told_to(client: Client) -> None:
    await client.put("a")
    await client.delete("a")
    (event,) = await events(client)
    assert (event["principal"], event["address"]) == ("root", "127.0.0.1")


@with_app(**ACCESS, audit="off")
async def test_off_is_off(client: Client) -> None:
    await as_root(client, "PUT", "/v1/stream/a")
    await as_root(client, "DELETE", "/v1/stream/a")
    assert (await as_root(client, "GET", "/v1/audit")).status == 404


@with_app(**ACCESS, audit_bytes_max=2000, audit_age_s=1000)
async def test_the_stream_is_bounded_by_retention(client: Client) -> None:
    for _ in range(40):
        await as_root(client, "PUT", "/v1/stream/a")
        await as_root(client, "DELETE", "/v1/stream/a")
    await client.app.audit.flush()
    stream = client.engine.find(PATH, touch=False)
    assert decode(stream.meta["retention"])[:2] == (1000, 2000)
    assert stream.tail > 3000
    await client.engine.retention.enforce()
    assert stream.tail - stream.earliest < 2600
    assert 0 < len(await events(client)) < 20


@with_app(**ACCESS, anonymous_allow=("read:**", "delete:**"))
async def test_only_those_who_may_read_it_can_read_it(client: Client) -> None:
    client.app.access.add_bearer({"t": Principal("auditor", parse_rules(["read:__ds/audit"]))}.get)
    await as_root(client, "PUT", "/v1/stream/a")
    await client.delete("a")
    assert (await client.send("GET", "/v1/audit")).status == 401
    for target in ("/v1/stream/__ds/audit", "/v1/state/__ds/audit", "/v1/table/__ds/audit"):
        assert (await as_root(client, "GET", target)).status == 404
        assert (await as_root(client, "DELETE", target)).status in (404, 405)
    (event,) = (await client.send("GET", "/v1/audit", b"", authorization="Bearer t")).json()
    assert (event["principal"], event["status"]) == ("anonymous", 204)
    head = await client.send("HEAD", "/v1/audit", b"", authorization="Bearer t")
    assert head.status == 200
    page = await client.send("GET", f"/v1/audit?offset={head.offset}", b"", **ROOT)
    assert page.json() == []


@with_app(**ACCESS)
async def test_the_events_can_be_followed_live(client: Client) -> None:
    from tests.helpers.app import FakeSink

    response = await client.respond("GET", "/v1/audit?offset=-1&live=sse", b"", **ROOT)
    sink = FakeSink(response)
    sink.body.attach(sink)
    await as_root(client, "PUT", "/v1/stream/a")
    await as_root(client, "DELETE", "/v1/stream/a")
    await sink.until(lambda sink: bool(sink.data))
    assert json.loads(sink.data[-1])[0]["action"] == "stream.delete"


@with_app(**ACCESS)
async def test_a_write_that_fails_is_counted_and_never_fails_the_action(client: Client) -> None:
    await as_root(client, "PUT", "/v1/stream/a")
    await as_root(client, "PUT", "/v1/stream/b")
    await as_root(client, "DELETE", "/v1/stream/a")
    await client.app.audit.flush()
    append = client.engine.append

    def fail(path: str, request: Any) -> Any:
        raise DiskFull("The disk is full.") if path == PATH else append(path, request)

    client.engine.append = fail
    assert (await as_root(client, "DELETE", "/v1/stream/b")).status == 204
    await client.app.audit.flush()
    assert (client.app.audit.written, client.app.audit.lost) == (1, 1)
    metrics = (await as_root(client, "GET", "/metrics")).body
    assert b"penstock_audit_events_lost_total 1.0" in metrics


@with_app(**ACCESS)
async def test_a_stream_that_cannot_be_created_is_tried_again(client: Client) -> None:
    create = client.engine.create
    await as_root(client, "PUT", "/v1/stream/a")
    await as_root(client, "PUT", "/v1/stream/b")

    def fail(path: str, *args: Any, **options: Any) -> Any:
        if path == PATH:
            raise DiskFull("The disk is full.")
        return create(path, *args, **options)

    client.engine.create = fail
    assert (await as_root(client, "DELETE", "/v1/stream/a")).status == 204
    await client.app.audit.flush()
    assert client.app.audit.lost == 1
    client.engine.create = create
    assert (await as_root(client, "DELETE", "/v1/stream/b")).status == 204
    assert [event["path"] for event in await events(client)] == ["b"]


def test_what_waits_for_the_stream_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        log: AuditLog = client.app.audit
        deed = Deed("a", "b", 200, Principal("p", parse_rules([])), "")
        for _ in range(audit.WAITING_MAX + 5):
            log.record(deed)
        await log.flush()
        assert (log.written, log.lost) == (audit.WAITING_MAX, 5)

    run_with_app(test, settings_of("memory", tmp_path, **ACCESS))
    assert "events of the audit log were not written: too many wait" in caplog.text


def test_the_first_event_survives_a_stop_right_after_it(tmp_path: Path) -> None:
    settings = settings_of("disk", tmp_path, **ACCESS)

    async def act() -> None:
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        client = Client(app, engine, ManualClock())
        await as_root(client, "PUT", "/v1/stream/a")
        await as_root(client, "DELETE", "/v1/stream/a")
        await app.stop()

    async def look(client: Client) -> None:
        assert [event["path"] for event in await events(client)] == ["a"]
        await as_root(client, "PUT", "/v1/stream/b")
        await as_root(client, "DELETE", "/v1/stream/b")
        assert [event["path"] for event in await events(client)] == ["a", "b"]

    asyncio.run(act())
    run_with_app(look, settings)


@with_app(**ACCESS)
async def test_a_new_thing_of_the_server_is_named_by_its_location(client: Client) -> None:
    """What `POST /v1/tokens` and others that make something need to say."""
    from penstock.access.rules import Verb
    from penstock.http.endpoint import audited, on_server

    def make(path: str, request: object) -> Response:
        return Response(201, [(b"location", b"http://x/v1/things/t_1?secret=2")], b"{}")

    endpoint: Endpoint = audited("thing.create", on_server(Verb.ADMIN, "things", make))
    client.app._router._fixed[b"/v1/things"] = {"POST": endpoint}
    assert (await as_root(client, "POST", "/v1/things")).status == 201
    (event,) = await events(client)
    assert (event["action"], event["path"]) == ("thing.create", "__ds/things/t_1")


def test_an_unexpected_error_is_no_event_and_stays_an_error(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        def broken(path: str) -> Any:
            raise ZeroDivisionError

        await as_root(client, "PUT", "/v1/stream/a")
        client.engine.delete = broken
        assert (await as_root(client, "DELETE", "/v1/stream/a")).status == 500
        assert await events(client) == []

    run_with_app(test, settings_of("memory", tmp_path, **ACCESS))


def test_the_command_prints_lines_and_json(tmp_path: Path) -> None:
    token = {"PENSTOCK_TOKEN": "root"}
    with running_server(memory=True, env=token) as server, Cli(server.url, tmp_path) as cli:
        cli.run("create", "a/b", env=token)
        cli.run("rm", "a/b", env=token)
        line = cli.run("audit", env=token).stdout
        assert line.count("\n") == 1
        assert line.rstrip().endswith("root  127.0.0.1  stream.delete  a/b  204")
        event = json.loads(cli.run("audit", "--json", env=token).stdout)
        assert (event["action"], event["path"]) == ("stream.delete", "a/b")
        assert cli.run("audit", "--offset", "end", env=token).stdout == ""
