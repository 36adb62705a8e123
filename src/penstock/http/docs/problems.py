"""`/problems`: a page for each code of an error, as HTML for browsers and as JSON for programs."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from penstock.error_guide import FIELDS, GUIDE, every_error, fields_of, headers_of, is_sent
from penstock.errors import PenstockError
from penstock.http.docs.page import definitions, link, page, prose, table


def content(error: type[PenstockError]) -> dict[str, Any]:
    """Return what there is to say about an error."""
    advice = GUIDE[error.code]
    return {
        "code": error.code,
        "title": error.title,
        "status": error.status if is_sent(error) else None,
        "cause": advice.cause,
        "remedy": advice.remedy,
        "fields": fields_of(error),
        "headers": headers_of(error),
    }


def listing() -> dict[str, Any]:
    """Return all codes, with the address of each, for programs."""
    return {
        "problems": [
            {"code": code, "title": error.title, "type": f"/problems/{code}"}
            | ({"status": error.status} if is_sent(error) else {})
            for code, error in every_error().items()
        ]
    }


def problem_page(error: type[PenstockError]) -> bytes:
    """Return the page of one error."""
    about = content(error)
    sent = "Raised by clients and commands; no server sends it."
    if is_sent(error):
        sent = f"Status {error.status} {HTTPStatus(error.status).phrase}."
    parts = [
        f'<p class="soft"><code>{error.code}</code> · {sent}</p>',
        f"<h2>What it means</h2>\n<p>{prose(about['cause'])}</p>",
        f"<h2>What to do</h2>\n<p>{prose(about['remedy'])}</p>",
    ]
    if is_sent(error):
        members = {**FIELDS, **about["fields"]}
        parts.append(f"<h2>Fields</h2>\n{definitions(members, ('field', 'meaning'))}")
    if about["headers"]:
        parts.append(f"<h2>Headers</h2>\n{definitions(about['headers'], ('header', 'meaning'))}")
    return page(error.title, "\n".join(parts), root="../")


def listing_page() -> bytes:
    """Return the page that lists every code."""
    rows: dict[bool, list[list[str]]] = {True: [], False: []}
    for code, error in every_error().items():
        where = link(f"problems/{code}", f"`{code}`")
        status = [str(error.status)] if is_sent(error) else []
        rows[is_sent(error)].append([*status, where, prose(error.title)])
    intro = (
        "Every error is a problem document (RFC 9457). Its `code` is stable; its `type` leads to "
        "the page about it."
    )
    body = (
        f"<p>{prose(intro)}</p>\n<h2>Sent by servers</h2>\n"
        f"{table(('status', 'code', 'title'), rows[True])}\n"
        f"<h2>Raised by clients and commands</h2>\n{table(('code', 'title'), rows[False])}"
    )
    return page("Errors", body, root="")
