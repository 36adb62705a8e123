"""HTML pages as text: what they have in common, and how text becomes HTML.

Everything that is not markup goes through `prose` or `escape`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

_CODE: Final = re.compile(r"`([^`]+)`")

STYLE: Final = """\
:root { color-scheme: light dark; --text: #1c2530; --soft: #55606e; --line: #d9dee5;
  --back: #ffffff; --code: #f3f5f8; --link: #0b57c4; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaf0; --soft: #a3adba; --line: #333c48;
  --back: #14181e; --code: #1e242d; --link: #7db0ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main { max-width: 60rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 1rem; padding-bottom: 1rem; border-bottom: 1px solid var(--line); }
header a { margin-right: 1.25rem; display: inline-block; }
main { padding-bottom: 4rem; }
a { color: var(--link); }
a:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 1.5rem 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .25rem; overflow-wrap: anywhere; }
h4 { font-size: .95rem; margin: 1rem 0 .25rem; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .9em; }
code { background: var(--code); padding: .1em .3em; border-radius: 4px; overflow-wrap: anywhere; }
pre { background: var(--code); padding: .75rem; border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre code { padding: 0; background: none; }
.soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { font-weight: 600; color: var(--soft); }
ul.columns { columns: 18rem; padding-left: 1.1rem; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: .5rem; background: var(--back); padding: .25rem .5rem; }
@media (max-width: 40rem) { table, tbody, tr, td { display: block; } thead { display: none; }
  td { border: 0; padding: .1rem 0; } tr { border-bottom: 1px solid var(--line);
  padding: .4rem 0; } }
"""


def page(title: str, body: str, *, root: str) -> bytes:
    """Return a whole page. `root` is where `/` is, relative to the page."""
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · Penstock</title>
<link rel="stylesheet" href="{root}docs/style.css">
<link rel="icon" href="data:,">
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header><nav aria-label="Pages">{_nav(root)}</nav></header>
<main id="main">
<h1>{escape(title)}</h1>
{body}
</main>
</body>
</html>
"""
    return text.encode()


def _nav(root: str) -> str:
    links = {"Penstock": "docs", "API reference": "docs/api", "Errors": "problems"}
    return " ".join(link(f"{root}{place}", name) for name, place in links.items())


def prose(text: str) -> str:
    """Return plain text as HTML; what stands in backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def link(url: str, text: str) -> str:
    return f'<a href="{escape(url)}">{prose(text)}</a>'


def definitions(rows: Mapping[str, str], head: tuple[str, str]) -> str:
    """Return a table of names, as code, and what they mean."""
    cells = ([f"<code>{escape(name)}</code>", prose(text)] for name, text in rows.items())
    return table(head, cells)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table whose cells are HTML."""
    titles = "".join(f'<th scope="col">{escape(each)}</th>' for each in head)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{titles}</tr></thead>\n<tbody>{lines}</tbody></table>"
