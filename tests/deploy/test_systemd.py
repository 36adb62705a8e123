"""The unit of systemd: valid, hardened, and in step with the server's settings."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock.config.settings import Settings
from tests.helpers.server import ROOT

UNIT = ROOT / "deploy/systemd/penstock.service"


@pytest.fixture(scope="module")
def analyze() -> str:
    binary = shutil.which("systemd-analyze")
    if binary is None:
        pytest.skip("there is no systemd-analyze on this machine")
    return binary


def service() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)  # SystemCallFilter may be there twice
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    parser.read(UNIT)
    return parser["Service"]


def test_the_unit_is_valid(analyze: str, tmp_path: Path) -> None:
    program = tmp_path / "penstock"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/penstock/bin/penstock", str(program)))
    done = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_hardened(analyze: str) -> None:
    """systemd's own measure: 10 is a service with all rights, below 2 is called OK."""
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", "--threshold=20", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "offline" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at files")
    assert done.returncode == 0, done.stdout[-500:]


def test_systemd_waits_longer_than_the_server_needs() -> None:
    settings, unit = Settings(), service()
    assert float(unit["TimeoutStopSec"].removesuffix("s")) > settings.shutdown_timeout_s
    assert int(unit["LimitNOFILE"]) > settings.connections_max + settings.open_files_max
    assert unit["Type"] == "notify"


def test_the_command_has_flags_that_exist() -> None:
    command = service()["ExecStart"]
    flags = re.findall(r"--[a-z-]+", command)
    text = (ROOT / "docs/configuration.md").read_text() + "--config"
    assert flags
    assert all(flag in text for flag in flags)
    state = f"/var/lib/{service()['StateDirectory']}"
    assert f"--data-dir {state}" in command
