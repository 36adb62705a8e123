"""Creating, appending, closing and deleting."""

from __future__ import annotations

from tests.conformance.client_suite import JSON, OCTETS, TEXT, Stage, check, new_path, scenario


@scenario
def creating_twice_is_the_same_as_once(stage: Stage) -> None:
    path = stage.create(TEXT)
    check(stage.ask("create", path, contentType=TEXT), status=200)


@scenario
def creating_something_else_in_its_place_is_a_conflict(stage: Stage) -> None:
    path = stage.create(TEXT)
    result = stage.ask("create", path, contentType=JSON)
    check(result, error="CONFLICT", status=409, commandType="create", message=["exists", path])


@scenario
def the_content_type_defaults_to_bytes(stage: Stage) -> None:
    path = stage.create()
    check(stage.ask("head", path), status=200, contentType=OCTETS, streamClosed=False)


@scenario
def metadata_is_told(stage: Stage) -> None:
    for content_type in (TEXT, JSON, OCTETS, "application/x-ndjson", "image/png"):
        path = stage.create(content_type)
        assert check(stage.ask("head", path), contentType=content_type)["offset"]


@scenario
def expiry_is_told(stage: Stage) -> None:
    path = stage.create(TEXT, ttlSeconds=3600)
    assert 3590 <= stage.ask("head", path)["ttlSeconds"] <= 3600
    moment = "2099-01-02T03:04:05Z"
    path = stage.create(TEXT, expiresAt=moment)
    assert stage.ask("head", path)["expiresAt"].startswith("2099-01-02T03:04:05")


@scenario
def headers_of_a_command_are_accepted(stage: Stage) -> None:
    headers = {"X-Request-Id": "4711", "Authorization": "Bearer secret"}
    path = new_path()
    check(stage.ask("create", path, contentType=TEXT, headers=headers), status=201)
    stage.append(path, "x", headers=headers)
    check(stage.read(path, headers=headers), data="x")
    check(stage.read(path, headers=headers, live="sse", waitForUpToDate=True), data="x")
    for kind in ("head", "connect", "delete"):
        check(stage.ask(kind, path, headers=headers), status=200)


@scenario
def connecting_learns_the_content_type(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = stage.append(path, "was here")
    check(stage.ask("connect", path), status=200, offset=end)
    check(stage.read(path), data="was here")


@scenario
def streams_are_independent(stage: Stage) -> None:
    one, two = stage.create(TEXT), stage.create(TEXT)
    stage.append(one, "1")
    stage.append(two, "2")
    check(stage.ask("delete", one), status=200)
    check(stage.read(two), data="2")
    check(stage.read(one), error="NOT_FOUND", status=404)


@scenario
def a_path_can_be_used_again(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "first life")
    check(stage.ask("delete", path), status=200)
    check(stage.ask("create", path, contentType=JSON), status=201)
    stage.append(path, "2")
    check(stage.read(path), data="[2]")


@scenario
def bytes_stay_what_they_are(stage: Stage) -> None:
    for content_type in (OCTETS, "application/x-thing"):
        for data in (b"\x00\x00\x01\x9b\xf5\x8b\x65\x3b", bytes(range(256)), b"\x9b", b"\xff\xfe"):
            path = stage.create(content_type)
            stage.append(path, data)
            check(stage.read(path), data=data.decode("utf-8", "replace"), upToDate=True)


@scenario
def json_is_any_value(stage: Stage) -> None:
    path = stage.create(JSON)
    values = ["42", '"text"', "true", "null", "[1,[2]]", '{"a":{"b":[]}}', "-1.5e-7", '"\\u00e9"']
    for value in values:
        stage.append(path, value)
    found = '[42,"text",true,null,[1,[2]],{"a":{"b":[]}},-1.5e-7,"é"]'
    check(stage.read(path), data=found)


@scenario
def json_with_a_parameter_is_json(stage: Stage) -> None:
    path = stage.create("application/json; charset=utf-8")
    stage.append(path, '{"a": 1}')
    check(stage.read(path), data='[{"a":1}]')


@scenario
def what_only_looks_like_json_is_not(stage: Stage) -> None:
    for content_type in ("text/json", "application/atom+xml", "application/jsonlines"):
        path = stage.create(content_type)
        stage.append(path, '{"a": 1}')
        check(stage.read(path), data='{"a": 1}')


@scenario
def what_is_no_json_is_refused(stage: Stage) -> None:
    path = stage.create(JSON)
    assert stage.ask("append", path, data="{no")["status"] == 400
    assert not stage.produce(path, "{no")["success"]
    check(stage.read(path), chunks=0)


@scenario
def nothing_cannot_be_appended(stage: Stage) -> None:
    for content_type in (TEXT, JSON, OCTETS):
        path = stage.create(content_type)
        check(
            stage.ask("append", path, data="", binary=False), error="UNEXPECTED_STATUS", status=400
        )
        check(stage.read(path), chunks=0, upToDate=True)


@scenario
def sequence_numbers_have_to_rise(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "a", seq=1)
    stage.append(path, "b", seq=2)
    for seq in (2, 1):
        result = stage.ask("append", path, data="no", seq=seq)
        check(result, error="SEQUENCE_CONFLICT", status=409, message=["sequence", path])
    stage.append(path, "c", seq=5)
    check(stage.read(path), data="abc")


@scenario
def another_content_type_is_a_conflict(stage: Stage) -> None:
    path = stage.create(TEXT)
    result = stage.ask("close", path, data="x", contentType=JSON)
    check(result, error="CONFLICT", status=409)


# -- closing


@scenario
def a_stream_is_created_closed(stage: Stage) -> None:
    path = stage.create(TEXT, closed=True, ttlSeconds=60)
    check(stage.ask("head", path), streamClosed=True)
    check(stage.read(path), chunks=0, upToDate=True, streamClosed=True)
    path = stage.create(TEXT, closed=True, data="all there is")
    check(stage.read(path), data="all there is", streamClosed=True)
    path = stage.create(JSON, data='{"a": 1}')
    check(stage.read(path), data='[{"a":1}]', streamClosed=False)


@scenario
def a_stream_is_closed(stage: Stage) -> None:
    for content_type, data in ((TEXT, None), (TEXT, "words"), (JSON, '{"n":1}')):
        path = stage.create(content_type)
        end = stage.append(path, data) if data else stage.ask("head", path)["offset"]
        check(stage.ask("head", path), streamClosed=False, offset=end)
        check(stage.ask("close", path), finalOffset=end)
        check(stage.ask("head", path), status=200, streamClosed=True, offset=end)


@scenario
def a_stream_is_closed_with_a_last_message(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "first,")
    end = check(stage.ask("close", path, data="last"))["finalOffset"]
    check(stage.read(path), data="first,last", upToDate=True, streamClosed=True, offset=end)
    check(stage.ask("head", path), streamClosed=True, offset=end)
    path = stage.create(JSON)
    check(stage.ask("close", path, data="[1]", contentType=JSON))
    check(stage.read(path), data="[[1]]", streamClosed=True)


@scenario
def closing_twice_is_the_same_as_once(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = stage.append(path, "x")
    check(stage.ask("close", path), finalOffset=end)
    check(stage.ask("close", path), finalOffset=end)


@scenario
def a_closed_stream_takes_nothing_in(stage: Stage) -> None:
    path = stage.create(TEXT, closed=True)
    for result in (
        stage.ask("append", path, data="x"),
        stage.ask("close", path, data="x"),
        stage.produce(path, "x"),
        stage.produce_many(path, ["x", "y"]),
        stage.produce_close(path, data="x"),
    ):
        check(result, error="STREAM_CLOSED", status=409, message=["closed"])
    check(stage.read(path), chunks=0, streamClosed=True)


@scenario
def a_closing_is_seen_only_at_the_end(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "x")
    end = check(stage.read(path), upToDate=True, streamClosed=False)["offset"]
    check(stage.ask("close", path))
    check(stage.read(path, offset=end), chunks=0, upToDate=True, streamClosed=True)


@scenario
def a_closed_stream_can_be_deleted(stage: Stage) -> None:
    path = stage.create(TEXT, closed=True)
    check(stage.ask("delete", path), status=200)
    check(stage.ask("head", path), error="NOT_FOUND", status=404)
