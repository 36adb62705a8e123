"""What pages of other origins can do to a server on this machine, in a real Chromium.

Each attack is made twice: against a server as shipped, where it must fail, and against one that
allows every page, where it must work, so that it is known to be an attack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.browser.chromium import running_site
from tests.helpers.server import Server, running_server

pytestmark = pytest.mark.xdist_group("browser")  # one worker, one Chromium

TIMEOUT_MS = 10_000
STREAMS = {
    "text": ("text/plain", "secret"),
    "json": ("application/json", '["secret"]'),
    "script": ("text/javascript", "window.leaked = 'secret';"),
}
EVENTS = """
    const source = new EventSource(server + "/v1/stream/json?offset=-1&live=sse&sse=message");
    return await new Promise(done => {
        source.onmessage = event => { source.close(); done(event.data); };
        source.onerror = () => { source.close(); done(null); };
    });
"""
FORM = """
    const frame = document.createElement("iframe");
    frame.name = "answer";
    document.body.append(frame);
    const form = document.body.appendChild(document.createElement("form"));
    Object.assign(form, {method: "POST", enctype: "text/plain", target: "answer"});
    const field = form.appendChild(document.createElement("input"));
    [form.action, field.name, field.value] = [server + path, name, value];
    form.submit();  // the response may be no page: the test waits for it
    return null;
"""
# The body of an async function of `server`; it returns what the page has learnt, else null.
ATTACKS = {
    "fetch": 'return await (await fetch(server + "/v1/stream/text")).text();',
    "fetch without CORS": """
        return (await fetch(server + "/v1/stream/text", {mode: "no-cors"})).type;
    """,
    "script": """
        const script = document.createElement("script");
        script.src = server + "/v1/stream/script";
        await new Promise(done => {
            script.onload = script.onerror = done;
            document.body.append(script);
        });
        return window.leaked ?? null;
    """,
    "EventSource": EVENTS,
    "append": """
        const options = {method: "POST", mode: "no-cors", body: "evil"};
        await fetch(server + "/v1/stream/text", options);  // a string is text/plain
        return null;
    """,
    "rotate the key": """
        await fetch(server + "/v1/stream/__ds/rotate-key", {method: "POST", mode: "no-cors"});
        return null;
    """,
    "append by form": 'const [path, name, value] = ["/v1/stream/text", "evil", ""];' + FORM,
    "create": """
        const headers = {"Content-Type": "text/plain"};
        await fetch(server + "/v1/stream/evil", {method: "PUT", headers});
        return null;
    """,
    "delete": 'await fetch(server + "/v1/stream/text", {method: "DELETE"}); return null;',
}
TRIM = """
    const [path, name, value] = ["/v1/stream/json/__ds/trim", '{"before": "now", "x": "', '"}'];
"""


class Site(NamedTuple):
    """Where the attacking page is."""

    name: str
    host: str


SITES = [Site("another-port", "127.0.0.1"), Site("another-site", "evil.example")]


class Web:
    """A browser and the site of the attacker, with one tab for each of its names."""

    def __init__(self, browser: Browser, port: int) -> None:
        self.browser = browser
        self.port = port
        self._tabs: dict[str, Page] = {}

    def origin(self, host: str) -> str:
        return f"http://{host}:{self.port}"

    @contextmanager
    def page(self, url: str) -> Iterator[Page]:
        with self.browser.new_context() as context:
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(url)
            yield page

    def attack(self, server: Server, host: str, body: str) -> tuple[object, list[int]]:
        """Return what a page on `host` learns, and the statuses of the server's responses."""
        statuses: list[int] = []
        page = self._new_document(host)
        listener = lambda each: statuses.append(each.status)  # noqa: E731 - removed by its name
        page.on("response", listener)
        function = f"""async server => {{
            const attack = async () => {{ try {{ {body} }} catch {{ return null; }} }};
            const timeout = done => setTimeout(done, {TIMEOUT_MS}, "it took too long");
            return await Promise.race([attack(), new Promise(timeout)]);
        }}"""
        try:
            if not body.endswith(FORM):
                return page.evaluate(function, server.url), statuses
            with page.expect_response(lambda each: each.request.method == "POST"):
                return page.evaluate(function, server.url), statuses
        finally:
            page.remove_listener("response", listener)

    def _new_document(self, host: str) -> Page:
        """A blank page of the attacker, in the tab that it has had before."""
        if host not in self._tabs:
            self._tabs[host] = self.browser.new_context().new_page()
            self._tabs[host].set_default_timeout(TIMEOUT_MS)
        self._tabs[host].goto(self.origin(host))
        return self._tabs[host]

    def close(self) -> None:
        for page in self._tabs.values():
            page.context.close()


@pytest.fixture(scope="module")
def web(browser: Browser) -> Iterator[Web]:
    with running_site() as port, closing(Web(browser, port)) as web:
        yield web


@pytest.fixture(scope="module")
def shipped() -> Iterator[Server]:
    """A server with the settings that it has without any."""
    with running_server(memory=True) as server:
        fill(server)
        yield server


@pytest.fixture(scope="module")
def allowing() -> Iterator[Server]:
    """A server that allows every page; its streams are those that the tests before have left."""
    with running_server(memory=True, args=["--cors-origin", "*"]) as server:
        yield server


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, verify=False)  # no TLS: saves loading certificates


def fill(server: Server) -> None:
    """Give the streams their first contents."""
    with client_of(server) as client:
        for name, (content_type, body) in STREAMS.items():
            url = f"/v1/stream/{name}"
            client.delete(url)
            headers = {"content-type": content_type}
            client.put(url, content=body, headers=headers).raise_for_status()


def contents(server: Server) -> dict[str, str]:
    """All that a page could change."""
    paths = ["/v1/streams", "/v1/stream/__ds/jwks.json"]
    paths += [f"/v1/stream/{name}" for name in STREAMS]
    with client_of(server) as client:
        return {path: client.get(path).text for path in paths}


def refusals(server: Server) -> float:
    """How many requests of pages the server has refused."""
    with client_of(server) as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if 'code="origin-refused"' in line)


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
@pytest.mark.parametrize("name", ATTACKS)
def test_server_as_shipped_gives_pages_of_other_origins_nothing(
    web: Web, shipped: Server, name: str, site: Site
) -> None:
    before, refused = contents(shipped), refusals(shipped)
    learnt, _ = web.attack(shipped, site.host, ATTACKS[name])
    assert learnt is None
    assert contents(shipped) == before
    # After its preflight the browser does not even send the request.
    assert refusals(shipped) - refused == (0 if name in ("create", "delete") else 1)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_works_where_every_page_is_allowed(
    web: Web, allowing: Server, name: str
) -> None:
    fill(allowing)
    before = contents(allowing)
    learnt, _ = web.attack(allowing, "evil.example", ATTACKS[name])
    assert learnt is not None or contents(allowing) != before


def test_form_trims_nothing_even_where_every_page_is_allowed(web: Web, allowing: Server) -> None:
    fill(allowing)
    before = contents(allowing)
    _, statuses = web.attack(allowing, "evil.example", TRIM + FORM)
    assert 415 in statuses
    assert contents(allowing) == before


@pytest.mark.parametrize("site", SITES, ids=lambda site: site.name)
def test_frame_of_another_origin_is_refused_and_a_link_is_followed(
    web: Web, shipped: Server, site: Site
) -> None:
    url = f"{shipped.url}/v1/stream/text"
    with web.page(web.origin(site.host)) as page:
        with page.expect_response(url) as framed:
            page.evaluate(
                """url => {
                    document.body.append(document.createElement("iframe"));
                    document.querySelector("iframe").src = url;
                }""",
                url,
            )
        assert framed.value.status == 403
        page.evaluate(
            """url => {
                document.body.innerHTML = "<a>a link</a>";
                document.querySelector("a").href = url;
            }""",
            url,
        )
        with page.expect_navigation():
            page.click("a")
        assert (page.url, page.inner_text("body")) == (url, "secret")


def test_name_that_is_rebound_to_loopback_is_refused(web: Web, shipped: Server) -> None:
    before = contents(shipped)
    for host, status in (("rebound.example", 421), ("localhost", 200), ("a.localhost", 200)):
        # For the browser the page has the origin of the server: nothing else holds it back.
        with web.page(f"http://{host}:{shipped.port}/v1/streams") as page:
            answer = page.evaluate(
                """async () => {
                    const answer = await fetch("/v1/stream/text");
                    return [answer.status, await answer.text()];
                }"""
            )
            assert answer[0] == status
            assert (answer[1] == "secret") is (status == 200)
            if status == 421:
                deleted = page.evaluate(
                    """async () =>
                        (await fetch("/v1/stream/text", {method: "DELETE"})).status"""
                )
                assert deleted == 421
    assert contents(shipped) == before


def test_pages_of_the_servers_own_origin_write(web: Web) -> None:
    with running_server(memory=True) as server, web.page(f"{server.url}/v1/streams") as page:
        statuses = page.evaluate(
            """async () => {
                const options = {headers: {"Content-Type": "text/plain"}, body: "own"};
                const created = await fetch("/v1/stream/own", {method: "PUT", ...options});
                const appended = await fetch("/v1/stream/own", {method: "POST", ...options});
                return [created.status, appended.status];
            }"""
        )
        assert statuses == [201, 204]
        assert httpx.get(f"{server.url}/v1/stream/own").text == "ownown"


def test_listed_origin_reads_writes_and_follows(web: Web) -> None:
    args = ["--cors-origin", f"{web.origin('app.example')},https://other.example"]
    with running_server(memory=True, args=args) as server:
        fill(server)
        with web.page(web.origin("app.example")) as page:
            read = page.evaluate(
                """async server => {
                    const answer = await fetch(server + "/v1/stream/text");
                    return [await answer.text(), answer.headers.get("Stream-Next-Offset")];
                }""",
                server.url,
            )
            head = httpx.head(f"{server.url}/v1/stream/text")
            assert read == ["secret", head.headers["stream-next-offset"]]
            statuses = page.evaluate(
                """async server => {
                    const url = server + "/v1/stream/new";
                    const headers = {"Content-Type": "text/plain", "Producer-Id": "page",
                                     "Producer-Epoch": "0", "Producer-Seq": "0"};
                    const created = await fetch(url, {method: "PUT", headers});
                    const appended = await fetch(url, {method: "POST", headers, body: "one"});
                    const missing = await fetch(server + "/v1/stream/missing");
                    const deleted = await fetch(url, {method: "DELETE"});
                    return [created.status, appended.status, missing.status, deleted.status];
                }""",
                server.url,
            )
            assert statuses == [201, 200, 404, 204]
        assert "secret" in str(web.attack(server, "app.example", EVENTS)[0])
        for name in ("fetch", "EventSource", "append", "delete", "script"):
            before = contents(server)
            assert web.attack(server, "evil.example", ATTACKS[name])[0] is None
            assert contents(server) == before


@pytest.mark.parametrize("has_credentials", [False, True], ids=["without", "with"])
def test_credentials_need_their_setting(web: Web, has_credentials: bool) -> None:
    args = ["--cors-origin", web.origin("app.example")]
    args += ["--cors-credentials"] if has_credentials else []
    read = """
        const options = {credentials: "include"};
        return await (await fetch(server + "/v1/stream/text", options)).text();
    """
    with running_server(memory=True, args=args) as server:
        fill(server)
        learnt, _ = web.attack(server, "app.example", read)
        assert learnt == ("secret" if has_credentials else None)
