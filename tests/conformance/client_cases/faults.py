"""Faults of the server and of the network, injected by the reference server."""

from __future__ import annotations

from typing import Any

from tests.conformance.client_suite import JSON, TEXT, Stage, check, scenario


def _read_despite(stage: Stage, content_type: str | None = None, **fault: Any) -> None:
    path = stage.create(content_type)
    stage.append(path, "here")
    stage.inject(path, **fault)
    check(stage.read(path), data="here", upToDate=True)


def _append_despite(stage: Stage, **fault: Any) -> None:
    path = stage.create()
    stage.inject(path, **fault)
    stage.append(path, "stored")
    check(stage.read(path), data="stored")


@scenario
def a_read_is_repeated_after_500(stage: Stage) -> None:
    _read_despite(stage, status=500)


@scenario
def a_read_is_repeated_after_503(stage: Stage) -> None:
    _read_despite(stage, status=503)


@scenario
def a_read_is_repeated_when_the_server_asks_for_it(stage: Stage) -> None:
    _read_despite(stage, status=429, retryAfter=1)


@scenario
def a_read_is_repeated_more_than_once(stage: Stage) -> None:
    _read_despite(stage, status=502, count=3)


@scenario
def a_slow_answer_is_waited_for(stage: Stage) -> None:
    _read_despite(stage, delayMs=300, jitterMs=100)


@scenario
def a_slow_failure_is_repeated(stage: Stage) -> None:
    _read_despite(stage, delayMs=100, status=503)


@scenario
def a_read_is_repeated_after_a_dropped_connection(stage: Stage) -> None:
    _read_despite(stage, dropConnection=True)


@scenario
def a_read_is_repeated_after_several_dropped_connections(stage: Stage) -> None:
    _read_despite(stage, dropConnection=True, count=2)


@scenario
def live_reads_go_on_after_faults(stage: Stage) -> None:
    for live in ("long-poll", "sse", True):
        path = stage.create(TEXT)
        stage.append(path, "here")
        for fault in ({"status": 503}, {"dropConnection": True}):
            stage.inject(path, count=2, **fault)
            result = stage.read(path, live=live, waitForUpToDate=True, timeoutMs=10_000)
            check(result, data="here", upToDate=True)


@scenario
def an_append_is_repeated_after_500(stage: Stage) -> None:
    _append_despite(stage, status=500)


@scenario
def an_append_is_repeated_after_503(stage: Stage) -> None:
    _append_despite(stage, status=503, method="POST")


@scenario
def an_append_is_repeated_after_a_dropped_connection(stage: Stage) -> None:
    _append_despite(stage, dropConnection=True)


@scenario
def a_fault_of_one_method_leaves_the_others_alone(stage: Stage) -> None:
    path = stage.create()
    stage.inject(path, status=400, method="POST")
    check(stage.read(path), data="")
    check(stage.ask("append", path, data="x"), error="UNEXPECTED_STATUS", status=400)
    stage.append(path, "y")
    check(stage.read(path), data="y")


@scenario
def producers_repeat_after_faults(stage: Stage) -> None:
    for fault in ({"status": 500}, {"status": 503}, {"dropConnection": True}):
        path = stage.create(TEXT)
        stage.inject(path, count=2, method="POST", **fault)
        check(stage.produce(path, "once", "p"), status=200)
        stage.inject(path, count=2, method="POST", **fault)
        check(stage.produce_many(path, ["a", "b", "c"], "q", maxInFlight=3), status=200)
        stage.inject(path, method="POST", **fault)
        check(stage.produce_close(path, "p", data="!"), status=200)
        check(stage.read(path), data="onceabc!", streamClosed=True)


@scenario
def what_is_wrong_is_not_repeated(stage: Stage) -> None:
    path = stage.create()
    stage.append(path, "x")
    for status in (400, 401, 403, 404, 410, 413):
        stage.inject(path, status=status)
        code = "NOT_FOUND" if status == 404 else "UNEXPECTED_STATUS"
        check(stage.read(path), error=code, status=status, message=[str(status), path])
        check(stage.read(path), data="x")


@scenario
def other_operations_are_repeated_as_well(stage: Stage) -> None:
    path = stage.create(TEXT)
    for kind in ("head", "connect", "create", "close", "delete"):
        stage.inject(path, status=503)
        fields = {"contentType": TEXT} if kind == "create" else {}
        check(stage.ask(kind, path, **fields))


@scenario
def broken_json_is_a_parse_error(stage: Stage) -> None:
    path = stage.create(JSON)
    stage.append(path, '{"key": "a value"}')
    stage.inject(path, corruptBody=True)
    check(stage.read(path), error="PARSE_ERROR")
    stage.inject(path, truncateBodyBytes=5)
    check(stage.read(path), error="PARSE_ERROR")
    check(stage.read(path), data='[{"key":"a value"}]')


def _inject_event(stage: Stage, path: str, kind: str, data: str, *, count: int = 1) -> None:
    stage.inject(path, count=count, injectSseEvent={"eventType": kind, "data": data})


@scenario
def unknown_events_are_ignored(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "known")
    for kind in ("later-version", "message", "Control", "retry"):
        _inject_event(stage, path, kind, '{"what": "is this"}')
        check(stage.read(path, live="sse", maxChunks=1), data="known")


@scenario
def broken_control_events_are_a_parse_error(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = stage.append(path, "x")
    for data in ("{not json", "", "[]", '{"upToDate": true}', "null"):
        _inject_event(stage, path, "control", data)
        check(stage.read(path, live="sse", maxChunks=1), error="PARSE_ERROR")
    # The same at the end, for clients that ask for what is there first.
    _inject_event(stage, path, "control", "{not json", count=2)
    check(stage.read(path, offset=end, live="sse", maxChunks=1), error="PARSE_ERROR")
    path = stage.create(TEXT)
    stage.append(path, "y")
    check(stage.read(path, live="sse", maxChunks=1), data="y")


@scenario
def broken_json_events_are_a_parse_error(stage: Stage) -> None:
    path = stage.create(JSON)
    stage.append(path, "1")
    _inject_event(stage, path, "data", "[1, 2")
    check(stage.read(path, live="sse", maxChunks=1), error="PARSE_ERROR")
    check(stage.read(path, live="sse", maxChunks=1), data="[1]")
