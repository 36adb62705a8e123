"""`penstock token` and `penstock link`, and what the commands say to somebody who may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Client
from tests.cli.test_error_messages import said
from tests.helpers.cli import Cli
from tests.helpers.server import running_server

ROOT = "root-token"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(memory=True, env={"PENSTOCK_TOKEN": ROOT}) as server:
        with Client(server.url, token=ROOT) as client:
            client.stream("chat/42").create()
            client.stream("chat/42").append({"n": 1})
            client.stream("secret").create()
        yield server.url


@pytest.fixture
def admin(url: str, tmp_path: Path) -> Iterator[Cli]:
    with Cli(url, tmp_path) as cli:
        cli.env["PENSTOCK_TOKEN"] = ROOT
        yield cli


def created(admin: Cli, *allow: str, options: tuple[str, ...] = ()) -> str:
    rules = [part for rule in allow for part in ("--allow", rule)]
    return admin.ok("token", "create", *rules, *options).rstrip("\n")


def as_guest(admin: Cli, token: str) -> Cli:
    admin.env["PENSTOCK_TOKEN"] = token
    return admin


def test_create_list_and_revoke(admin: Cli) -> None:
    rules = ("--allow", "read:chat/42/**", "--allow", "append:chat/42/in")
    done = admin.run("token", "create", *rules, "--expires", "30d", "--name", "guest")
    assert done.returncode == 0
    token = done.stdout.rstrip("\n")
    id = token.split("_")[1]
    assert token.startswith("pst_")
    assert "\n" not in token  # the token alone
    assert done.stderr.startswith(f"Token {id} (guest) expires 20")
    assert token not in done.stderr
    listed = admin.ok("token", "ls")
    line = next(line for line in listed.splitlines() if line.startswith(id))
    assert line.split()[1:4] == ["guest", "read:chat/42/**", "append:chat/42/in"]
    assert token not in listed
    assert admin.ok("token", "rm", id) == f"revoked {id}\n"
    assert id not in admin.ok("token", "ls")
    message = f"There is no token {id} on {admin.url}; `penstock token ls` lists them."
    assert said(admin, "token", "rm", id) == (3, message)


def test_never_has_to_be_said(admin: Cli) -> None:
    made: list[dict[str, Any]] = []
    for options in ((), ("--expires", "never"), ("--expires", "12h")):
        text = admin.ok("token", "create", "--allow", "read:a", *options, "--json")
        made.append(json.loads(text))
    assert [each["expires_at"] is None for each in made] == [False, True, False]
    assert all(each["token"].startswith("pst_") for each in made)
    done = admin.run("token", "create", "--allow", "read:a", "--expires", "never")
    assert "does not expire" in done.stderr
    for wrong in ("0", "soon", "-1"):
        assert admin.failed("token", "create", "--allow", "read:a", "--expires", wrong)[0] == 2
    assert admin.failed("token", "create")[0] == 2  # no rule
    rows = [json.loads(line) for line in admin.ok("token", "ls", "--json").splitlines()]
    assert {each["id"] for each in made} <= {row["id"] for row in rows}


def test_missing_wrong_and_insufficient_tokens_are_told_apart(admin: Cli) -> None:
    token = created(admin, "read:chat/42")
    id = token.split("_")[1]
    guest = as_guest(admin, token)
    assert guest.ok("read", "chat/42") == '{"n":1}\n'
    code, message = said(guest, "append", "chat/42", "1")
    assert code == 6
    assert message == (
        f"This token may not append chat/42 on {guest.url}: that takes a token with the rule "
        "append:chat/42 (see `penstock token create`)."
    )
    code, message = said(guest, "head", "secret")
    assert code == 3
    assert message == (
        f"There is no stream secret on {guest.url}, or the token may not see it; `penstock ls` "
        "lists them."
    )
    code, message = said(guest, "token", "ls")
    assert (code, "may not admin __ds/tokens" in message) == (6, True)
    code, message = said(guest, "ls")
    assert (code, message) == (6, f"This token may not list anything on {guest.url}.")
    writer = as_guest(admin, created(as_guest(admin, ROOT), "append:chat/42"))
    code, message = said(writer, "head", "chat/42")
    assert (code, message.startswith("This token may not read chat/42 on ")) == (6, True)
    as_guest(admin, ROOT).ok("token", "rm", id)
    code, message = said(as_guest(admin, token), "read", "chat/42")
    assert code == 6
    assert "refuses this token. The token is not one of this server's, or it was revoked" in message
    code, message = said(as_guest(admin, token[:-2]), "read", "chat/42")
    assert "refuses this token. The token is mistyped or cut off." in message
    code, message = said(as_guest(admin, ""), "read", "chat/42")
    assert (code, "needs a token" in message) == (6, True)


def test_nobody_passes_on_more_than_they_have(admin: Cli) -> None:
    token = created(admin, "read:chat/**", "admin:__ds/tokens")
    lead = as_guest(admin, token)
    assert created(lead, "read:chat/42").startswith("pst_")
    code, message = said(lead, "token", "create", "--allow", "read:**")
    assert (code, "cannot allow read:**" in message) == (6, True)
    code, message = said(lead, "link", "read", "secret")
    assert (code, "cannot sign a link for it" in message) == (6, True)


def test_a_link_is_read_without_a_token(admin: Cli) -> None:
    done = admin.run("link", "read", "chat/42", "--expires", "1h")
    assert done.returncode == 0
    link = done.stdout.rstrip("\n")
    assert link.startswith(f"{admin.url}/v1/stream/chat/42?link=")
    assert done.stderr.startswith("Whoever has this URL can read chat/42 until 20")
    secret = link.partition("link=")[2]
    assert secret not in done.stderr
    stranger = as_guest(admin, "")
    assert stranger.ok("read", link) == '{"n":1}\n'
    code, message = said(stranger, "append", link, "1")
    assert code == 6
    assert secret not in message
    table = json.loads(as_guest(admin, ROOT).ok("link", "read", "t", "--of", "table", "--json"))
    assert table["url"].startswith(f"{admin.url}/v1/table/t?link=")
    assert admin.ok("link", "rotate") == "all links and cookies have ended\n"
    code, message = said(as_guest(admin, ""), "read", link)
    assert (code, message.startswith(f"{admin.url} refuses this URL: The link is not")) == (6, True)
    assert secret not in message


def test_a_link_that_cannot_be_is_refused(admin: Cli) -> None:
    assert admin.failed("link", "read", "a", "--expires", "365d")[0] == 1
    assert admin.failed("link", "admin", "a")[0] == 2
    assert admin.failed("link", "read", f"{admin.url}/v1/stream/a")[0] == 2


def test_an_open_server_says_how_to_close_it(cli: Cli) -> None:
    code, message = said(cli, "token", "create", "--allow", "read:a")
    assert (code, "Start it with a root token first (PENSTOCK_TOKEN" in message) == (4, True)
    assert said(cli, "link", "read", "a")[0] == 4


def test_a_token_is_read_from_a_file(admin: Cli, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ROOT}\n")
    del admin.env["PENSTOCK_TOKEN"]
    assert "chat/42" in admin.ok("ls", "--token-file", file)
    assert admin.failed("ls", "--token-file", file, "--token", "x")[0] == 2
    assert admin.failed("ls", "--token-file", tmp_path / "none")[0] == 2
    file.write_text("")
    assert admin.failed("ls", "--token-file", file)[0] == 2
