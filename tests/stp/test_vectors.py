"""The published test vectors against our functions and, where they are about one, our server."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest

from penstock import Client
from penstock.errors import (
    InvalidContentType,
    InvalidNotify,
    InvalidParameter,
    InvalidRow,
    UnsupportedType,
)
from penstock.stp import (
    Row,
    RowDecoder,
    Table,
    fold,
    format_row,
    parse_changes,
    parse_row,
    parse_since_id,
)
from penstock.stp.content_type import accepts, parse_content_type
from penstock.stp.deduplication import Deduplicator
from penstock.stp.notify import FORM, check_form_type, parse_form
from penstock.stp.vectors import FILES
from tests.helpers.server import Server, running_server

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "src" / "penstock" / "stp" / "vectors"
_numbers = itertools.count()


def cases(file: str, *fields: str) -> pytest.MarkDecorator:
    """Every case of a file, or those that have one of the fields, as parameters of a test."""
    found = json.loads((FOLDER / file).read_text())["cases"]
    names = [case["name"] for case in found]
    assert len(set(names)) == len(names)
    selected = [case for case in found if not fields or any(field in case for field in fields)]
    return pytest.mark.parametrize("case", selected, ids=[case["name"] for case in selected])


def test_every_file_is_run_and_described() -> None:
    described = (ROOT / "docs" / "stp-vectors" / "README.md").read_text()
    run = Path(__file__).read_text()
    files = sorted(path.name for path in FOLDER.glob("*.json"))
    assert [name.removesuffix(".json") for name in files] == list(FILES)
    for name in files:
        assert f"`{name}`" in described
        assert f'cases("{name}"' in run


@cases("parse.json")
def test_parse(case: Any) -> None:
    line = bytes.fromhex(case["line_hex"]) if "line_hex" in case else case["line"].encode()
    escape = case.get("escape", False)
    if "error" in case:
        with pytest.raises(InvalidRow) as caught:
            parse_row(line, escape=escape)
        assert caught.value.field == case["error"]
    else:
        assert parse_row(line, escape=escape) == Row(**case["row"])


@cases("format.json")
def test_format(case: Any) -> None:
    row, escape = Row(**case["row"]), case.get("escape", False)
    if "error" in case:
        with pytest.raises(InvalidRow) as caught:
            format_row(row, escape=escape)
        assert caught.value.field == case["error"]
    else:
        assert format_row(row, escape=escape).decode() == case["line"]
        assert parse_row(case["line"], escape=escape) == row


@cases("answers.json")
def test_answers(case: Any) -> None:
    decoder, deduplicator = RowDecoder(), Deduplicator()
    seqnos: list[int] = []
    for piece in case["pieces"]:
        new, conflicts = deduplicator.accept(decoder.feed(piece.encode()))
        assert conflicts == []
        seqnos += [row.seqno for row in new]
    assert (seqnos, decoder.end().decode()) == (case["seqnos"], case["dropped"])
    assert deduplicator.position == case["since_id"]


@cases("since_id.json")
def test_since_id_as_a_function(case: Any) -> None:
    given = [value for name, value in _query(case) if name == "since_id"]
    if len(given) > 1:
        return  # what a repeated parameter is, only a server can say
    text = given[0] if given else None
    if "status" in case:
        with pytest.raises(InvalidParameter):
            parse_since_id(text)
        return
    number, table = parse_since_id(text), case["table"]
    seqnos = table[number:] if number < 0 else [seqno for seqno in table if seqno > number]
    assert seqnos == case["seqnos"]


@cases("content_type.json", "content_type")
def test_content_type(case: Any) -> None:
    if not case.get("rows", True):
        with pytest.raises(InvalidContentType):
            parse_content_type(case["content_type"])
        return
    found = parse_content_type(case["content_type"])
    assert (found.schema, found.version) == (case["schema"], case["version"])
    assert found.escape == case.get("escape", False)


@cases("content_type.json", "accept")
def test_accept_as_a_function(case: Any) -> None:
    assert accepts(case["accept"], "s", 2) == (case["status"] == 200)


@cases("notify.json")
def test_notify_as_a_function(case: Any) -> None:
    from penstock.protocol.outbound import parse_url

    content_type = case.get("content_type", FORM)
    if case["status"] == 415:
        with pytest.raises(UnsupportedType):
            check_form_type(content_type)
        return
    check_form_type(content_type)
    if case["status"] == 400:
        with pytest.raises(InvalidNotify):
            parse_form(case["body"].encode(), parse_url, urls_max=16)
        return
    notice = parse_form(case["body"].encode(), parse_url, urls_max=16)
    assert (notice.surl.url if notice.surl else None) == case["surl"]
    assert {back.event: back.nurl.url for back in notice.callbacks} == case["callbacks"]


@cases("fold.json")
def test_fold(case: Any) -> None:
    state = fold(parse_row(line) for line in case["lines"])
    assert {key: row.record for key, row in state.items()} == case["state"]


@cases("duplicates.json")
@pytest.mark.parametrize("together", [True, False], ids=["one answer", "an answer each"])
def test_duplicates(case: Any, together: bool) -> None:
    deduplicator = Deduplicator()
    rows = [parse_row(line) for line in case["lines"]]
    batches = [rows] if together else [[row] for row in rows]
    seqnos: list[int] = []
    reported: list[int] = []
    for batch in batches:
        new, conflicts = deduplicator.accept(batch)
        seqnos += [row.seqno for row in new]
        reported += [conflict.row.seqno for conflict in conflicts]
    assert (seqnos, reported) == (case["kept"], case["reported"])


@cases("changes.json")
def test_changes(case: Any) -> None:
    lines = case["lines"].encode()
    if "error" in case:
        with pytest.raises(InvalidRow) as caught:
            parse_changes(lines)
        assert caught.value.index == case["error"]
    else:
        found = [[change.action, change.key, change.record] for change in parse_changes(lines)]
        assert found == case["changes"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def table(client: Client) -> Table:
    """A table that no other case uses."""
    table = Table(client, f"vectors/{next(_numbers)}")
    table.create("s", version=2)
    return table


@cases("since_id.json")
def test_since_id_of_a_server(case: Any, table: Table) -> None:
    if case["table"]:
        table.write([("+", f"k{seqno}", "v") for seqno in case["table"]])
    query = "&".join(filter(None, [case["query"], "timeout=0"]))
    answer = httpx2.get(f"{table.url}?{query}")
    assert answer.status_code == case.get("status", 200)
    if answer.status_code == 200:
        rows = RowDecoder().feed(answer.content)
        assert [row.seqno for row in rows] == case["seqnos"]
        assert answer.headers["stp-last-seqno"] == str(max(case["table"], default=0))


@cases("content_type.json", "accept")
def test_accept_of_a_server(case: Any, table: Table) -> None:
    request = httpx2.Request("GET", f"{table.url}?timeout=0", headers={"Host": "x"})
    request.headers["Host"] = httpx2.URL(table.url).netloc.decode()
    if case["accept"] is not None:
        request.headers["Accept"] = case["accept"]
    with httpx2.Client() as http:
        answer = http.send(request)
    assert answer.status_code == case["status"]
    if answer.status_code == 200:
        expected = "text/sequence; charset=utf-8; schema=s; version=2"
        assert answer.headers["content-type"] == expected


@cases("fold.json")
def test_fold_of_a_server(case: Any, table: Table) -> None:
    rows = [parse_row(line) for line in case["lines"]]
    unique = sorted({row.seqno: row for row in rows}.values(), key=lambda row: row.seqno)
    table.write(unique)
    state = table.state()
    assert (dict(state), state.last_seqno) == (case["state"], case["since_id"])
    active = httpx2.get(f"{table.url}?view=active&timeout=0").content
    assert {row.key: row.record for row in RowDecoder().feed(active)} == case["state"]


@cases("changes.json")
def test_changes_of_a_server(case: Any, table: Table) -> None:
    answer = httpx2.post(
        table.url,
        content=case["lines"].encode(),
        headers={"Content-Type": "text/tab-separated-values"},
    )
    rows = table.read().rows
    if "error" in case:
        assert (answer.status_code, answer.json()["index"], rows) == (422, case["error"], [])
    else:
        assert answer.status_code == 204
        assert [[row.action, row.key, row.record] for row in rows] == case["changes"]


@cases("notify.json")
def test_notify_of_a_server(case: Any, server: Server) -> None:
    # No peer is trusted here: the form is judged, and nobody is asked or told.
    answer = httpx2.post(
        f"{server.url}/v1/notify/vectors",
        content=case["body"].encode(),
        headers={"Content-Type": case.get("content_type", FORM)},
    )
    assert answer.status_code == case["status"], answer.text


def _query(case: Any) -> list[tuple[str, str]]:
    return parse_qsl(case["query"], keep_blank_values=True)
