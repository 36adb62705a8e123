"""Data folders at rest: made once, copied for each test that may spoil them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.folders import make_clean, make_crashed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    make_clean(folder / "clean")
    make_crashed(folder / "crashed")
    make_crashed(folder / "buffered", durability="buffered")
    return folder


@pytest.fixture
def clean(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "clean", tmp_path / "data"))


@pytest.fixture
def crashed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "crashed", tmp_path / "data"))


@pytest.fixture
def buffered(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "buffered", tmp_path / "data"))
