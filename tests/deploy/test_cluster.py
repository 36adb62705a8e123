"""The files for a cluster of three nodes: valid, in step with the server. Its standby is run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import penstock
from penstock.cli.commands.cluster.postgres import (
    free_port,
    give_away,
    needed_programs,
    postgres_folder,
    unprivileged,
)
from penstock.config.settings import SETTINGS, Settings
from tests.cluster.workload import until
from tests.helpers.postgres import Postgres, needs_postgres
from tests.helpers.server import ROOT

COMPOSE_FOLDER = ROOT / "deploy/cluster/compose"
COMPOSE = yaml.safe_load((COMPOSE_FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
EXAMPLE = (COMPOSE_FOLDER / "cluster.env.example").read_text()
FOLDER = ROOT / "deploy/cluster/kubernetes"
MANIFESTS = sorted(path for path in FOLDER.iterdir() if path.name != "kustomization.yaml")
NAMES = {setting.env for setting in SETTINGS}
NODES = ("node-1", "node-2", "node-3")


def load(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def pod() -> Any:
    return load("stateful-set.yaml")["spec"]["template"]["spec"]


def container() -> Any:
    (only,) = pod()["containers"]
    return only


# -- compose


def test_what_compose_mounts_or_builds_is_there() -> None:
    for each in SERVICES.values():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE_FOLDER / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
        if "build" in each:
            context = (COMPOSE_FOLDER / each["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / each["build"]["dockerfile"]).exists()
        else:
            assert re.search(r":\d+\.\d+-", each["image"]), "not pinned"
        ports = each.get("ports", [])
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_nodes_of_compose_are_three_and_know_their_names() -> None:
    for name in NODES:
        environment = SERVICES[name]["environment"]
        assert set(environment) <= NAMES
        assert environment["PENSTOCK_CLUSTER_NODE"] == name
        assert environment["PENSTOCK_CLUSTER_NODE_URL"] == f"http://{name}:{Settings().port}"
        grace = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace > Settings().shutdown_timeout_s
        assert set(SERVICES[name]["depends_on"]) == {"db-2", "db-3"}


def test_the_standbys_of_compose_are_those_that_the_primary_waits_for() -> None:
    assert f"'ANY 1 ({SERVICES['db-2']['environment']['STANDBY']}, " in SERVICES["db-1"]["command"]
    assert SERVICES["db-3"]["environment"]["STANDBY"] in SERVICES["db-1"]["command"]
    assert all(SERVICES[name]["environment"]["PRIMARY"] == "db-1" for name in ("db-2", "db-3"))


def test_the_example_holds_no_secret_and_names_settings() -> None:
    names = set(re.findall(r"^([A-Z_]+)=", EXAMPLE, re.M))
    assert names - {"POSTGRES_PASSWORD"} <= NAMES
    assert re.search(r"^PENSTOCK_TOKEN=$", EXAMPLE, re.M)
    assert re.search(r"^POSTGRES_PASSWORD=$", EXAMPLE, re.M)


@contextmanager
def _primary(folder: Path) -> Iterator[Postgres]:
    primary = Postgres(folder, "one")
    try:
        primary.init()
        primary.configure(synchronous_standby_names="ANY 1 (db_2, db_3)")
        primary.start()
        yield primary
    finally:
        primary.stop()


def _standbys(primary: Postgres) -> list[str]:
    text = "SELECT application_name, sync_state FROM pg_stat_replication"
    return primary.query(text, "postgres")


@needs_postgres
@pytest.mark.xdist_group("cluster")
def test_the_standby_of_compose_copies_once_and_follows() -> None:
    """Its script, with the programs of this machine; the second start finds the copy."""
    with postgres_folder() as folder, _primary(folder) as primary:
        script = folder / "standby.sh"
        script.write_text((COMPOSE_FOLDER / "standby.sh").read_text())
        give_away(script)
        data, port = folder / "standby", free_port()
        environment = {
            "PATH": f"{needed_programs()}{os.pathsep}{os.environ['PATH']}",
            "PRIMARY": "127.0.0.1",
            "PRIMARY_PORT": str(primary.port),
            "STANDBY": "db_2",
            "PGDATA": str(data),
        }
        made = []
        for _ in range(2):
            process = subprocess.Popen(
                ["sh", script, "-p", str(port)],
                env=environment,
                cwd=folder,
                stderr=subprocess.DEVNULL,
                **unprivileged(),
            )
            try:
                until(lambda: _standbys(primary) == ["db_2|quorum"], "the standby follows")
                made.append((data / "PG_VERSION").stat().st_mtime_ns)
            finally:
                process.terminate()
                process.wait()
        assert len(set(made)) == 1
        assert not (folder / "standby.copy").exists()


# -- Kubernetes


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_manifest_is_valid(path: Path, version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)


def test_all_manifests_are_applied() -> None:
    kustomization = load("kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    assert kustomization["images"] == [{"name": "penstock", "newTag": penstock.__version__}]


def test_the_variables_of_the_nodes_are_settings_and_ports_agree() -> None:
    settings = load("settings.yaml")["data"]
    assert set(settings) <= NAMES
    assert {each["name"] for each in container()["env"]} <= NAMES
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert ports == {"http": Settings().port, "peers": int(settings["PENSTOCK_CLUSTER_PEER_PORT"])}
    for name in ("service.yaml", "nodes-service.yaml"):
        for port in load(name)["spec"]["ports"]:
            assert port["port"] == ports[port["targetPort"]]
    url = next(e["value"] for e in container()["env"] if e["name"] == "PENSTOCK_CLUSTER_NODE_URL")
    headless = load("nodes-service.yaml")
    assert url == f"http://$(PENSTOCK_CLUSTER_NODE).{headless['metadata']['name']}:{ports['http']}"
    assert load("stateful-set.yaml")["spec"]["serviceName"] == headless["metadata"]["name"]


def test_there_are_three_nodes_without_a_volume_of_their_own() -> None:
    spec = load("stateful-set.yaml")["spec"]
    assert spec["replicas"] == 3
    assert "volumeClaimTemplates" not in spec
    pause = int(container()["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod()["terminationGracePeriodSeconds"] > pause + Settings().shutdown_timeout_s
    volumes = {each["name"] for each in pod()["volumes"]}
    assert {each["name"] for each in container()["volumeMounts"]} == volumes


def test_everything_names_the_same_pods() -> None:
    labels = load("stateful-set.yaml")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        load("stateful-set.yaml")["spec"]["selector"]["matchLabels"],
        load("service.yaml")["spec"]["selector"],
        load("nodes-service.yaml")["spec"]["selector"],
        load("disruption-budget.yaml")["spec"]["selector"]["matchLabels"],
        load("network-policy.yaml")["spec"]["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in pod()["topologySpreadConstraints"]),
    ]
    assert all(selector == labels for selector in selectors)
