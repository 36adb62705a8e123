"""Client certificates as principals: `tls_principals`, with a real server and real handshakes."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from penstock.access.authenticator import Access, parse_certificate
from penstock.access.rules import Verb
from penstock.config.load import load
from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from tests.helpers.certs import Authority
from tests.helpers.server import Server, running_server

TEXT = {"content-type": "text/plain"}
RULES = "worker=append:jobs/** create:jobs/**,reader.example=read:jobs/**"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("worker=read:a", "worker"),
        (" worker = read:a  append:b ", "worker"),
        ("spiffe://prod/ns=1/x=read:a", "spiffe://prod/ns=1/x"),
        ("a@b.example=read:a", "a@b.example"),
    ],
)
def test_a_text_is_a_name_and_rules(text: str, name: str) -> None:
    parsed, principal = parse_certificate(text)
    assert (parsed, principal.name, principal.id) == (name, name, f"certificate:{name}")
    assert principal.may(Verb.READ, "a")


@pytest.mark.parametrize("text", ["worker", "=read:a", "worker=", "worker=reed:a", "worker=read"])
def test_another_text_stops_the_start(text: str) -> None:
    with pytest.raises(InvalidSetting, match="tls_principals"):
        parse_certificate(text)


def test_it_needs_an_authority() -> None:
    with pytest.raises(InvalidSetting, match="tls_client_ca"):
        load({"tls_principals": "worker=read:a"}, {})


def test_the_first_name_with_rules_counts() -> None:
    access = Access(Settings(tls_principals=("a=read:a", "b=read:b")))
    assert not access.is_open
    first = access.certificate(("x", "b", "a"))
    assert first is not None
    assert first.name == "b"
    assert access.certificate(("x",)) is None
    assert access.certificate(()) is None


def ask(server: Server, authority: Authority, cert: Path | None) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, verify=authority.client(cert), headers=TEXT)


def test_a_certificate_may_do_what_its_rules_say(tmp_path: Path) -> None:
    authority, others = Authority(tmp_path), Authority(tmp_path, "others")
    worker = authority.issue("worker", "worker.example", common_name="worker")
    reader = authority.issue("reader", "reader.example", common_name="nobody")
    stranger = authority.issue("stranger", "stranger.example", common_name="stranger")
    forged = others.issue("forged", "worker.example", common_name="worker")
    args = [
        *("--tls-cert", str(authority.issue("server"))),
        *("--tls-client-ca", str(authority.file)),
        *("--tls-principals", RULES),
        *("--token", "root"),
    ]
    path = "/v1/stream/jobs/1"
    with running_server(memory=True, args=args) as server:
        with ask(server, authority, worker) as client:
            assert client.put(path).status_code == 201
            for _ in range(3):  # the same head again, on the same connection
                assert client.post(path, content=b"x").status_code == 204
            assert client.get(path).status_code == 403
            assert client.get("/v1/stream/other").status_code == 404
        with ask(server, authority, reader) as client:
            assert client.get(path).content == b"xxx"
            # A head that another connection has sent does not carry its certificate over.
            assert client.post(path, content=b"x").status_code == 403
        with ask(server, authority, stranger) as client:
            assert client.get(path).status_code == 401
            root = {"authorization": "Bearer root"}
            assert client.get(path, headers=root).status_code == 200
        with ask(server, authority, None) as client:
            assert client.get(path).status_code == 401
        with ask(server, authority, forged) as client, pytest.raises(httpx2.TransportError):
            client.get(path)
