"""Commands over https: the authority that a person names with --cacert or PENSTOCK_CACERT."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.certs import Authority
from tests.helpers.cli import Cli
from tests.helpers.server import running_server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secure(authority: Authority, tmp_path: Path) -> Iterator[Cli]:
    args = ["--tls-cert", str(authority.issue("server"))]
    with running_server(memory=True, args=args) as server, Cli(server.url, tmp_path) as cli:
        yield cli


def test_a_command_trusts_the_authority_that_it_is_told(secure: Cli, authority: Authority) -> None:
    file = str(authority.file)
    assert "is not trusted" in secure.run("ls").stderr
    assert secure.run("create", "a", "--cacert", file).returncode == 0
    told = {"PENSTOCK_CACERT": file}
    assert secure.run("append", "a", "1", env=told).returncode == 0
    assert secure.run("read", "a", env=told).stdout == "1\n"
    bench = secure.run("bench", "append", "--duration", "0.2", "--cacert", file)
    assert bench.returncode == 0, bench.stderr


def test_a_file_that_holds_no_authority_is_named(secure: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path, reason in ((tmp_path / "none.pem", "No such file"), (empty, "no certificates")):
        done = secure.run("ls", "--cacert", str(path))
        assert done.returncode == 2
        assert f"The file {path} of --cacert cannot be used: " in done.stderr
        assert reason in done.stderr


def test_the_variable_of_the_client_does_not_disturb_a_server(authority: Authority) -> None:
    with running_server(memory=True, env={"PENSTOCK_CACERT": str(authority.file)}) as server:
        assert server.running
