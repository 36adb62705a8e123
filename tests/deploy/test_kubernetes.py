"""The manifests of Kubernetes: valid by its own schemas, and in step with the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate
import pytest
import yaml

import penstock
import penstock.testing
from penstock.config.settings import SETTINGS, Settings
from tests.helpers.server import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.30", "1.37")
OTHERS = {"kustomization.yaml", "service-monitor.yaml"}  # kinds that are not Kubernetes' own
MANIFESTS = sorted(path for path in FOLDER.iterdir() if path.name not in OTHERS)


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def container() -> Any:
    (only,) = load("stateful-set.yaml")["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_manifest_is_valid(path: Path, version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)


def test_all_manifests_are_applied() -> None:
    kustomization = load("kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    assert kustomization["images"] == [{"name": "penstock", "newTag": penstock.__version__}]
    assert container()["image"] == "penstock"


def test_its_variables_are_settings() -> None:
    names = {setting.env for setting in SETTINGS}
    assert set(load("settings.yaml")["data"]) <= names
    assert {each["name"] for each in container()["env"]} <= names


def test_the_ports_are_the_same_everywhere() -> None:
    (port,) = container()["ports"]
    assert port == {"name": "http", "containerPort": Settings().port}
    assert load("settings.yaml")["data"]["PENSTOCK_PORT"] == str(Settings().port)
    (of_service,) = load("service.yaml")["spec"]["ports"]
    assert (of_service["port"], of_service["targetPort"]) == (Settings().port, "http")
    (ingress,) = load("network-policy.yaml")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": "http"}]
    (endpoint,) = load("service-monitor.yaml")["spec"]["endpoints"]
    assert endpoint["port"] == of_service["name"]


def test_the_probes_and_metrics_are_routes_of_the_server() -> None:
    with penstock.testing.server() as server:
        paths = set(httpx2.get(f"{server.url}/openapi.json").json()["paths"])
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    asked = {container()[probe]["httpGet"]["path"] for probe in probes}
    (endpoint,) = load("service-monitor.yaml")["spec"]["endpoints"]
    assert asked | {endpoint["path"]} == {"/healthz", "/readyz", "/metrics"}
    assert {"/healthz", "/readyz", "/metrics"} <= paths


def test_the_pod_has_time_to_stop_and_one_owner_of_the_data() -> None:
    spec = load("stateful-set.yaml")["spec"]
    pod = spec["template"]["spec"]
    pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + Settings().shutdown_timeout_s
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == load("settings.yaml")["data"]["PENSTOCK_DATA_DIR"]


def test_everything_names_the_same_pods() -> None:
    labels = load("stateful-set.yaml")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        load("stateful-set.yaml")["spec"]["selector"]["matchLabels"],
        load("service.yaml")["spec"]["selector"],
        load("disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        load("network-policy.yaml")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert (
        load("service-monitor.yaml")["spec"]["selector"]["matchLabels"]
        == load("service.yaml")["metadata"]["labels"]
    )
