"""Catch-up reads: offsets, order, content, and what is not there."""

from __future__ import annotations

from tests.conformance.client_suite import JSON, TEXT, Stage, check, new_path, scenario, text_of


@scenario
def an_empty_stream_is_up_to_date(stage: Stage) -> None:
    check(stage.read(stage.create()), status=200, chunks=0, upToDate=True, streamClosed=False)


@scenario
def appends_come_back_in_their_order(stage: Stage) -> None:
    path = stage.create()
    words = [f"{number:02};" for number in range(12)]
    for word in words:
        stage.append(path, word)
    check(stage.read(path), data="".join(words), upToDate=True)


@scenario
def minus_one_is_the_start(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "alpha")
    stage.append(path, "beta")
    check(stage.read(path, offset="-1"), data="alphabeta")


@scenario
def every_offset_is_a_place_to_resume(stage: Stage) -> None:
    path = stage.create(TEXT)
    offsets = [stage.append(path, letter) for letter in "abc"]
    assert offsets == sorted(offsets)
    check(stage.read(path, offset=offsets[0]), data="bc")
    check(stage.read(path, offset=offsets[1]), data="c")
    check(stage.read(path, offset=offsets[2]), chunks=0, upToDate=True, offset=offsets[2])


@scenario
def the_offset_of_a_read_resumes_after_it(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "one")
    end = check(stage.read(path), data="one")["offset"]
    stage.append(path, "two")
    check(stage.read(path, offset=end), data="two")
    check(stage.read(path, offset=end), data="two")  # as often as one likes


@scenario
def the_offset_of_head_resumes_after_it(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "early")
    end = check(stage.ask("head", path), status=200)["offset"]
    stage.append(path, "late")
    check(stage.read(path, offset=end), data="late")


@scenario
def now_skips_what_is_there(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "history")
    tail = check(stage.read(path))["offset"]
    now = check(stage.read(path, offset="now"), chunks=0, upToDate=True)["offset"]
    assert now == tail
    stage.append(path, "news")
    check(stage.read(path, offset=now), data="news")


@scenario
def now_on_an_empty_stream_is_its_start(stage: Stage) -> None:
    path = stage.create(TEXT)
    now = check(stage.read(path, offset="now"), chunks=0, upToDate=True)["offset"]
    stage.append(path, "first")
    check(stage.read(path, offset=now), data="first")


@scenario
def bytes_are_neither_lost_nor_doubled(stage: Stage) -> None:
    path = stage.create(TEXT)
    middle = stage.append(path, "x" * 1000)
    stage.append(path, "y" * 1000)
    whole = text_of(stage.read(path))
    assert whole == "x" * 1000 + text_of(stage.read(path, offset=middle))


@scenario
def large_data_is_read_whole(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "0123456789" * 20_000)
    check(stage.read(path), data="0123456789" * 20_000, upToDate=True)


@scenario
def unicode_comes_back_as_it_went(stage: Stage) -> None:
    path = stage.create("text/plain; charset=utf-8")
    text = "Grüße, 東京 🚰 \u0085 \u2028 \u2029 \u00a0"
    stage.append(path, text)
    check(stage.read(path), data=text)


@scenario
def json_messages_are_one_compact_array(stage: Stage) -> None:
    path = stage.create(JSON)
    stage.append(path, '{"n": 1}')
    stage.append(path, "[2, 3]")
    check(stage.read(path), data='[{"n":1},[2,3]]', upToDate=True)


@scenario
def an_empty_json_stream_has_no_chunk(stage: Stage) -> None:
    check(stage.read(stage.create(JSON)), chunks=0, upToDate=True)


@scenario
def a_missing_stream_is_not_found(stage: Stage) -> None:
    path = new_path()
    wanted = ["not found", "404", path]
    check(stage.read(path), error="NOT_FOUND", status=404, commandType="read", message=wanted)
    for kind in ("head", "delete", "connect", "close"):
        check(stage.ask(kind, path), error="NOT_FOUND", status=404, message=["not found", path])
    result = stage.ask("append", path, data="x")
    check(result, error="NOT_FOUND", status=404, commandType="append", message=["not found", path])
    check(stage.produce(path, "x"), error="NOT_FOUND", status=404)
    check(stage.produce_many(path, ["x"]), error="NOT_FOUND", status=404)
    check(stage.produce_close(path), error="NOT_FOUND", status=404)


@scenario
def a_missing_stream_is_not_found_in_any_mode(stage: Stage) -> None:
    for live in (None, "long-poll", "sse", True):
        for offset in (None, "now"):
            result = stage.read(new_path(), offset=offset, live=live, timeoutMs=1000)
            check(result, error="NOT_FOUND", status=404)


@scenario
def a_deleted_stream_is_not_found(stage: Stage) -> None:
    path = stage.create()
    stage.append(path, "gone soon")
    check(stage.ask("delete", path), status=200)
    check(stage.read(path), error="NOT_FOUND", status=404)
    check(stage.ask("append", path, data="x"), error="NOT_FOUND", status=404)
    check(stage.ask("delete", path), error="NOT_FOUND", status=404)


@scenario
def a_senseless_offset_is_refused(stage: Stage) -> None:
    path = stage.create()
    stage.append(path, "x")
    for live in (None, "long-poll", "sse"):
        result = stage.read(path, offset="no such place", live=live, timeoutMs=500)
        check(result, error="INVALID_OFFSET", status=400)
