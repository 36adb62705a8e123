"""penstock doctor: what is right, what is wrong, and what to do about it."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.commands.doctor import machine, serving
from penstock.cli.commands.doctor.finding import Finding
from penstock.config.settings import Settings
from tests.helpers.cli import Cli
from tests.helpers.server import Server, running_server


def doctor(url: str, *arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(
        main, ["doctor", *map(str, arguments)], env={"PENSTOCK_URL": url, "PENSTOCK_TOKEN": None}
    )


def by_check(content: Any) -> dict[str, Any]:
    return {each["check"]: each for each in content["findings"]}


def test_a_server_that_is_well_has_no_errors(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    content = cli.json("doctor", "--json", "--data-dir", tmp_path / "d")
    assert content["ok"] is True
    findings = by_check(content)
    for check in ("settings", "python", "packages", "data folder", "server", "ready", "token"):
        assert findings[check]["state"] == "ok", findings[check]
    assert findings["server clock"]["state"] == "ok"
    assert "ms" in findings["sync"]["text"]
    assert all(
        each["advice"] for each in findings.values() if each["state"] in ("warning", "error")
    )
    assert list((tmp_path / "d").iterdir()) == []


def test_a_server_that_is_not_there_is_an_error_if_it_was_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = doctor(url, "--data-dir", tmp_path)
    assert done.exit_code == 1
    assert f"error  server: none answers at {url}" in done.stdout
    assert "penstock serve" in done.stdout
    assert "1 error" in done.stdout


def test_wrong_settings_are_named(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "p.toml"
    config.write_text('tls_cert = "missing.pem"\n')
    done = doctor(server.url, "--config", config, "--data-dir", tmp_path)
    assert done.exit_code == 1
    assert "missing.pem" in done.stdout
    config.write_text("no_such_setting = 1\n")
    assert "no_such_setting" in doctor(server.url, "--config", config).stdout


def test_a_missing_token_is_a_warning(tmp_path: Path) -> None:
    with running_server(memory=True, args=["--token", "root"]) as server:
        done = doctor(server.url, "--json", "--data-dir", tmp_path)
        token = by_check(json.loads(done.stdout))["token"]
        assert token["state"] == "warning"
        assert "PENSTOCK_TOKEN" in token["advice"]


# -- single checks


def states(findings: Any) -> dict[str, str]:
    return {each.check: each.state for each in findings}


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, disk_reserve_bytes=1 << 50)
    assert states(machine.machine(settings))["disk"] == "error"


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    assert states(machine.machine(Settings(data_dir=tmp_path / "f")))["data folder"] == "error"


def test_a_relative_folder_that_is_there_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name, state in (("d", "ok"), ("e", "note")):
        assert states(machine.machine(Settings(data_dir=Path(name)))).get("data folder") == state


def test_too_few_descriptors_are_a_warning() -> None:
    settings = Settings(memory=True, connections_max=10**9)
    findings = states(machine.machine(settings))
    assert findings["open files"] == "warning"
    assert findings["data folder"] == "note"


MOUNTS = """\
/dev/sda / ext4 rw 0 0
server:/x /mnt/with\\040space nfs4 rw 0 0
tmpfs /tmp/d tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/mnt/with space/d", "nfs4"),
        ("/mnt/other", "ext4"),
        ("/tmp/d", "tmpfs"),
        ("/tmp/dd", "ext4"),
    ],
)
def test_the_longest_mount_has_the_folder(folder: str, kind: str) -> None:
    assert machine.file_system(Path(folder), MOUNTS) == kind
    assert machine.file_system(Path(folder), "") is None


@pytest.mark.parametrize(
    ("kind", "state"), [("nfs4", "warning"), ("fuse.sshfs", "warning"), ("overlay", "warning"),
                        ("ext4", "ok")],
)  # fmt: skip
def test_a_network_or_passing_file_system_is_a_warning(
    kind: str, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "mounts", lambda: f"x / {kind} rw 0 0\n")
    assert states(machine.machine(Settings(data_dir=tmp_path)))["file system"] == state


@pytest.mark.parametrize(("sync_ms", "state"), [(1.0, "ok"), (50.0, "warning"), (0.001, "warning")])
def test_slow_syncs_and_none_are_warnings(
    sync_ms: float, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "measure_syncs", lambda folder: [sync_ms] * 3)
    assert states(machine.machine(Settings(data_dir=tmp_path)))["sync"] == state


def test_a_port_in_use_is_an_error_unless_it_is_ours() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(port=taken.getsockname()[1])
        assert serving.port(settings, is_ours=False).state == "error"
        assert serving.port(settings, is_ours=True).state == "ok"
    assert serving.port(replace(settings, port=0), is_ours=False).state == "ok"


def test_an_open_server_for_other_machines_is_refused_or_warned_of() -> None:
    def of(**changes: Any) -> list[Finding]:
        return list(serving.configuration(Settings(host="0.0.0.0", **changes)))

    assert states(of())["settings"] == "error"
    assert states(of(insecure=True)) == {"tls": "warning", "access": "warning", "settings": "ok"}
    assert states(of(auth_token="t")) == {"tls": "warning", "settings": "ok"}
