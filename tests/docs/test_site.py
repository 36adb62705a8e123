"""The site of docs/: it builds, every link and anchor leads somewhere, and it fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.site_hooks import LINK, anchor, full_text, relink
from tests.browser.chromium import running_browser
from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"
MKDOCS = ROOT / ".venv" / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "llms.txt", *DOCS.rglob("*.md")]


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.M | re.S)


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, and those that it sets itself."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+?)(?: \{.*\})?$", text, re.M)
    return {anchor(heading) for heading in headings} | set(re.findall(r'id="([^"]+)"', text))


def broken(path: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    path = path.resolve()
    text = without_code(path.read_text())
    inside = re.findall(r"\]\((#[^)\s]+)\)", text)
    problems = [link for link in inside if link[1:] not in anchors(path)]
    links = [*LINK.findall(text), *re.findall(r"!\[([^\]]*)\]\((?!\w+:)([^)#\s]+)()\)", text)]
    for _, target, fragment in links:
        aim = (path.parent / target).resolve()
        if not aim.exists() or (fragment and fragment[1:] not in anchors(aim)):
            problems.append(target + fragment)
    return problems


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(path: Path) -> None:
    assert broken(path) == []


def test_the_check_itself_sees_broken_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    links = "[1](#a-b-c-d) [2](#x) [3](page.md#a-b-c-d) [4](page.md#y) [5](z.md) ![6](z.svg)"
    page.write_text(f"# A `b`-c, d\n{links}\n")
    assert broken(page) == ["#x", "page.md#y", "z.md", "z.svg"]


def test_every_page_is_in_the_navigation_once() -> None:
    def files(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        nested = entry.values() if isinstance(entry, dict) else entry
        return [name for child in nested for name in files(child)]

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(files(nav)) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_files_outside_of_docs_are_part_of_the_site() -> None:
    page = "[a](../deploy/nginx.conf) [b](state.md#x) [c](../src/penstock)"
    text, linked = relink("tls.md", page)
    assert text == "[a](repository/deploy/nginx.conf) [b](state.md#x) c"
    assert linked == {"deploy/nginx.conf"}
    assert relink("repository/README.md", "[a](docs/tls.md)")[0] == "[a](../tls.md)"


def test_the_text_for_language_models_holds_every_page_that_it_names() -> None:
    index = (ROOT / "llms.txt").read_text()
    text = full_text(index)
    assert text.startswith("# Penstock\n\n> ")
    for name in ("docs/index.md", "docs/client.md", "docs/state.md"):
        assert (ROOT / name).read_text() in text
    named = set(re.findall(r"docs/([\w/-]+\.md)", index))
    pages = [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md")]
    assert {str(path.relative_to(DOCS)) for path in pages} - named == set()


def build(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    if not MKDOCS.exists():
        pytest.skip("MkDocs is not installed; `make test` and `make docs` install it")
    # Not with --quiet: it keeps warnings from --strict, too.
    places = ["--config-file", str(config), "--site-dir", str(folder)]
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", *places],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(MKDOCS), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_links_that_lead_nowhere_end_the_build(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# A page\n\n[1](absent.md) [2](#absent)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: pages\nhooks: []\nnav: [index.md]\n"
    )
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    assert "'absent.md'" in done.stderr
    assert "'#absent'" in done.stderr


def test_the_site_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").exists()
    assert (site / "llms-full.txt").exists()
    pages = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert len(pages) > 40
    assert [page for page in pages if not (site / page).is_file()] == []
    assert (site / "repository" / "deploy" / "nginx.conf").exists()


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    fetching = re.compile(r"<(?:script|img|iframe|source)[^>]+(?:https?:)?//")
    styles = re.compile(r"<link[^>]+rel=.?(?:stylesheet|preconnect|icon)[^>]+(?:https?:)?//")
    fetchers = [
        page.name
        for page in site.rglob("*.html")
        if fetching.search(text := page.read_text()) or styles.search(text)
    ]
    assert fetchers == []


@pytest.mark.xdist_group("browser")
def test_the_search_works_in_a_folder_without_a_server(site: Path) -> None:
    with running_browser() as browser:
        page = browser.new_page()
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.get_by_label("Search").first.click()
        page.locator(".md-search-result__meta", has_text="Type to start").wait_for()
        page.keyboard.type("idempotent producer")
        page.locator(".md-search-result__item").filter(has_text="producer").first.wait_for()
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
