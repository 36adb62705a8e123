"""Live reads: long-poll, SSE and the choice between them."""

from __future__ import annotations

from typing import Final

from tests.conformance.client_suite import JSON, OCTETS, TEXT, Stage, check, scenario, text_of

MODES: Final = ("long-poll", "sse", True)
WAIT: Final = {"waitForUpToDate": True, "timeoutMs": 5000}


@scenario
def what_is_there_comes_first(stage: Stage) -> None:
    path = stage.create(TEXT)
    for word in ("one ", "two ", "three"):
        stage.append(path, word)
    for live in MODES:
        check(stage.read(path, live=live, **WAIT), data="one two three", upToDate=True)


@scenario
def an_empty_stream_says_that_it_is_up_to_date(stage: Stage) -> None:
    for content_type in (TEXT, OCTETS, JSON):
        path = stage.create(content_type)
        for live in MODES:
            check(stage.read(path, live=live, **WAIT), chunks=0, upToDate=True)


@scenario
def reading_resumes_at_an_offset(stage: Stage) -> None:
    path = stage.create(TEXT)
    first = stage.append(path, "left out")
    second = stage.append(path, "b")
    stage.append(path, "c")
    for live in MODES:
        check(stage.read(path, offset=first, live=live, **WAIT), data="bc", upToDate=True)
        check(stage.read(path, offset=second, live=live, **WAIT), data="c", upToDate=True)


@scenario
def now_skips_what_is_there(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "history")
    offsets = {
        check(stage.read(path, offset="now", live=live, **WAIT), chunks=0, upToDate=True)["offset"]
        for live in MODES
    }
    assert len(offsets) == 1
    stage.append(path, "news")
    check(stage.read(path, offset=offsets.pop()), data="news")


@scenario
def silence_ends_at_the_timeout(stage: Stage) -> None:
    path = stage.create(TEXT)
    end = stage.append(path, "x")
    for live in MODES:
        result = stage.read(path, offset=end, live=live, timeoutMs=300)
        check(result, chunks=0, upToDate=True, streamClosed=False, offset=end)


@scenario
def data_that_is_there_is_kept_at_the_timeout(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "kept")
    for live in MODES:
        check(stage.read(path, live=live, timeoutMs=300), data="kept", upToDate=True)


@scenario
def a_long_poll_in_vain_is_told(stage: Stage) -> None:
    path = stage.create(TEXT)
    for _ in range(2):  # empty, and with something to skip
        result = stage.read(path, offset="now", live="long-poll", timeoutMs=2000)
        check(result, status=204, chunks=0, upToDate=True)
        end = stage.append(path, "x")
        check(stage.read(path, offset=result["offset"]), data="x", offset=end)


def _receives_news(stage: Stage, live: str | bool) -> None:
    for content_type, news, data in ((TEXT, "after", "after"), (JSON, '{"n": 1}', '[{"n":1}]')):
        path = stage.create(content_type)
        end = stage.append(path, "0")
        finish = stage.start_read(path, offset=end, live=live, maxChunks=1, timeoutMs=10_000)
        new_end = stage.server_append(path, news)
        check(finish(), status=200, data=data, offset=new_end)


@scenario
def a_waiting_long_poll_receives_news(stage: Stage) -> None:
    _receives_news(stage, "long-poll")


@scenario
def a_waiting_sse_read_receives_news(stage: Stage) -> None:
    _receives_news(stage, "sse")


@scenario
def a_waiting_automatic_read_receives_news(stage: Stage) -> None:
    _receives_news(stage, True)


@scenario
def news_come_in_their_order(stage: Stage) -> None:
    for live in ("long-poll", "sse"):
        path = stage.create(TEXT)
        finish = stage.start_read(path, live=live, timeoutMs=500)
        for word in ("A", "B", "C"):
            stage.server_append(path, word)
        check(finish(), data="ABC")


@scenario
def a_reader_does_not_notice_a_new_epoch(stage: Stage) -> None:
    for live in ("long-poll", "sse"):
        path = stage.create(TEXT)
        end = stage.server_append(path, "old epoch", ("p", 0, 0))
        finish = stage.start_read(path, offset=end, live=live, maxChunks=1, timeoutMs=10_000)
        stage.server_append(path, "new epoch", ("p", 1, 0))
        check(finish(), data="new epoch")


@scenario
def chunks_are_counted(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "part one")
    result = stage.read(path, live="long-poll", maxChunks=1, timeoutMs=10_000)
    check(result, chunks=1, data="part one", streamClosed=False)
    check(stage.read(path, offset=result["offset"]), chunks=0, upToDate=True)


@scenario
def json_messages_come_as_arrays(stage: Stage) -> None:
    path = stage.create(JSON)
    stage.append(path, '{"n": 1}')
    stage.append(path, '{"n": 2}')
    for live in MODES:
        check(stage.read(path, live=live, **WAIT), data='[{"n":1},{"n":2}]', upToDate=True)


@scenario
def a_closed_stream_ends_the_read(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "last words")
    end = check(stage.ask("close", path))["finalOffset"]
    for live in MODES:
        result = stage.read(path, live=live, timeoutMs=20_000)
        check(result, data="last words", upToDate=True, streamClosed=True, offset=end)
        result = stage.read(path, offset=end, live=live, timeoutMs=20_000)
        check(result, chunks=0, upToDate=True, streamClosed=True)


@scenario
def closing_ends_a_waiting_read(stage: Stage) -> None:
    for live in ("long-poll", "sse"):
        path = stage.create(TEXT)
        finish = stage.start_read(path, live=live, timeoutMs=20_000)
        stage.server_close(path)
        check(finish(), chunks=0, upToDate=True, streamClosed=True)


@scenario
def last_words_end_a_waiting_read(stage: Stage) -> None:
    for live in ("long-poll", "sse"):
        path = stage.create(TEXT)
        finish = stage.start_read(path, live=live, maxChunks=1, timeoutMs=20_000)
        stage.server_close(path, "bye")
        check(finish(), data="bye", upToDate=True, streamClosed=True)


# -- what only SSE could get wrong


@scenario
def sse_keeps_characters_that_look_like_line_ends(stage: Stage) -> None:
    path = stage.create(TEXT)
    text = "nel\u0085ls\u2028ps\u2029vt\x0bff\x0cend"
    stage.append(path, text)
    check(stage.read(path, live="sse", **WAIT), data=text)


@scenario
def sse_keeps_lines(stage: Stage) -> None:
    path = stage.create(TEXT)
    stage.append(path, "one\ntwo\n\nfour: data: x\n")
    check(stage.read(path, live="sse", **WAIT), data="one\ntwo\n\nfour: data: x\n")


@scenario
def sse_takes_away_one_space_at_most(stage: Stage) -> None:
    # The server adds none, so the first of two is taken for the format's own.
    path = stage.create(TEXT)
    finish = stage.start_read(path, live="sse", maxChunks=1, timeoutMs=10_000)
    stage.server_append(path, "  two spaces")
    check(finish(), data=" two spaces")


@scenario
def sse_decodes_binary_data(stage: Stage) -> None:
    path = stage.create(OCTETS)
    for data in (b"a", b"bc", b"def"):  # two, one and no padding characters
        stage.append(path, data)
    check(stage.read(path, live="sse", **WAIT), data="abcdef", upToDate=True)


@scenario
def sse_decodes_every_byte_value(stage: Stage) -> None:
    path = stage.create("application/x-thing")
    data = bytes(range(256)) * 16
    stage.append(path, data)
    check(stage.read(path, live="sse", **WAIT), data=data.decode("utf-8", "replace"))


@scenario
def sse_decodes_binary_data_after_a_reconnect(stage: Stage) -> None:
    path = stage.create(OCTETS)
    middle = stage.append(path, b"line 1\nline 2\n")
    stage.append(path, b'{"like": "json"}')
    result = stage.read(path, live="sse", maxChunks=1)
    assert text_of(result).startswith("line 1\nline 2\n")
    result = stage.read(path, offset=middle, live="sse", **WAIT)
    check(result, data='{"like": "json"}', upToDate=True)
