"""The pages about the API and its errors: complete, readable by browsers and programs, and without
links that lead nowhere."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

import pytest

from penstock.error_guide import GUIDE, every_error, is_sent
from tests.helpers.app import Answer, Client, with_app

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """A page: its text, its links and the ids in it. Raises for tags that do not match."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(answer.body.decode())
        assert self._open == []
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "style", "img", "iframe")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name == "href" and value is not None:
                self.links.append(value)
            if name == "id" and value is not None:
                self.ids.append(value)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


async def visit(client: Client, target: str) -> Page:
    answer = await client.send("GET", target, accept=BROWSER)
    assert answer.status == 200, target
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    return Page(answer)


@with_app()
async def test_every_code_has_a_page_for_browsers_and_a_document_for_programs(
    client: Client,
) -> None:
    for code, error in every_error().items():
        page = await visit(client, f"/problems/{code}")
        for text in (error.title, *GUIDE[code]):
            assert text.replace("`", "") in page.text, code
        if is_sent(error):
            assert f"Status {error.status}" in page.text
        answer = await client.send("GET", f"/problems/{code}")
        assert answer.json()["code"] == code
        assert answer.json()["remedy"] == GUIDE[code].remedy
        assert "Accept" in answer.headers["vary"]


@with_app()
async def test_the_type_of_a_problem_leads_to_its_page(client: Client) -> None:
    problem = (await client.get("nosuch")).json()
    page = await visit(client, problem["type"])
    assert problem["title"] in page.text


@with_app()
async def test_an_unknown_code_is_not_found(client: Client) -> None:
    for code in ("nosuch", "%3Cscript%3E", "stream-closed/x"):
        answer = await client.send("GET", f"/problems/{code}", accept=BROWSER)
        assert (answer.status, answer.json()["code"]) == (404, "route-not-found")


@with_app()
async def test_the_list_of_errors_has_all_of_them(client: Client) -> None:
    listing = (await client.send("GET", "/problems")).json()["problems"]
    assert {entry["code"] for entry in listing} == set(GUIDE)
    page = await visit(client, "/problems")
    assert set(GUIDE) <= {link.rpartition("/")[2] for link in page.links}


@with_app()
async def test_the_reference_has_every_operation_and_schema(client: Client) -> None:
    document = client.app.openapi.document()
    page = await visit(client, "/docs/api")
    assert len(page.ids) == len(set(page.ids))
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "head" and "get" in methods:
                continue
            assert operation["operationId"] in page.ids
            assert f"{method.upper()} {path}" in page.text
            for parameter in operation.get("parameters", ()):
                assert parameter["name"] in page.text
    for name in document["components"]["schemas"]:
        assert f"schema-{name}" in page.ids


@with_app()
async def test_every_link_leads_somewhere(client: Client) -> None:
    pages: dict[str, Page] = {}
    waiting = ["/docs"]
    targets: set[str] = set()
    while waiting:
        at = waiting.pop()
        pages[at] = await visit(client, at)
        for link in pages[at].links:
            if link.startswith("data:"):
                continue
            target, _ = urldefrag(urljoin(at, link))
            targets.add(urljoin(at, link))
            is_page = target == "/docs" or target.startswith(("/docs/api", "/problems"))
            if is_page and target not in pages and target not in waiting:
                waiting.append(target)
    for each in targets:
        target, anchor = urldefrag(each)
        if anchor:
            assert anchor in pages[target].ids, each
        elif target not in pages:
            assert (await client.send("GET", target)).status == 200, each
    assert len(pages) > len(GUIDE)


@with_app()
async def test_pages_have_tags_and_are_compressed(client: Client) -> None:
    answer = await client.send("GET", "/docs/api", accept_encoding="gzip")
    assert answer.headers["content-encoding"] == "gzip"
    same = await client.send("GET", "/docs/api", if_none_match=answer.headers["etag"])
    assert (same.status, same.body) == (304, b"")


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & `c < d`", "a &lt; b &amp; <code>c &lt; d</code>"),
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
    ],
)
def test_text_is_never_markup(text: str, html: str) -> None:
    from penstock.http.docs.page import prose

    assert prose(text) == html
