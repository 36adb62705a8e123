"""What the STP client makes of any server's answers: cut, repeated, contradicting, failing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

import pytest

from penstock import Client, MemoryCheckpoint
from penstock.errors import Gone, PenstockError, ProtocolError, StreamRecreated
from penstock.stp.client.reading import Source, read
from penstock.stp.rows import Row, RowsBefore
from tests.client.driver import Connect, connecting
from tests.stp.clients import QUICK, notifier_of, table_of
from tests.stp.naive import NaiveTable, naive_server
from tests.stp.scripted import TIME, Script, Scripted, line, scripted_server


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    with connecting(request.param) as connect:
        yield _client(connect)


def _client(connect: Connect) -> Any:
    return connect("http://127.0.0.1:9", retry=QUICK)


@contextmanager
def following(
    client: Any, *answers: Scripted, since_id: int = 0, **options: Any
) -> Iterator[tuple[Any, Script]]:
    """The rows of a server that answers so, polled without delay."""
    with (
        scripted_server(*answers) as (url, script),
        table_of(client, url).follow(since_id, poll_s=0.01, **options) as rows,
    ):
        yield rows, script


def numbers(rows: Any) -> list[int]:
    return [row.seqno for row in rows]


def test_read_gives_the_rows_and_what_they_are(client: Any) -> None:
    body = line(1, key="a", record="x y\tz") + line(2, "-", "a", "")
    with scripted_server(Scripted(body)) as (url, script):
        result = table_of(client, url).read()
    assert [(row.seqno, row.timestamp, row.action, row.key, row.record) for row in result] == [
        (1, TIME, "+", "a", "x y\tz"),
        (2, TIME, "-", "a", ""),
    ]
    assert (result.last_seqno, result.schema, result.version) == (2, "test", 1)
    assert (len(result), result.truncated, result.conflicts) == (2, False, [])
    assert script.asked[0]["since_id"] == "0"
    assert script.headers[0]["accept"].startswith("text/sequence; charset=utf-8")


def test_what_a_surl_has_in_its_query_is_kept(client: Any) -> None:
    with scripted_server(Scripted(line(5))) as (url, script):
        table_of(client, url + "?tenant=1").read(4)
    assert (script.asked[0]["tenant"], script.asked[0]["since_id"]) == ("1", "4")


def test_a_broken_answer_goes_on_after_the_last_whole_row(client: Any) -> None:
    cut = Scripted(line(1) + line(2) + line(3)[:9], promised=100)
    with scripted_server(cut, Scripted(line(3) + line(4))) as (url, script):
        assert numbers(table_of(client, url).read()) == [1, 2, 3, 4]
    assert script.since == [0, 2]


def test_an_unterminated_last_line_is_dropped_and_asked_for_again(client: Any) -> None:
    # The answer is whole for HTTP; only the missing line end says that the row is not.
    cut = Scripted(line(1) + line(2, record="hidden")[:-4])
    with scripted_server(cut, Scripted(line(2, record="hidden"))) as (url, script):
        result = table_of(client, url).read()
    assert [row.record for row in result] == ["v", "hidden"]
    assert script.since == [0, 1]


def test_a_last_line_that_never_ends_is_left_out_and_said(client: Any) -> None:
    endless = Scripted(line(2)[:-1])
    with scripted_server(Scripted(line(1) + line(2)[:-1]), endless) as (url, _):
        result = table_of(client, url).read()
    assert (numbers(result), result.truncated, result.last_seqno) == ([1], True, 1)


def test_a_tail_that_breaks_goes_on_from_the_rows_it_has(client: Any) -> None:
    cut = Scripted(line(7) + line(8)[:3], promised=50)
    with scripted_server(cut, Scripted(line(8) + line(9))) as (url, script):
        assert numbers(table_of(client, url).tail(3)) == [7, 8, 9]
    assert script.since == [-3, 7]


def test_read_ends_where_the_server_says_the_table_ends(client: Any) -> None:
    # The connection stays open for a minute, as that of a server that streams would.
    held = Scripted(line(1) + line(2), headers={"STP-Last-SeqNo": "2"}, promised=1000)
    with scripted_server(held) as (url, script):
        assert numbers(table_of(client, url).read()) == [1, 2]
        assert numbers(table_of(client, url).read(2)) == []
    assert script.since == [0, 2]


def test_state_is_folded_also_when_the_server_knows_no_view(client: Any) -> None:
    body = line(1, key="a", record="1") + line(2, key="b", record="2") + line(3, "-", "a", "")
    body += line(4, key="b", record="3")
    with scripted_server(Scripted(body)) as (url, script):
        state = table_of(client, url).state()
    assert state == {"b": "3"}
    assert (state.last_seqno, state.rows["b"].seqno) == (4, 4)
    assert script.asked[0]["view"] == "active"


def test_state_that_breaks_is_completed_from_the_log(client: Any) -> None:
    view = Scripted(line(3, key="a", record="1"), headers={"STP-Last-SeqNo": "9"}, promised=10)
    rest = Scripted(line(8, key="b", record="2") + line(9, "-", "a", ""))
    with scripted_server(view, rest) as (url, script):
        state = table_of(client, url).state()
    assert (dict(state), state.last_seqno) == ({"b": "2"}, 9)
    assert "view" not in script.asked[1]
    assert script.since == [0, 3]


def test_follow_hands_over_each_row_once(client: Any) -> None:
    again = Scripted(line(1) + line(2) + line(3))  # it ignores since_id
    with following(client, Scripted(line(1)), again) as (rows, script):
        assert numbers(islice(rows, 3)) == [1, 2, 3]
        assert (rows.last_seqno, rows.conflicts) == (3, 0)
    assert script.since[:2] == [0, 1]


def test_follow_polls_a_server_that_answers_once(client: Any) -> None:
    answers = [Scripted(line(1)), Scripted(), Scripted(), Scripted(line(2))]
    with following(client, *answers) as (rows, script):
        assert numbers(islice(rows, 2)) == [1, 2]
    assert script.since[:4] == [0, 1, 1, 1]


def test_polling_sends_the_etag_and_understands_304(client: Any) -> None:
    answers = [
        Scripted(line(1)),
        Scripted(headers={"ETag": '"one"'}),
        Scripted(status=304, content_type=None),
        Scripted(line(2)),
    ]
    with following(client, *answers) as (rows, script):
        assert numbers(islice(rows, 2)) == [1, 2]
    assert [asked.get("if-none-match") for asked in script.headers[:4]] == [
        None,
        None,
        '"one"',
        '"one"',
    ]


def test_follow_survives_cut_lines_failures_and_broken_answers(client: Any) -> None:
    answers = [
        Scripted(line(1) + line(2)[:5]),
        Scripted(status=503, content_type="text/plain"),
        Scripted(line(2)[:20], promised=9),
        Scripted(b"no row at all\n"),
        Scripted(line(2) + line(3)),
    ]
    with following(client, *answers) as (rows, script):
        assert numbers(islice(rows, 3)) == [1, 2, 3]
    assert script.since[:5] == [0, 1, 1, 1, 1]


def test_follow_from_a_tail_goes_on_with_positive_numbers(client: Any) -> None:
    with following(client, Scripted(line(8) + line(9)), Scripted(line(10)), since_id=-2) as (
        rows,
        script,
    ):
        assert numbers(islice(rows, 3)) == [8, 9, 10]
    assert script.since[:2] == [-2, 9]


def test_following_the_tail_of_an_empty_table_misses_nothing(client: Any) -> None:
    with following(client, Scripted(), Scripted(line(1) + line(2) + line(3)), since_id=-1) as (
        rows,
        script,
    ):
        assert numbers(islice(rows, 3)) == [1, 2, 3]
    assert script.since[:2] == [-1, 0]


@pytest.mark.parametrize(
    ("again", "kind"),
    [
        (line(2, record="other"), "repeated"),
        (line(2, key="other"), "repeated"),
        (line(2, "-", "k", ""), "repeated"),
        (line(3), "out-of-order"),
    ],
)
def test_a_row_that_contradicts_an_earlier_one_is_reported_and_left_out(
    client: Any, again: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = line(1) + line(2) + line(4) + again + line(5)
    with scripted_server(Scripted(body)) as (url, _), caplog.at_level(logging.WARNING):
        result = table_of(client, url).read()
    assert numbers(result) == [1, 2, 4, 5]
    assert [row.record for row in result] == ["v"] * 4
    assert [conflict.kind for conflict in result.conflicts] == [kind]
    assert f"SeqNo {result.conflicts[0].row.seqno}" in caplog.text


def test_a_duplicate_with_another_timestamp_is_no_contradiction(client: Any) -> None:
    later = line(1).replace("2026", "2027")
    with scripted_server(Scripted(line(1) + later)) as (url, _):
        result = table_of(client, url, on_conflict="raise").read()
    assert (numbers(result), result.rows[0].timestamp) == ([1], TIME)


def test_conflicts_can_be_raised_or_handed_to_a_function(client: Any) -> None:
    seen: list[Any] = []
    with scripted_server(Scripted(line(1) + line(1, record="other"))) as (url, _):
        with pytest.raises(ProtocolError, match="SeqNo 1"):
            table_of(client, url, on_conflict="raise").read()
        table_of(client, url, on_conflict=seen.append).read()
    assert [conflict.row.record for conflict in seen] == ["other"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Scripted(b"<html>", content_type="text/html"), "text/html"),
        (Scripted(content_type="text/sequence; charset=latin-1; schema=s; version=1"), "latin-1"),
        (Scripted(content_type="text/sequence; charset=utf-8; schema=x; version=1"), "schema"),
        (Scripted(content_type="text/sequence; charset=utf-8; schema=test; version=2"), "version"),
        (Scripted(b"1\tnow\t*\tk\tv\n"), "invalid row"),
        (Scripted(b"one\tnow\t+\tk\tv\n"), "invalid row"),
        (Scripted(b"1\t2026-01-08T00:00:00Z\t+\tk\t\xff\n"), "UTF-8"),
    ],
)
def test_what_is_no_table_of_the_wanted_kind_is_an_error(
    client: Any, answer: Scripted, words: str
) -> None:
    with scripted_server(answer) as (url, _), pytest.raises(PenstockError, match=words):
        table_of(client, url, schema="test", version=1).read()


def test_a_line_that_is_not_a_row_can_be_replaced_or_skipped() -> None:
    lines: list[bytes] = []

    def on_invalid(error: RowsBefore) -> Row | None:
        lines.append(error.line)
        return Row(2, TIME, "+", "b", "repaired") if error.line.startswith(b"2") else None

    body = line(1) + "2\tbroken\n" + "broken\n" + line(4)
    with (
        scripted_server(Scripted(body)) as (url, _),
        Client("http://127.0.0.1:9", retry=QUICK) as client,
    ):
        source = Source(url=url, retry=QUICK, on_invalid=on_invalid)
        result = client.run(read(source, 0, None))
    assert [(row.seqno, row.record) for row in result][1] == (2, "repaired")
    assert (numbers(result), result.last_seqno) == ([1, 2, 4], 4)
    assert lines == [b"2\tbroken", b"broken"]


def test_the_media_type_is_compared_without_regard_to_case_and_quotes(client: Any) -> None:
    content_type = 'Text/Sequence;Charset="UTF-8" ; schema="test";version=1'
    with scripted_server(Scripted(line(1), content_type=content_type)) as (url, _):
        assert numbers(table_of(client, url, schema="test", version=1).read()) == [1]


def test_trimmed_history_is_raised_or_read_again_from_the_start(client: Any) -> None:
    gone = Scripted(b"trimmed", status=410, content_type="text/plain")
    with scripted_server(gone, gone, Scripted(line(50))) as (url, script):
        with pytest.raises(Gone), table_of(client, url).follow(3) as rows:
            next(iter(rows))
        with table_of(client, url).follow(3, on_reset="restart") as rows:
            assert next(iter(rows)).seqno == 50
    assert script.since == [3, 3, 0]


def test_a_table_that_ends_before_what_was_read_was_made_anew(client: Any) -> None:
    fresh = Scripted(headers={"STP-Last-SeqNo": "2"})
    answers = [Scripted(line(9)), fresh, Scripted(line(1) + line(2))]
    with (
        following(client, *answers) as (rows, _),
        pytest.raises(StreamRecreated, match="ends at SeqNo 2"),
    ):
        list(islice(rows, 2))
    with following(client, *answers, on_reset="restart") as (rows, _):
        assert numbers(islice(rows, 3)) == [9, 1, 2]


def test_a_checkpoint_is_saved_once_the_rows_have_been_used(client: Any) -> None:
    checkpoint = MemoryCheckpoint()
    answers = [Scripted(line(1) + line(2)), Scripted(line(3)), Scripted(line(4))]
    with scripted_server(*answers) as (url, script):
        with table_of(client, url).follow(checkpoint=checkpoint, poll_s=0.01) as rows:
            assert numbers(islice(rows, 2)) == [1, 2]
            assert checkpoint.load(url) is None  # the second row may still be worked on
            assert next(iter(rows)).seqno == 3
            assert checkpoint.load(url) == "2"
        with table_of(client, url).follow(checkpoint=checkpoint, poll_s=0.01) as rows:
            assert next(iter(rows)).seqno == 4
    assert script.since == [0, 2, 2]


def test_follow_ends_after_silence_if_asked_to(client: Any) -> None:
    with following(client, Scripted(line(1)), Scripted(), idle_timeout_s=0.05) as (rows, _):
        assert numbers(rows) == [1]


def test_the_client_notifies_as_a_form(client: Any) -> None:
    class Listener(NaiveTable):
        notified: ClassVar[list[dict[str, list[str]]]] = []

    with naive_server(Listener) as nurl:
        notify = notifier_of(client).notify
        notify(nurl, surl="https://a.example/t?x=1&y=ä", callbacks={"match": "https://b.example/n"})
        notify(nurl, callbacks={"manifest_nurl": "https://b.example/m"})
    assert Listener.notified == [
        {"surl": ["https://a.example/t?x=1&y=ä"], "match": ["https://b.example/n"]},
        {"manifest_nurl": ["https://b.example/m"]},
    ]


@pytest.mark.parametrize(
    ("surl", "callbacks"),
    [
        (None, {}),
        ("ftp://a.example/t", {}),
        ("not a url", {}),
        ("https://a.example/t", {"surl": "https://b.example/n"}),
        (None, {"Match": "https://b.example/n"}),
        (None, {"1st": "https://b.example/n"}),
        (None, {"match": "b.example/n"}),
    ],
)
def test_a_notify_that_no_server_could_take_is_not_sent(
    client: Any, surl: str | None, callbacks: dict[str, str]
) -> None:
    with pytest.raises(ValueError):
        notifier_of(client).notify("http://127.0.0.1:9/n", surl=surl, callbacks=callbacks)
