"""What MkDocs does for the site beyond its own: GitHub's anchors, files outside docs/, llms.txt.

A link from a page to a file of the repository outside docs/ works on GitHub; on the site it leads
to a copy of that file below `repository/`.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = "repository"
LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")


def anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading, which the site uses, too."""
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def path_of(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return page.removeprefix(f"{PLACE}/") if page.startswith(f"{PLACE}/") else f"docs/{page}"


def place_of(path: str) -> str:
    """Return the place on the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{PLACE}/{path}"


def relink(page: str, markdown: str) -> tuple[str, set[str]]:
    """Return a page with its links as they are on the site, and the files outside docs/ in them."""
    linked: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        text, target, fragment = match.groups()
        path = normpath(f"{PurePosixPath(path_of(page)).parent}/{target}")
        if (ROOT / path).is_dir():
            return text  # the site has no page for a folder
        if not path.startswith("docs/"):
            linked.add(path)
        place = relpath(place_of(path), str(PurePosixPath(page).parent))
        return f"[{text}]({place}{fragment})"

    return LINK.sub(replace, markdown), linked


def on_config(config: Any) -> Any:
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, _: anchor(text)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ that pages link to, and what those link to."""
    from mkdocs.structure.files import File, InclusionLevel

    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    seen: set[str] = set()
    while pages:
        for path in sorted(relink(*pages.pop())[1] - seen):
            seen.add(path)
            place, content = place_of(path), (ROOT / path).read_text(encoding="utf-8")
            pages += [(place, content)] if path.endswith(".md") else []
            inclusion = InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, place, content=content, inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    return relink(page.file.src_uri, markdown)[0]


def on_post_build(config: Any) -> None:
    """Write llms.txt, and llms-full.txt with every page that it names."""
    index = (ROOT / "llms.txt").read_text(encoding="utf-8")
    site = Path(config.site_dir)
    pages = re.sub(r"\(docs/([\w/-]+)\.md\)", r"(\1.html)", index)
    (site / "llms.txt").write_text(pages, encoding="utf-8")
    (site / "llms-full.txt").write_text(full_text(index), encoding="utf-8")


def full_text(index: str) -> str:
    """Return the text of every page that llms.txt names, in its order."""
    paths = dict.fromkeys(path for _, path, _ in LINK.findall(index))
    return index + "".join(
        f"\n\n<!-- {path} -->\n\n{(ROOT / path).read_text(encoding='utf-8')}" for path in paths
    )
