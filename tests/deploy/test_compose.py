"""The compose file: every file it mounts is there, every variable is a setting of the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from penstock.config.settings import SETTINGS, Settings
from penstock.spark.config import load_pipeline
from tests.helpers.server import ROOT

FOLDER = ROOT / "deploy/compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_what_is_mounted_or_built_is_there() -> None:
    mounts = [volume.split(":") for each in SERVICES.values() for volume in each.get("volumes", [])]
    for source, *_ in mounts:
        if source.startswith("."):
            assert (FOLDER / source).exists(), source
        else:
            assert source in COMPOSE["volumes"], source
    for each in SERVICES.values():
        if "build" in each:
            context = (FOLDER / each["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / each["build"]["dockerfile"]).exists()
        else:
            assert re.search(r":v?\d+\.\d+\.\d+$", each["image"]), "not pinned"


def test_its_variables_are_settings() -> None:
    names = {setting.env for setting in SETTINGS} | {"PENSTOCK_URL"}
    for name in ("penstock", "pipeline"):
        assert set(SERVICES[name]["environment"]) <= names
    example = (FOLDER / "penstock.env.example").read_text()
    assert set(re.findall(r"^([A-Z_]+)=", example, re.M)) <= names


def test_it_holds_no_secret_and_is_published_on_loopback_alone() -> None:
    example = (FOLDER / "penstock.env.example").read_text()
    assert re.search(r"^PENSTOCK_TOKEN=$", example, re.M)
    ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_server_has_time_to_stop() -> None:
    grace = SERVICES["penstock"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > Settings().shutdown_timeout_s
    assert SERVICES["penstock"]["ports"] == [f"127.0.0.1:{Settings().port}:{Settings().port}"]


def test_services_that_others_wait_for_have_a_health_check() -> None:
    """That of the server is in its image."""
    waited = {name for each in SERVICES.values() for name in each.get("depends_on", ())}
    assert waited == {"penstock", "prometheus"}
    assert "healthcheck" in SERVICES["prometheus"]


def test_the_pipeline_is_valid() -> None:
    config = load_pipeline(FOLDER / "pipeline.toml")
    assert config.source.url == "http://penstock:4437"
    volumes = [volume.split(":")[1] for volume in SERVICES["pipeline"]["volumes"]]
    assert str(Path(str(config.warehouse.path))) in volumes
    assert SERVICES["pipeline"]["command"][2] in volumes
