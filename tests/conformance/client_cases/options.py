"""Dynamic values, checks of options, benchmarks, and the protocol of lines itself."""

from __future__ import annotations

from typing import Any

from tests.conformance.client_suite import JSON, OCTETS, TEXT, Stage, check, new_path, scenario


def _set(stage: Stage, kind: str, name: str, value_type: str, **fields: Any) -> None:
    check(stage.ask(f"set-dynamic-{kind}", name=name, valueType=value_type, **fields))


@scenario
def counters_rise_with_each_command(stage: Stage) -> None:
    path = stage.create(TEXT)
    _set(stage, "header", "X-Counter", "counter")
    _set(stage, "param", "tick", "counter")
    try:
        for count in ("1", "2"):
            result = stage.ask("append", path, data="x")
            check(result, headersSent={"X-Counter": count}, paramsSent={"tick": count})
        check(stage.read(path), headersSent={"X-Counter": "3"}, paramsSent={"tick": "3"}, data="xx")
        result = stage.read(path, live="sse", waitForUpToDate=True)
        check(result, headersSent={"X-Counter": "4"}, data="xx")
    finally:
        check(stage.ask("clear-dynamic"))
    check(stage.ask("append", path, data="x"), headersSent=None, paramsSent=None)


@scenario
def timestamps_and_tokens_are_sent(stage: Stage) -> None:
    path = stage.create(TEXT)
    _set(stage, "header", "Authorization", "token", initialValue="Bearer abc")
    _set(stage, "header", "X-Time", "timestamp")
    _set(stage, "param", "time", "timestamp")
    try:
        result = check(stage.ask("append", path, data="x"))
        assert result["headersSent"]["Authorization"] == "Bearer abc"
        assert result["headersSent"]["X-Time"].isdigit()
        assert result["paramsSent"]["time"].isdigit()
        _set(stage, "header", "Authorization", "token", initialValue="Bearer new")
        assert stage.read(path)["headersSent"]["Authorization"] == "Bearer new"
    finally:
        check(stage.ask("clear-dynamic"))


def _validate(stage: Stage, target: str, **fields: Any) -> dict[str, Any]:
    return stage.ask("validate", target={"target": target, **fields})


@scenario
def sensible_options_are_accepted(stage: Stage) -> None:
    check(
        _validate(
            stage,
            "retry-options",
            maxRetries=3,
            initialDelayMs=100,
            maxDelayMs=5000,
            multiplier=2.0,
        )
    )
    check(_validate(stage, "retry-options", maxRetries=0))
    check(_validate(stage, "retry-options", multiplier=1.0))
    check(
        _validate(
            stage, "idempotent-producer", producerId="p", epoch=0, maxBatchBytes=1, maxBatchItems=1
        )
    )


@scenario
def senseless_options_are_refused_by_name(stage: Stage) -> None:
    refused: list[tuple[str, str, dict[str, Any]]] = [
        ("retry-options", "maxRetries", {"maxRetries": -1}),
        ("retry-options", "initialDelayMs", {"initialDelayMs": 0}),
        ("retry-options", "initialDelayMs", {"initialDelayMs": -100}),
        ("retry-options", "maxDelayMs", {"initialDelayMs": 1000, "maxDelayMs": 500}),
        ("retry-options", "multiplier", {"multiplier": 0.5}),
        ("idempotent-producer", "epoch", {"epoch": -1}),
        ("idempotent-producer", "maxBatchBytes", {"maxBatchBytes": 0}),
        ("idempotent-producer", "maxBatchBytes", {"maxBatchBytes": -1}),
        ("idempotent-producer", "maxBatchItems", {"maxBatchItems": 0}),
        ("idempotent-producer", "maxBatchItems", {"maxBatchItems": -1}),
        ("idempotent-producer", "id", {"producerId": ""}),
    ]
    for target, name, fields in refused:
        result = _validate(stage, target, **fields)
        check(result, error="INVALID_ARGUMENT", commandType="validate")
        assert name in result["message"], result


@scenario
def every_benchmark_reports_its_time(stage: Stage) -> None:
    text, json = stage.create(TEXT), stage.create(JSON)
    stage.append(text, "0123456789")
    stage.append(json, "1")
    stage.append(json, "2")
    operations: list[tuple[dict[str, Any], dict[str, int]]] = [
        ({"op": "append", "path": json, "size": 100}, {"bytesTransferred": 100}),
        ({"op": "read", "path": text}, {"bytesTransferred": 10}),
        ({"op": "create", "path": new_path(), "contentType": TEXT}, {}),
        ({"op": "throughput_read", "path": json, "expectedCount": 3}, {"messagesProcessed": 3}),
    ]
    for content_type in (OCTETS, JSON):
        path = stage.create(content_type)
        operation = {"op": "throughput_append", "path": path, "count": 50, "size": 20}
        wanted = {"messagesProcessed": 50, "bytesTransferred": 1000}
        operations += [({**operation, "concurrency": 5}, wanted)] * 2
    for live, content_type in (("long-poll", OCTETS), ("sse", TEXT), ("sse", OCTETS)):
        operation = {"op": "roundtrip", "path": new_path(), "size": 64, "live": live}
        operations.append(({**operation, "contentType": content_type}, {"bytesTransferred": 128}))
    for operation, metrics in operations:
        result = stage.ask("benchmark", iterationId="i1", operation=operation)
        check(result, iterationId="i1")
        assert int(result["durationNs"]) > 0
        assert {name: result["metrics"][name] for name in metrics} == metrics, result
    path = stage.create(TEXT)
    operation = {"op": "unheard of", "path": path}
    result = stage.ask("benchmark", iterationId="i2", operation=operation)
    check(result, error="NOT_SUPPORTED", commandType="benchmark")


@scenario
def what_is_not_known_is_said(stage: Stage) -> None:
    check(stage.ask("unheard-of"), error="NOT_SUPPORTED", commandType="unheard-of")
    check(_validate(stage, "unheard-of"), error="NOT_SUPPORTED", commandType="validate")
    check(stage.ask("read"), error="INTERNAL_ERROR", commandType="read")  # without a path
