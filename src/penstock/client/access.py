"""The operations on tokens and signed links as flows without I/O; the clients run them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import msgspec

from penstock.client.answers import Answer
from penstock.client.flow import Emit, Flow, send
from penstock.client.requests import JSON, Request
from penstock.client.retry import Retry
from penstock.errors import ProtocolError

TOKENS_PATH: Final = "/v1/tokens"
LINK_PATH: Final = "/v1/link"
ROTATE_PATH: Final = "/v1/links/rotate"
PAGE: Final = 1000

T = TypeVar("T")


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A stored token as the server describes it, without its secret."""

    id: str
    allow: list[str]
    created_at: str
    created_by: str
    name: str = ""
    expires_at: str | None = None
    expired: bool = False


class NewToken(TokenInfo, frozen=True, kw_only=True):
    """A token that was created now. `token` is its text, which nobody can look up again."""

    token: str

    def __repr__(self) -> str:
        # Without the token: what is printed or logged is seen by others.
        return f"NewToken(id={self.id!r}, allow={self.allow!r})"


class SignedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link. `link` is the value of the parameter in `url`, for other URLs of the same path."""

    url: str
    link: str
    expires_at: str

    def __repr__(self) -> str:
        return f"SignedLink(expires_at={self.expires_at!r})"


class _Page(msgspec.Struct):
    tokens: list[TokenInfo]
    next: str | None = None


def create_token(
    base_url: str,
    allow: Iterable[str],
    expires_in_s: int | Literal["never"] | None,
    name: str,
    retry: Retry,
) -> Flow[NewToken]:
    document: dict[str, Any] = {"allow": list(allow), "name": name}
    if expires_in_s is not None:
        document["expires_in"] = None if expires_in_s == "never" else expires_in_s
    # Not repeated when its outcome is unknown: nobody would know the text of the first token.
    answer = yield from _post(base_url + TOKENS_PATH, document, retry, repeatable=False)
    return _decoded(answer, NewToken)


def list_tokens(base_url: str, retry: Retry) -> Flow[None]:
    """Emit every stored token, page after page."""
    after = ""
    while True:
        params = {"limit": str(PAGE)} | ({"after": after} if after else {})
        request = Request("GET", base_url + TOKENS_PATH, params=params)
        page = _decoded((yield from send(request, retry)), _Page)
        for token in page.tokens:
            yield Emit(token)
        if page.next is None:
            return
        after = page.next


def revoke_token(base_url: str, id: str, retry: Retry) -> Flow[None]:
    yield from send(Request("DELETE", f"{base_url}{TOKENS_PATH}/{quote(id, safe='')}"), retry)


def sign_link(
    base_url: str, verb: str, path: str, expires_in_s: int, of: str, retry: Retry
) -> Flow[SignedLink]:
    document = {"verb": verb, "path": path, "expires_in": expires_in_s, "of": of}
    answer = yield from _post(base_url + LINK_PATH, document, retry, repeatable=True)
    return _decoded(answer, SignedLink)


def rotate_link_key(base_url: str, retry: Retry) -> Flow[None]:
    request = Request("POST", base_url + ROTATE_PATH, repeatable=True)
    yield from send(request, retry)


def _post(url: str, document: Any, retry: Retry, *, repeatable: bool) -> Flow[Answer]:
    body = msgspec.json.encode(document)
    request = Request("POST", url, {"Content-Type": JSON}, body=body, repeatable=repeatable)
    return (yield from send(request, retry))


def _decoded(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The server's answer about tokens cannot be decoded: {error}."
        ) from error
