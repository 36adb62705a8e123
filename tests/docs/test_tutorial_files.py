"""The files of tutorials are those in examples/, so that they can be run without copying a page."""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, blocks


@pytest.mark.parametrize(
    ("page", "folder"), [("fastapi", "live_page"), ("llm", "llm")], ids=["fastapi", "llm"]
)
def test_the_files_of_a_tutorial_are_in_the_examples(page: str, folder: str) -> None:
    text = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text()
    shown = {block.file: block.code for block in blocks(text) if block.file is not None}
    files = {path.name: path.read_text() for path in (ROOT / "examples" / folder).glob("*.*")}
    assert shown == files
