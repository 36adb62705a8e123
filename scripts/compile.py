"""Compile the modules of the hot path with mypyc, beside their sources.

`python scripts/compile.py` compiles in this working tree; `--remove` takes the result away. The
modules are listed in pyproject.toml, `[tool.penstock.compile]`. Without a C compiler it takes the
one of the package `ziglang`, if that is installed; without either it says so and ends with 3.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "penstock"
GROUP = "penstock"
BUILD = ROOT / "build" / "compiled" / str(sys.implementation.cache_tag)
BUILD_FILE = PACKAGE / ".compiled"  # as plain_modules.BUILD_FILE names it
NO_COMPILER = 3

# What types are missing is a matter of lint. Here it would depend on where the sources lie: mypy
# says nothing of a package that is installed from its folder.
CONFIGURATION = """\
[mypy]
strict = true
warn_unused_ignores = false
ignore_missing_imports = true
explicit_package_bases = true
cache_dir = {cache}
"""


class NoCompiler(Exception):
    """There is nothing on this machine that compiles C."""


def modules() -> list[str]:
    """Return the sources to compile, relative to `src`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names: list[str] = settings["tool"]["penstock"]["compile"]["modules"]
    return [name.replace(".", "/") + ".py" for name in names]


def find_compiler() -> None:
    """Let setuptools use a C compiler; NoCompiler if there is none."""
    configured = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(configured[0]) or os.name == "nt":
        return
    try:
        import ziglang  # type: ignore[import-not-found, unused-ignore] # noqa: F401 - is it there?
    except ImportError:
        raise NoCompiler from None
    command = f"{sys.executable} -m ziglang cc"
    os.environ.update(CC=command, LDSHARED=f"{command} -shared", CFLAGS="-fno-sanitize=undefined")


def compile_into(target: Path, *, jobs: int) -> None:
    """Compile all modules, and place the results below `target` as they are to lie in `src`.

    What is left in BUILD makes the next time quicker: only what has changed is compiled again.
    """
    find_compiler()
    from mypyc.build import mypycify
    from setuptools import Distribution

    here = Path.cwd()
    BUILD.mkdir(parents=True, exist_ok=True)
    settings = BUILD / "mypy.ini"
    settings.write_text(CONFIGURATION.format(cache=BUILD / "mypy_cache"))
    shutil.rmtree(BUILD / "lib", ignore_errors=True)  # modules may have left the list
    os.chdir(SOURCE)  # mypyc names modules by their paths
    try:
        extensions = mypycify(
            ["--config-file", str(settings), *modules()],
            opt_level="2",
            debug_level="0",
            multi_file=True,
            group_name=GROUP,
            target_dir=str(BUILD / "c"),
        )
        distribution = Distribution({"name": GROUP, "ext_modules": extensions})
        build = distribution.get_command_obj("build_ext")
        build.build_lib, build.build_temp = str(BUILD / "lib"), str(BUILD / "objects")
        build.parallel = jobs
        build.ensure_finalized()
        build.run()
    finally:
        os.chdir(here)
    for built in (BUILD / "lib").rglob("*.*"):
        place = target / built.relative_to(BUILD / "lib")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)  # a process may have the old one open
        shutil.copy2(built, place)


def remove() -> None:
    """Remove what was compiled in this working tree."""
    BUILD_FILE.unlink(missing_ok=True)
    for suffix in ("*.so", "*.pyd"):
        for built in SOURCE.rglob(suffix):
            built.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remove", action="store_true", help="remove what was compiled here")
    parser.add_argument("--list", action="store_true", help="print the sources to compile")
    arguments = parser.parse_args()
    if arguments.list:
        sys.stdout.write("\n".join(f"src/{source}" for source in modules()) + "\n")
        return
    remove()
    if arguments.remove:
        return
    try:
        compile_into(SOURCE, jobs=os.cpu_count() or 1)
    except NoCompiler:
        sys.stderr.write("there is no C compiler: Penstock runs as plain Python\n")
        sys.exit(NO_COMPILER)
    lines = [source.removeprefix("penstock/") for source in modules()]
    BUILD_FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
