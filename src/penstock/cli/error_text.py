"""Errors as one line for a person at the command line: commands and options, not HTTP.

Knows the errors of the clients and the names of commands; prints nothing.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from penstock import errors
from penstock.errors import ConnectionFailed, PenstockError

_TARGET: Final = re.compile(
    r"(?P<server>https?://[^/]+(?:/.*?)??)"
    r"(?:/v1/(?:stream/__ds/(?P<kind>subscriptions)|stream|state|schema|table|follow|notify)"
    r"/(?P<name>.+?)(?:/__ds/[^/]+)?"
    r"|/v1/[a-z]+(?:/[^/]+)?)?/?",
)
_NAME: Final = r"([^\s,;]+?)(?=[.,;]?(?:\s|$))"
# Advice of servers, which name requests, as commands.
_COMMANDS: Final = tuple(
    (re.compile(pattern), command)
    for pattern, command in (
        (r"(?<=[:;.] )(?=(?:PUT|DELETE) (?:\w+ \w+ to )?/v1/)", "run "),
        (rf"PUT (?:a declaration to )?/v1/schema/{_NAME}", r"`penstock schema set \1 FILE`"),
        (rf"PUT /v1/table/{_NAME}", r"`penstock table create \1`"),
        (rf"PUT a surl to /v1/follow/{_NAME}", r"`penstock stp follow SURL --into \1`"),
        (rf"DELETE /v1/follow/{_NAME}", r"`penstock stp unfollow \1`"),
        (
            rf"PUT one to /v1/stream/__ds/subscriptions/{_NAME}",
            r"`penstock subscription create \1`",
        ),
        (rf"DELETE its stream, /v1/stream/{_NAME}", r"delete its stream with `penstock rm \1`"),
        (r"DELETE the stream", "delete the stream with `penstock rm`"),
        (r"Send the existing values, use another path, or delete the stream first\.", ""),
        (r"A stream exists at this path with", "The stream exists with"),
        (r"Send its Stream-Fork-Offset, use another path", "Set --at, use another name"),
        (r"Send Stream-Forked-From, use another path", "Use another name"),
        (r"the request wants ", "not "),
        (r"Stream-Expires-At", "--expires-at"),
        (r"Stream-TTL", "--ttl"),
        (r"Stream-Fork-Offset", "--at"),
        (r"Stream-Fork-Sub-Offset", "--skip"),
        (r"Producer-Id", "--producer"),
        (r"Content-Type", "content type"),
    )
)


_NO_ATTEMPT_WORKED: Final = "All connection attempts failed"  # of asyncio, for every address


class Target(NamedTuple):
    """What a URL names: a server, and what it has at this path, if that is named."""

    server: str
    name: str
    is_subscription: bool = False


def message_of(error: PenstockError, *, has_token: bool = False) -> str:
    """Return what is wrong and what to do, in one line."""
    from penstock.client.answers import WEB_PAGE  # late: it loads msgspec

    if isinstance(error, ConnectionFailed):
        return _unreachable(error)
    if error.url is None:
        return error.detail
    if error.reason is not None and error.reason.startswith(WEB_PAGE):
        return error.reason
    target = target_of(error.url)
    for cls, describe in _BY_CLASS:
        if isinstance(error, cls):
            return describe(error, target, has_token)
    return with_commands(error.reason or error.detail)


def with_commands(text: str) -> str:
    """Return the text of a server with commands and options in place of requests and headers."""
    for pattern, command in _COMMANDS:
        text = pattern.sub(command, text)
    text = text.strip()
    # A command may have replaced the first word. The name of a field stays as it is written.
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def target_of(url: str) -> Target:
    match = _TARGET.fullmatch(url.partition("?")[0])
    if match is None:
        parts = urlsplit(url)
        return Target(f"{parts.scheme}://{parts.netloc}", "")
    name = unquote(match["name"] or "")
    if match["kind"] is None:
        return Target(match["server"], name)
    return Target(match["server"], name.partition("/")[0], is_subscription=True)


def _not_found(error: PenstockError, target: Target, has_token: bool) -> str:
    unseen = _unseen(has_token)
    if target.is_subscription:
        return (
            f"There is no subscription {target.name} on {target.server}{unseen}; "
            "`penstock subscription ls` lists them."
        )
    if not target.name:
        # A part of the server that it keeps in a stream: what it says is about that part.
        return error.reason or f"There is no stream at {without_link(error.url or '')}{unseen}."
    return f"There is no stream {target.name} on {target.server}{unseen}; `penstock ls` lists them."


def _unseen(has_token: bool) -> str:
    """Return what else may be the reason that something is not there."""
    return ", or the token may not see it" if has_token else ""


def without_link(url: str) -> str:
    """Return a URL without its query, which may be a credential."""
    return url.partition("?")[0]


def _no_token(error: PenstockError, target: Target, has_token: bool) -> str:
    id = unquote(without_link(error.url or "").rpartition("/")[2])
    return f"There is no token {id} on {target.server}; `penstock token ls` lists them."


def _no_table(error: PenstockError, target: Target, has_token: bool) -> str:
    if not target.name:
        return f"There is no table at {without_link(error.url or '')}{_unseen(has_token)}."
    return (
        f"There is no table {target.name} on {target.server}{_unseen(has_token)}; "
        f"`penstock table create {target.name}` creates it."
    )


def _no_route(error: PenstockError, target: Target, has_token: bool) -> str:
    path = urlsplit(target.server).path
    if path:
        return (
            f"No streams are served below {target.server}. A server is named without a path unless "
            f"it is mounted there: try --url {target.server.removesuffix(path)}"
        )
    if target.name.partition("/")[0] == "__ds":
        return "Names that begin with __ds are reserved for the server."
    return f"{target.server} has no such function. It may be an older or another server."


def _not_allowed(error: PenstockError, target: Target, has_token: bool) -> str:
    return f"{target.server} cannot do that. Only Penstock servers can."


def _closed(error: PenstockError, target: Target, has_token: bool) -> str:
    successor = error.headers.get("Stream-Successor", "").removeprefix("/v1/stream/")
    advice = f" It continues in {successor}: append there." if successor else ""
    return f"{target.name or target.server} is closed: nothing can be appended to it.{advice}"


def _recreated(error: PenstockError, target: Target, has_token: bool) -> str:
    return (
        f"This offset is of an earlier stream {target.name}, which was deleted. Another one has "
        "its name now: start again from `start`."
    )


def _bad_offset(error: PenstockError, target: Target, has_token: bool) -> str:
    first = (error.reason or "This is not an offset").partition(". ")[0].rstrip(".")
    return f"{first}. Use one that a command has printed, `start` or `end`."


def _unauthorized(error: PenstockError, target: Target, has_token: bool) -> str:
    if "?" in (error.url or "") and "The link " in (error.reason or ""):
        return f"{target.server} refuses this URL: {_first_sentence(error)}"
    if has_token:
        reason = _first_sentence(error)
        advice = reason if reason.startswith("The token ") else "Is it the one of that server?"
        return f"{target.server} refuses this token. {advice}"
    return (
        f"{target.server} needs a token: set PENSTOCK_TOKEN, or store it with "
        f"`penstock context add NAME {target.server} --token-stdin --use`."
    )


def _first_sentence(error: PenstockError) -> str:
    return f"{(error.reason or '').partition('. ')[0].rstrip('.')}."


def _forbidden(error: PenstockError, target: Target, has_token: bool) -> str:
    who = "This token" if has_token else "You"
    verb, path = getattr(error, "verb", ""), getattr(error, "path", "")
    if not verb and error.method == "HEAD" and type(error) is errors.Forbidden:
        verb, path = "read", target.name  # An answer to HEAD has no text.
    if error.method == "POST" and (error.url or "").endswith(("/v1/tokens", "/v1/link")):
        return with_commands(error.reason or error.detail)  # It is about passing something on.
    if verb and path:
        return (
            f"{who} may not {verb} {path} on {target.server}: that takes a token with the rule "
            f"{verb}:{path} (see `penstock token create`)."
        )
    if verb:
        return f"{who} may not {verb} anything on {target.server}."
    return with_commands(error.reason or error.detail)


# The first matching class decides.
_BY_CLASS: Final = (
    (errors.TableNotFound, _no_table),
    (errors.SubscriptionNotFound, _not_found),
    (errors.StreamNotFound, _not_found),
    (errors.RouteNotFound, _no_route),
    (errors.MethodNotAllowed, _not_allowed),
    (errors.StreamClosed, _closed),
    (errors.StreamRecreated, _recreated),
    (errors.InvalidOffset, _bad_offset),
    (errors.InvalidToken, lambda error, target, has_token: error.reason or error.detail),
    (errors.Unauthorized, _unauthorized),
    (errors.TokenNotFound, _no_token),
    (errors.NotAllowed, _forbidden),
    (errors.Forbidden, _forbidden),
)


def _unreachable(error: ConnectionFailed) -> str:
    """Return why there was no answer, and what may help."""
    import socket
    import ssl

    from penstock.client.http import NO_TLS_REASONS, root_cause

    server = target_of(error.url or "").server
    host = urlsplit(server).netloc
    cause = root_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"The certificate of {host} is not trusted: {cause.verify_message.rstrip('.')}. If it "
            "is right, name the file of its authority with --cacert, or in the environment "
            "variable SSL_CERT_FILE."
        )
    if isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS_REASONS:
        return f"{host} does not speak TLS: use http:// instead of https://."
    if isinstance(cause, socket.gaierror):
        return (
            f"The name {urlsplit(server).hostname} cannot be resolved. Is the URL right ({server})?"
        )
    if isinstance(cause, ConnectionRefusedError) or error.reason == _NO_ATTEMPT_WORKED:
        return (
            f"No server answers at {server}. Is it running (`penstock serve`), and is the URL "
            "right (--url, --context)?"
        )
    reason = (error.reason or error.detail).rstrip(".")
    if type(error.__cause__).__name__ == "RemoteProtocolError" and server.startswith("http://"):
        reason = "it closed the connection or did not answer in HTTP"
        hint = "If it speaks TLS, use https:// instead of http://."
    elif type(error.__cause__).__name__.endswith("Timeout"):
        reason, hint = "it did not answer in time", "Is it overloaded, or behind a firewall?"
    else:
        hint = "Is it running, and is the URL right (--url, --context)?"
    text = f"No answer from {server}: {reason}. {hint}"
    if error.sent and error.method == "POST":
        text += " It is not known whether the messages were stored: --producer makes that safe."
    return text
