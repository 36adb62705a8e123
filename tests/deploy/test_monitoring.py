"""Prometheus' rules and Grafana's dashboard: they parse, and every metric they name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.helpers.postgres import needs_postgres, shared
from tests.helpers.server import ROOT, running_server

DEPLOY = ROOT / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/penstock.json").read_text())
ALERTS = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
NAME = re.compile(r"\b(?:penstock|process)_[a-z0-9_]+")
LABEL = re.compile(r"[{,(]\s*([a-z_]+)\s*(?:=~|!=|=)")


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            yield panel


EXPRESSIONS = [rule["expr"] for rule in ALERTS] + [
    target["expr"] for panel in panels() for target in panel["targets"]
]
OF_CLUSTER = "penstock_cluster_"
"""How metrics begin that only the nodes of a cluster have."""


def names() -> set[str]:
    return {name for expression in EXPRESSIONS for name in NAME.findall(expression)}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every sample of a server that has done a bit of everything."""
    tier = tmp_path_factory.mktemp("tier")
    with (
        running_server(args=["--tier-url", tier.as_uri()]) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        client.put("/v1/stream/a", content=b"hello", headers={"Content-Type": "text/plain"})
        client.get("/v1/stream/none")
        text = ""
        while "penstock_streams " not in text:  # counted by a thread
            text = client.get("/metrics").text
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_metric_that_they_name_exists(samples: dict[str, set[str]]) -> None:
    named = {name for name in names() if not name.startswith(OF_CLUSTER)}
    assert named <= samples.keys(), named - samples.keys()
    assert len(named) > 40


@needs_postgres
def test_every_metric_of_a_cluster_that_they_name_exists() -> None:
    args = ("--cluster", shared().fresh_database(), "--cluster-durability", "single")
    with running_server(args=args) as node:
        text = httpx.get(f"{node.url}/metrics").text
    families = text_string_to_metric_families(text)
    known = {sample.name for family in families for sample in family.samples}
    named = {name for name in names() if name.startswith(OF_CLUSTER)}
    assert named <= known, named - known
    assert len(named) > 8


def test_every_label_that_they_name_exists(samples: dict[str, set[str]]) -> None:
    known = {label for labels in samples.values() for label in labels} | {"instance", "job"}
    for expression in EXPRESSIONS:
        used = set(LABEL.findall(expression))
        for by in re.findall(r"by \(([^)]*)\)", expression):
            used |= {each.strip() for each in by.split(",")}
        assert used <= known, (expression, used - known)


def test_the_routes_that_they_name_are_served(samples: dict[str, set[str]]) -> None:
    from tests.access.test_matrix import NEEDS

    routes = {
        route
        for expression in EXPRESSIONS
        for route in re.findall(r'route!?="([^"]*)"', expression)
    }
    assert routes <= {*NEEDS, "live", "none"}
    assert routes


def test_alerts_say_what_to_do() -> None:
    assert len({rule["alert"] for rule in ALERTS}) == len(ALERTS)
    for rule in ALERTS:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["action"].endswith(".")


def test_the_dashboard_is_whole() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"])
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "instance"}


def test_grafana_finds_the_data_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/penstock.yml").read_text())[
        "datasources"
    ]
    compose = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose
    (provider,) = yaml.safe_load((provisioning / "dashboards/penstock.yml").read_text())[
        "providers"
    ]
    mounts = [volume.split(":")[1] for volume in compose["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


def test_prometheus_scrapes_the_server_and_loads_the_rules() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["penstock:4437"]}]
    assert all(f'job="{job["job_name"]}"' in e for e in EXPRESSIONS if "up{" in e)
    for name in config["rule_files"]:
        assert (PROMETHEUS / name).exists()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("command", [("config", "prometheus.yml"), ("rules", "alerts.yml")])
def test_promtool_accepts_them(command: tuple[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["promtool", "check", command[0], str(PROMETHEUS / command[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
