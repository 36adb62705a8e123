"""The server, the stream and the token that a command uses.

A token is sent only to the server it belongs to. A flag wins over the environment, the environment
over the current context.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from penstock.cli import context_file
from penstock.cli.context_file import Context, Contexts, server_url
from penstock.cli.exits import HAS_TOKEN
from penstock.cli.system import read_if_present

if TYPE_CHECKING:
    import ssl

    from click.shell_completion import CompletionItem

    from penstock.client.retry import Retry
    from penstock.client.sync.client import Client
    from penstock.client.sync.stream import Stream
    from penstock.errors import PenstockError
    from penstock.stp.client.sync.notifier import Notifier
    from penstock.stp.client.sync.table import Table

ENV_URL: Final = "PENSTOCK_URL"
ENV_CACERT: Final = "PENSTOCK_CACERT"
ENV_TOKEN: Final = "PENSTOCK_TOKEN"  # noqa: S105 - the name of a variable
ENV_NOTIFY_SECRET: Final = "PENSTOCK_NOTIFY_SECRET"  # noqa: S105 - the name of a variable
URL_DEFAULT: Final = "http://127.0.0.1:4437"
COMPLETION_LIMIT: Final = 50
PATIENT_ATTEMPTS_MAX: Final = 40  # about three minutes, with the backoff


class Target(NamedTuple):
    """A stream: its server, and its path there or its full URL."""

    server: Context
    path: str


class Server:
    """The options --url, --token, --context and --cacert, with the environment and the contexts
    file."""

    def __init__(
        self,
        url: str | None,
        token: str | None,
        context: str | None,
        cacert: str | None = None,
    ) -> None:
        self._url = None if url is None else server_url(url)
        self._token = token
        self._context = context
        self.ca = cacert or os.environ.get(ENV_CACERT) or None

    @functools.cached_property
    def _contexts(self) -> Contexts:
        return context_file.load()

    def current(self) -> Context:
        """Return the current server: that of every stream name without a server of its own."""
        if self._url is not None:
            return Context(self._url, self._token_for(self._url))
        if self._context is not None:
            return self._named(self._context)
        if os.environ.get(ENV_URL):
            url = server_url(os.environ[ENV_URL], ENV_URL)
            return Context(url, self._token_for(url))
        if self._contexts.current is not None:
            context = self._contexts.get(self._contexts.current)
            return Context(context.url, self._token or os.environ.get(ENV_TOKEN) or context.token)
        return Context(URL_DEFAULT, self._token_for(URL_DEFAULT))

    @property
    def is_chosen(self) -> bool:
        """Whether anybody has named the current server: it is not the default one."""
        named = self._url, self._context, os.environ.get(ENV_URL), self._contexts.current
        return any(named)

    def target(self, name: str) -> Target:
        """Return the stream of a name: a URL, CONTEXT:PATH, or a path on the current server."""
        if not name.strip("/"):
            raise click.UsageError("The name is empty.")
        if name.startswith(("http://", "https://")):
            return Target(Context(_origin(name), self._token_for(name)), name)
        context, colon, path = name.partition(":")
        if colon and path and context in self._contexts.named:
            return Target(self._named(context), path)
        return Target(self.current(), name)

    @contextmanager
    def client(self, *, retry: Retry | None = None) -> Iterator[Client]:
        with _client(self.current(), retry, self.ca) as client:
            yield client

    @contextmanager
    def stream(self, name: str, *, retry: Retry | None = None) -> Iterator[Stream]:
        target = self.target(name)
        with _client(target.server, retry, self.ca) as client:
            yield client.stream(target.path)

    @contextmanager
    def table(self, name: str) -> Iterator[Table]:
        """Open the table of a name: a State URL, CONTEXT:PATH, or a path on the server."""
        from penstock.stp.client.sync.table import Table

        target = self.target(name)
        with _client(target.server, None, self.ca) as client:
            yield Table(client, target.path)

    @contextmanager
    def notifier(self, name: str) -> Iterator[tuple[Notifier, str]]:
        """Open a notifier, with the Notify URL of a name."""
        from penstock.stp.client.requests import notify_url
        from penstock.stp.client.sync.notifier import Notifier

        target = self.target(name)
        with _client(target.server, None, self.ca) as client:
            secret = os.environ.get(ENV_NOTIFY_SECRET) or None
            yield Notifier(client, secret=secret), notify_url(client.url, target.path)

    def _named(self, name: str) -> Context:
        context = self._contexts.get(name)
        return Context(context.url, self._token or context.token or self._unbound_token())

    def _token_for(self, url: str) -> str | None:
        if self._token is not None:
            return self._token
        for context in self._contexts.named.values():
            if _origin(context.url) == _origin(url) and context.token and not self._env_is_for(url):
                return context.token
        if self._env_is_for(url):
            return os.environ.get(ENV_TOKEN)
        return self._unbound_token()

    def _env_is_for(self, url: str) -> bool:
        """Whether the environment names this server, so that its token belongs to it."""
        env_url, token = os.environ.get(ENV_URL), os.environ.get(ENV_TOKEN)
        return bool(env_url and token) and _origin(env_url or "") == _origin(url)

    def _unbound_token(self) -> str | None:
        """Return the token of the environment unless PENSTOCK_URL binds it to a server."""
        return None if os.environ.get(ENV_URL) else os.environ.get(ENV_TOKEN)


def _client(context: Context, retry: Retry | None, ca: str | None) -> Client:
    from penstock.client.retry import Retry
    from penstock.client.sync.client import Client

    if context.token is not None:
        check_token(context.token)
    click_context = click.get_current_context(silent=True)
    if click_context is not None:
        click_context.meta[HAS_TOKEN] = context.token is not None
    return Client(
        context.url,
        token=context.token,
        # A person waits, so an unreachable server has to be reported soon.
        retry=retry or Retry(attempts_max=4),
        verify=trust(context.url, ca),
    )


def check_token(token: str) -> None:
    """Raise a usage error if the token cannot be sent in a header."""
    if not (token and token.isascii() and token.isprintable()):
        raise click.UsageError("A token consists of printable ASCII characters.")


def _token_of(file: str, token: str | None) -> str:
    """Return the token in a file."""
    if token is not None:
        raise click.UsageError("Use either --token or --token-file.")
    content = read_if_present(Path(file))
    if content is None:
        raise click.UsageError(f"--token-file: there is no file {file}.")
    text = content.decode("utf-8", "replace").strip()
    check_token(text)
    return text


def needs_certificates(url: str) -> bool:
    """Whether TLS may be used. Loading certificates takes a sixth of a short command's time."""
    proxied = any(name.lower().endswith("_proxy") for name in os.environ)
    return proxied or not url.startswith("http://")


def trust(url: str, ca: str | None) -> bool | ssl.SSLContext:
    """Return whom a client of `url` trusts: the authorities in the file `ca`, or the system's."""
    if ca is None or not needs_certificates(url):
        return needs_certificates(url)
    from penstock.client.http import trusting

    try:
        return trusting(ca)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise click.UsageError(f"The file {ca} of --cacert cannot be used: {reason}.") from None


def patient(stream: Stream) -> Stream:
    """Return the stream with a client that waits some minutes for a server that restarts.

    It is for work that is not repeated by hand.
    """
    from penstock.client.retry import Retry
    from penstock.client.sync.stream import Stream

    stream.client.retry = Retry(attempts_max=PATIENT_ATTEMPTS_MAX)
    return Stream(stream.client, stream.url, content_type=stream.content_type)


def outage_notes(say: Callable[[str], None]) -> Callable[[PenstockError | None], None]:
    """Return the function that tells a person of the begin and the end of an outage."""
    from penstock.cli.error_text import target_of
    from penstock.errors import ConnectionFailed

    server = "the server"

    def tell(error: PenstockError | None) -> None:
        nonlocal server
        if error is None:
            say(f"Connected to {server} again; nothing was missed.")
            return
        server = target_of(error.url).server if error.url else server
        if isinstance(error, ConnectionFailed):
            say(f"Lost the connection to {server}; trying again until it is back.")
        else:
            reason = (error.reason or error.detail).rstrip(".")
            say(f"{server} does not answer now: {reason}. Trying again until it does.")

    return tell


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def complete_context(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        names = context_file.load().named
    except click.ClickException:
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


def complete_stream(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete from the server's listing. A server that cannot be reached completes nothing."""
    from click.shell_completion import CompletionItem

    from penstock.client.retry import NO_RETRY
    from penstock.client.sync.client import Client
    from penstock.errors import PenstockError

    url, token, context, cacert = (
        ctx.params.get(name) for name in ("url", "token", "context", "cacert")
    )
    try:
        server = Server(url, token, context, cacert)
        current, ca = server.current(), server.ca
        options: dict[str, Any] = {"token": current.token, "verify": trust(current.url, ca)}
        with Client(current.url, timeout_s=1, retry=NO_RETRY, **options) as client:
            streams = list(client.list(incomplete, limit=COMPLETION_LIMIT))
    except (PenstockError, click.ClickException):
        return []
    return [CompletionItem(info.path) for info in streams]


def stream_argument(name: str = "stream", **options: Any) -> Callable[[Any], Any]:
    return click.argument(name, shell_complete=complete_stream, **options)


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a server to a command, whose first argument is a Server."""

    @functools.wraps(function)
    def command(
        *args: Any,
        url: str | None,
        token: str | None,
        token_file: str | None,
        context: str | None,
        cacert: str | None,
        **options: Any,
    ) -> Any:
        if token_file is not None:
            token = _token_of(token_file, token)
        return function(Server(url, token, context, cacert), *args, **options)

    wrapped: Callable[..., Any] = command
    for option in (
        click.option(
            "--cacert",
            metavar="FILE",
            help="PEM file with the authorities to trust in place of the system's.  "
            f"[env: {ENV_CACERT}]",
        ),
        click.option(
            "--context",
            metavar="NAME",
            shell_complete=complete_context,
            help="Name of the server; see `penstock context`.",
        ),
        click.option(
            "--token-file", metavar="FILE", help="File with the bearer token, instead of --token."
        ),
        click.option(
            "--token",
            metavar="TEXT",
            help="Bearer token. A flag is visible in the process list: prefer a context or the "
            f"environment variable.  [env: {ENV_TOKEN}]",
        ),
        click.option(
            "--url",
            metavar="URL",
            help=f"URL of the server.  [env: {ENV_URL}; default: the current context, or "
            f"{URL_DEFAULT}]",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
