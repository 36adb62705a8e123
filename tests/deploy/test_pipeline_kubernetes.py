"""The manifests and the settings for a pipeline on Kubernetes, as docs/pipeline.md has them: valid,
and in agreement with each other. Nothing here has a cluster.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from penstock.cli import main
from penstock.spark.config import Pipeline, make_pipeline
from tests.helpers.server import ROOT

VERSIONS = ("1.30", "1.37")


@cache
def section() -> str:
    return (ROOT / "docs/pipeline.md").read_text().split("### Kubernetes")[1].split("\n### ")[0]


def manifests() -> list[Any]:
    [text] = re.findall(r"^```yaml\n(.*?)^```", section(), re.M | re.S)
    return list(yaml.safe_load_all(text))


def pipeline() -> Pipeline:
    [text] = re.findall(r"^```toml\n(.*?)^```", section(), re.M | re.S)
    return make_pipeline(tomllib.loads(text))


def manifest(kind: str) -> Any:
    [found] = [each for each in manifests() if each["kind"] == kind]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_are_valid(version: str) -> None:
    kinds = [each["kind"] for each in manifests()]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "Service", "StatefulSet"]
    for each in manifests():
        kubernetes_validate.validate(each, version, strict=True)


def test_settings_and_manifests_agree() -> None:
    spark, metrics = pipeline().run.spark, pipeline().run.metrics_port
    service, driver = manifest("Service"), manifest("StatefulSet")
    name, namespace = driver["metadata"]["name"], driver["metadata"]["namespace"]
    assert driver["spec"]["replicas"] == 1, "one pipeline writes a warehouse"
    assert driver["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == driver["spec"]["template"]["metadata"]["labels"]
    assert spark["spark.kubernetes.namespace"] == namespace
    assert spark["spark.kubernetes.driver.pod.name"] == f"{name}-0"
    assert spark["spark.driver.host"] == f"{name}-0.{service['metadata']['name']}.{namespace}"
    ports = {each["port"] for each in service["spec"]["ports"]}
    drivers = {int(spark[f"spark.driver.{each}port"]) for each in ("", "blockManager.")}
    assert ports == {*drivers, metrics}
    pod = driver["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == spark["spark.kubernetes.container.image"]
    account = pod["serviceAccountName"]
    assert account == manifest("ServiceAccount")["metadata"]["name"]
    assert account == spark["spark.kubernetes.authenticate.executor.serviceAccountName"]
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    checkpoint = pipeline().warehouse.checkpoint or ""
    assert any(checkpoint.startswith(f"{mount}/") for mount in mounts)


def test_the_command_of_the_driver_has_options_that_exist() -> None:
    [container] = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    program, *words = container["command"]
    assert program == "penstock"
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
