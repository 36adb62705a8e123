"""The container images: what the Dockerfiles copy and run is there, and the server starts as they
start it. There is no Docker in the tests: their steps are run on this machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config.settings import SETTINGS
from tests.helpers.server import READY_PREFIX, ROOT, running_server

DOCKER = ROOT / "deploy/docker"
FILES = [DOCKER / "Dockerfile", DOCKER / "pipeline.Dockerfile"]
HEALTHCHECK = DOCKER / "healthcheck.py"
TIMEOUT_S = 60
BUILD_TIMEOUT_S = 900
IGNORED = shutil.ignore_patterns("__pycache__", "*.so", ".compiled")
Step = tuple[str, str]


def steps(path: Path) -> list[Step]:
    """Return the instructions of a Dockerfile with their arguments."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (name, argument.strip())
        for name, _, argument in (line.partition(" ") for line in joined.splitlines())
        if name
    ]


def arguments(path: Path, name: str) -> list[str]:
    return [argument for each, argument in steps(path) if each == name]


def sources(path: Path) -> list[str]:
    """Return what is copied from the repository."""
    copies = [copy for copy in arguments(path, "COPY") if not copy.startswith("--from=")]
    return [source for copy in copies for source in shlex.split(copy)[:-1]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_is_sent_to_docker(path: Path) -> None:
    ignore = path.with_name(f"{path.name}.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignore if line.startswith("!")}
    assert ignore[1] == "*"
    assert set(sources(path)) == sent
    assert all((ROOT / source).exists() for source in sent)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_image_is_pinned_and_does_not_run_as_root(path: Path) -> None:
    assert all(
        re.fullmatch(r"python:3\.\d+-slim-\w+( AS \w+)?", f) for f in arguments(path, "FROM")
    )
    assert arguments(path, "USER") == ["10001:10001"]
    assert "--uid 10001 --gid 10001" in " ".join(arguments(path, "RUN"))
    installs = [run for run in arguments(path, "RUN") if "pip install" in run]
    assert all(
        "--require-hashes" in install or "--no-deps" in install
        for run in installs
        for install in run.split("&&")
        if "pip install" in install
    )


def environment() -> dict[str, str]:
    """Return the variables that the image of the server sets."""
    (line,) = arguments(FILES[0], "ENV")
    return dict(part.split("=", 1) for part in shlex.split(line))


def test_its_variables_are_settings() -> None:
    names = {setting.env for setting in SETTINGS}
    ours = {name for name in environment() if name.startswith("PENSTOCK_")}
    assert ours
    assert ours <= names


@pytest.mark.parametrize(
    ("path", "form"),
    [
        pytest.param(FILES[0], "plain"),
        pytest.param(FILES[0], "compiled", marks=pytest.mark.soak),  # it takes minutes
        pytest.param(FILES[1], "plain"),
    ],
    ids=["server", "server-compiled", "pipeline"],
)
def test_the_files_that_are_copied_are_enough_to_install(
    path: Path, form: str, tmp_path: Path
) -> None:
    """The steps of the build stage, without the packages that are installed here anyway."""
    for source in sources(path):
        target = tmp_path / "build" / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=IGNORED)
        else:
            shutil.copy(ROOT / source, target)
    (install,) = [run for run in arguments(path, "RUN") if "--no-deps" in run]
    variables, _, options = install.split("&&")[0].partition("/opt/penstock/bin/pip ")
    assert variables == ("PENSTOCK_COMPILE=1 " if path == FILES[0] else "")
    pip = [sys.executable, "-m", "pip", *shlex.split(options)]
    folder = tmp_path / "installed"
    subprocess.run(
        [*pip, "--no-index", "--quiet", "--no-compile", "--target", str(folder)],
        cwd=tmp_path / "build",
        env={**os.environ, "PENSTOCK_COMPILE": "1" if form == "compiled" else ""},
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "penstock.cli", "--version"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("penstock ")
    assert ("compiled" in done.stdout) == (form == "compiled")


def check(**env: str) -> tuple[int, str]:
    """Run the health check of the image."""
    done = subprocess.run(
        [sys.executable, str(HEALTHCHECK)],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    return done.returncode, done.stderr


def test_the_health_check_is_that_of_the_image() -> None:
    (line,) = arguments(FILES[0], "HEALTHCHECK")
    command = json.loads(line.partition("CMD ")[2])
    copied = [copy for copy in arguments(FILES[0], "COPY") if HEALTHCHECK.name in copy]
    assert command == ["python", copied[0].split()[-1]]


def test_a_server_that_is_ready_is_healthy_and_one_that_is_gone_is_not() -> None:
    with running_server(memory=True) as server:
        port = str(server.port)
        assert check(PENSTOCK_HOST="0.0.0.0", PENSTOCK_PORT=port) == (0, "")
    code, reason = check(PENSTOCK_PORT=port)
    assert code == 1
    assert f"http://127.0.0.1:{port}/readyz" in reason
    assert "Traceback" not in reason


def test_a_server_with_tls_and_names_of_its_own_is_healthy() -> None:
    args = ["--tls-self-signed", "--allowed-hosts", "streams.example.com"]
    with running_server(args=args) as server:
        env = {"PENSTOCK_PORT": str(server.port), "PENSTOCK_TLS_SELF_SIGNED": "true"}
        assert check(**env) == (0, "")


def test_a_server_whose_disk_is_full_is_not_healthy() -> None:
    with running_server(args=["--disk-reserve-bytes", "1000000GiB"]) as server:
        code, reason = check(PENSTOCK_PORT=str(server.port))
    assert code == 1
    assert "503" in reason


def started(tmp_path: Path, **env: str) -> subprocess.Popen[str]:
    """Start the server as the image does: no flag, everything from the environment."""
    variables = {**environment(), "PENSTOCK_DATA_DIR": str(tmp_path / "data"), **env}
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "serve"],
        env={**variables, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )


def test_without_a_token_the_message_names_the_variables(tmp_path: Path) -> None:
    with started(tmp_path, PENSTOCK_PORT="0") as process:
        _, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode != 0
    assert "PENSTOCK_TOKEN" in error
    assert "PENSTOCK_INSECURE=true" in error
    assert "Traceback" not in error


def test_it_binds_as_the_environment_says(tmp_path: Path) -> None:
    env = {"PENSTOCK_HOST": "127.0.0.1", "PENSTOCK_PORT": "0", "PENSTOCK_TOKEN": "t" * 32}
    with started(tmp_path, **env) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"{READY_PREFIX}http://127.0.0.1:")
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
