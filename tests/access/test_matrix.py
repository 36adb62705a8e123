"""Every route × every kind of principal: what the guard decides before a handler runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from penstock.access.principal import ROOT, Principal
from penstock.access.rules import Verb, parse_rules
from penstock.clock import SYSTEM_CLOCK
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.http.message import Request
from penstock.log import open_engine

PATH = "team/a"
PUBLIC = "public"
AUTHENTICATED = "authenticated"
LIVE = {"/v1/streams/live"}  # has no HEAD: its response has no end

# What each operation needs: a verb on the path, on a resource of the server, or somewhere (`…`).
NEEDS = {
    "/": {"GET": PUBLIC},
    "/healthz": {"GET": PUBLIC},
    "/readyz": {"GET": PUBLIC},
    "/openapi.json": {"GET": PUBLIC},
    "/docs": {"GET": PUBLIC},
    "/docs/api": {"GET": PUBLIC},
    "/docs/style.css": {"GET": PUBLIC},
    "/problems": {"GET": PUBLIC},
    "/problems/{code}": {"GET": PUBLIC},
    "/console": {"GET": PUBLIC},
    "/console/": {"GET": PUBLIC},
    "/console/{path}": {"GET": PUBLIC},
    "/metrics": {"GET": "read:__ds/metrics"},
    "/v1/activity": {"GET": "read:__ds/metrics"},
    "/v1/cluster": {"GET": "read:__ds/metrics"},
    "/v1/audit": {"GET": "read:__ds/audit"},
    "/v1/backup": {
        "GET": "admin:__ds/backup",
        "POST": "admin:__ds/backup",
        "DELETE": "admin:__ds/backup",
    },
    "/v1/scrub": {"GET": "admin:__ds/scrub", "POST": "admin:__ds/scrub"},
    "/v1/tokens": {"GET": "admin:__ds/tokens", "POST": "admin:__ds/tokens"},
    "/v1/tokens/{path}": {"DELETE": "admin:__ds/tokens"},
    "/v1/links/rotate": {"POST": "admin:__ds/links"},
    # Whoever has credentials; nobody signs more than they may do.
    "/v1/link": {"POST": AUTHENTICATED},
    "/v1/session": {"GET": AUTHENTICATED, "POST": AUTHENTICATED, "DELETE": PUBLIC},
    "/v1/streams": {"GET": "list:…"},
    "/v1/streams/live": {"GET": "read:…"},
    "/v1/stream/{path}": {
        "GET": "read",
        "POST": "append",
        "PUT": "create",
        "DELETE": "delete",
    },
    "/v1/stream/{path}/__ds/trim": {"POST": "delete"},
    "/v1/stream/{path}/__ds/compact": {"POST": "admin"},
    "/v1/stream/{path}/__ds/retention": {"GET": "read", "PUT": "admin", "DELETE": "admin"},
    "/v1/stream/{path}/__ds/successor": {"GET": "read", "PUT": "admin", "DELETE": "admin"},
    "/v1/stream/{path}/__ds/producers": {"GET": "read"},
    "/v1/stream/{path}/__ds/forks": {"GET": "read"},
    "/v1/schema": {"GET": "list:…"},
    "/v1/schema/{path}": {"GET": "read", "PUT": "admin", "DELETE": "admin"},
    "/v1/state/{path}": {"GET": "read"},
    "/v1/table/{path}": {
        "GET": "read",
        "POST": "append",
        "PUT": "create",
        "DELETE": "append",
    },
    "/v1/table/{path}?key=k": {"PUT": "append"},
    "/v1/notify/{path}": {"POST": "follow"},
    "/v1/proxy/{path}": {"GET": "read", "POST": "append", "DELETE": "append"},
    "/v1/follow/{path}": {"GET": "follow", "PUT": "follow", "DELETE": "follow"},
    "/v1/follow": {"GET": "follow:…"},
    "/v1/nurls": {
        "GET": "read:__ds/nurls",
        "POST": "admin:__ds/nurls",
        "DELETE": "admin:__ds/nurls",
    },
    "/v1/pipelines": {"GET": "read:__ds/pipelines"},
    "/v1/pipelines/{name}": {"GET": "read:__ds/pipelines"},
    "/v1/pipelines/{name}/dead-letters": {"GET": "read:__ds/pipelines"},
    "/v1/pipelines/{name}/replay": {"POST": "admin:__ds/pipelines"},
    "/v1/pipelines/{name}/sql": {"POST": "admin:__ds/pipelines"},
    "/v1/stream/__ds/jwks.json": {"GET": PUBLIC},
    "/v1/stream/__ds/rotate-key": {"POST": "admin:__ds/keys"},
    "/v1/stream/__ds/subscriptions": {"GET": "subscribe:…"},
    "/v1/stream/__ds/subscriptions/{id}": {
        "GET": "subscribe:…",
        "PUT": "subscribe:…",
        "DELETE": "subscribe:…",
    },
    "/v1/stream/__ds/subscriptions/{id}/streams": {"POST": "subscribe:…"},
    "/v1/stream/__ds/subscriptions/{id}/streams/{path}": {"DELETE": "subscribe:…"},
    "/v1/stream/__ds/subscriptions/{id}/claim": {"POST": "subscribe:…"},
    # Workers have tokens of their own.
    "/v1/stream/__ds/subscriptions/{id}/ack": {"POST": PUBLIC},
    "/v1/stream/__ds/subscriptions/{id}/callback": {"POST": PUBLIC},
    "/v1/stream/__ds/subscriptions/{id}/release": {"POST": PUBLIC},
}


class Operation(NamedTuple):
    method: str
    template: str
    need: str

    def request(self, token: str | None) -> Request:
        target = self.template.replace("{path}", PATH)
        target = re.sub(r"\{(id|name|code)\}", "x", target)
        path, _, query = target.partition("?")
        headers = {b"host": b"localhost"}
        if token is not None:
            headers[b"authorization"] = b"Bearer " + token.encode()
        return Request(self.method, path.encode(), query.encode(), headers)


OPERATIONS = [
    Operation(method, template, need)
    for template, needs in NEEDS.items()
    for name, need in needs.items()
    for method in (("GET", "HEAD") if name == "GET" and template not in LIVE else (name,))
]


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    """An App whose bearer tokens are rules, separated by semicolons."""
    loop = asyncio.new_event_loop()
    settings = Settings(memory=True, audit="off")
    engine = open_engine(settings)

    async def start() -> App:
        await engine.start()
        return App(engine, settings, clock=SYSTEM_CLOCK)

    def principal(token: str) -> Principal | None:
        if token == "root":
            return ROOT
        return Principal("somebody", parse_rules(token.split(";"))) if ":" in token else None

    app = loop.run_until_complete(start())
    app.access.require()
    app.access.add_bearer(principal)
    yield app
    loop.run_until_complete(app.stop())
    loop.close()


def status(app: App, operation: Operation, token: str | None) -> int | None:
    response = app.refuse(operation.request(token))
    return None if response is None else response.status


def test_every_route_has_a_need(app: App) -> None:
    served = {
        (template, method) for template, methods in app.templates().items() for method in methods
    }
    described = {
        (operation.template.partition("?")[0], operation.method) for operation in OPERATIONS
    }
    assert described == served


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.method} {each.template}")
def test_who_is_let_in(app: App, operation: Operation) -> None:
    verb, _, place = operation.need.partition(":")
    if operation.need == PUBLIC:
        for token in (None, "unknown", "root", "read:other"):
            assert status(app, operation, token) is None, token
        return
    if operation.need == AUTHENTICATED:
        for token, expected in ((None, 401), ("unknown", 401), ("root", None), ("read:o", None)):
            assert status(app, operation, token) == expected, token
        return
    others = ";".join(f"{each}:{place or PATH}" for each in Verb if each != verb)
    assert status(app, operation, "root") is None
    assert status(app, operation, None) == 401
    assert status(app, operation, "unknown") == 401
    if operation.template.startswith("/v1/notify/"):
        # A Notify may come with a token of peers as well, and is refused in its own words.
        assert status(app, operation, f"{verb}:{PATH}") is None
        assert status(app, operation, f"{verb}:other") == 401
    elif place == "…":
        others = ";".join(f"{each}:**" for each in Verb if each != verb)
        assert status(app, operation, f"{verb}:anything") is None
        assert status(app, operation, others) == 403
    elif place:
        assert status(app, operation, operation.need) is None
        assert status(app, operation, others) == 403
        assert status(app, operation, "*:**") == 403
    else:
        assert status(app, operation, f"{verb}:{PATH}") is None
        assert status(app, operation, "*:team/**") is None
        assert status(app, operation, others) == 403
        unseen = 403 if verb == Verb.CREATE else 404
        assert status(app, operation, f"*:other/**;{verb}:team") == unseen
        assert status(app, operation, f"{verb}:{PATH}/**/below/*") == unseen


def test_a_route_that_is_not_there_tells_nobody(app: App) -> None:
    for target in ("/nothing", "/v1/stream/a/__ds/nothing"):
        operation = Operation("GET", target, "")
        assert status(app, operation, None) == 401
        assert status(app, operation, "unknown") == 401
        assert status(app, operation, "read:a") == 404
    assert status(app, Operation("PATCH", "/v1/stream/a", ""), None) == 401
    assert status(app, Operation("PATCH", "/v1/stream/a", ""), "read:a") == 405


def test_a_refusal_names_the_verb_and_the_path(app: App) -> None:
    operation = Operation("POST", "/v1/stream/{path}", "append")
    response = app.refuse(operation.request(f"read:{PATH}"))
    assert response is not None
    assert isinstance(response.body, bytes)
    assert b'"verb":"append"' in response.body
    assert b'"path":"team/a"' in response.body
    assert b"may not append 'team/a'" in response.body
