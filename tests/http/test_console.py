"""The console as resources: who gets the page, what its headers say, and how it is cached."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from penstock.cli import main
from penstock.http.console.assets import PAGE, TYPES, load_assets
from penstock.http.console.dialect import POLICY, prefers_html
from penstock.http.message import Request
from tests.helpers.app import Answer, Client, with_app

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
FILES = sorted(name for name in load_assets().by_name if name != PAGE)


async def page(client: Client, target: str = "/", **headers: str) -> Answer:
    return await client.send("GET", target, b"", accept=BROWSER, **headers)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("text/html;q=0.5, application/json;q=0.4", True),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("*/*", False),
        ("text/*", False),
        ("application/json", False),
        ("", False),
    ],
)
def test_only_whoever_prefers_html_gets_the_page(accept: str, expected: bool) -> None:
    assert prefers_html(Request("GET", b"/", headers={b"accept": accept.encode()})) is expected


@with_app()
async def test_the_root_is_the_console_for_browsers_and_the_index_for_others(
    client: Client,
) -> None:
    shown = await page(client)
    assert (shown.status, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")
    index = await client.send("GET", "/")
    assert index.json()["console"] == "/console"
    assert shown.headers["vary"] == index.headers["vary"] == "Accept, Accept-Encoding"
    assert (await client.send("GET", "/console")).body == shown.body
    head = await client.send("HEAD", "/", b"", accept=BROWSER)
    assert (head.status, head.headers["etag"]) == (200, shown.headers["etag"])


@with_app()
async def test_the_page_allows_nothing_but_its_own_files(client: Client) -> None:
    for target in ("/", "/console", "/console/", f"/console/{FILES[0]}"):
        headers = (await page(client, target)).headers
        assert headers["content-security-policy"] == POLICY.decode()
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
    body = (await page(client)).body.decode()
    assert not re.search(r"<style|style=|<script>|\son\w+=", body)
    assert not re.search(r"https?://|//", body.replace("</", ""))


@with_app()
async def test_every_file_that_the_page_names_is_there(client: Client) -> None:
    for target, base in (("/", "/"), ("/console", "/"), ("/console/", "/console/")):
        body = (await page(client, target)).body.decode()
        names = re.findall(r'(?:src|href)="([^"#]+\.(?:js|css|svg))"', body)
        assert len(names) == 4
        for name in names:
            assert (await client.send("GET", base + name)).status == 200
        assert re.search(r'name="penstock-root" content="(\.{1,2}/)"', body)


@with_app()
async def test_every_module_imports_files_that_are_there(client: Client) -> None:
    for name in FILES:
        text = (await client.send("GET", f"/console/{name}")).body.decode()
        folder = name.rpartition("/")[0]
        for target in re.findall(r'^(?:import|export) (?:[^;]*? from )?"([^"]+)"', text, re.M):
            parts = [part for part in f"{folder}/{target}".split("/") if part not in ("", ".")]
            while ".." in parts:
                at = parts.index("..")
                del parts[at - 1 : at + 1]
            assert "/".join(parts) in FILES, (name, target)


@with_app()
async def test_files_are_cached_for_ever_by_their_digest_and_asked_for_again_otherwise(
    client: Client,
) -> None:
    digest = load_assets().digest
    fixed = await client.send("GET", f"/console/{digest}/app.js")
    assert "immutable" in fixed.headers["cache-control"]
    plain = await client.send("GET", "/console/app.js")
    assert plain.headers["cache-control"] == "no-cache"
    tag = plain.headers["etag"]
    again = await client.send("GET", "/console/app.js", b"", if_none_match=tag)
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    # The page of a server that was upgraded before this one.
    other = await client.send("GET", f"/console/{digest[::-1]}/app.js")
    assert (other.status, other.headers["cache-control"]) == (200, "no-cache")
    assert (await client.send("GET", "/", b"", accept=BROWSER, if_none_match=tag)).status == 200
    shown = (await page(client)).headers["etag"]
    assert (await page(client, if_none_match=shown)).status == 304


@with_app()
async def test_files_are_compressed_for_whoever_takes_it(client: Client) -> None:
    plain = await client.send("GET", "/console/console.css")
    packed = await client.send("GET", "/console/console.css", b"", accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["etag"] == "W/" + plain.headers["etag"]
    assert len(packed.body) < len(plain.body) / 2
    assert (
        packed.body
        == (await client.send("GET", "/console/console.css", b"", accept_encoding="gzip")).body
    )


@with_app()
async def test_nothing_but_its_files_is_served(client: Client) -> None:
    for name in ("index.html", "nothing.js", "lib", "lib/", "..%2Fapp.py", "lib/../app.js", "%00"):
        assert (await client.send("GET", f"/console/{name}")).status in (400, 404), name


@with_app(auth_token="root")
async def test_the_page_is_for_everybody_and_holds_no_data(client: Client) -> None:
    assert (await page(client)).status == 200
    assert (await page(client, authorization="Bearer wrong")).status == 200
    assert (await client.send("GET", "/console/app.js")).status == 200


@with_app(console=False)
async def test_the_console_can_be_switched_off(client: Client) -> None:
    assert (await page(client)).json()["name"] == "penstock"
    assert (await page(client, "/console")).status == 404
    assert (await page(client, "/console/app.js")).status == 404
    assert "/console" not in client.app.openapi.document()["paths"]


def test_every_kind_of_file_has_a_type() -> None:
    assert {name[name.rindex(".") :] for name in (PAGE, *FILES)} <= set(TYPES)


@pytest.mark.parametrize(
    "text",
    sorted(
        {
            command.strip()
            for name, file in load_assets().by_name.items()
            if name.endswith(".js")
            for text in re.findall(r"[\"`](penstock [^\"`]+)", file.body.decode())
            for command in text.split("&&")
        }
    ),
)
def test_the_commands_that_the_pages_advise_exist(text: str) -> None:
    words = shlex.split(re.sub(r"\$\{[^}]+\}", "NAME", text).replace("'{\\", "1"))[1:]
    words = [__file__ if word == "FILE" else word for word in words]
    command: click.Command | None = main
    # A command keeps the help option of its first context: without the names that `main` gives
    # it, the page of the commands would lose its `-h` in every later test of this process.
    context = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        _, command, words = command.resolve_command(context, words)
    assert command is not None
    if words and words != ["--help"]:
        command.make_context("", words, context)  # raises an error for words it does not take
