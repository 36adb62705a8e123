"""The access dialect: stored tokens, signed links, and cookies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.access.links import Links
from penstock.access.rules import Verb
from penstock.access.tokens import TokenStore
from penstock.http.access.links import LINK, ROTATE, LinkResource
from penstock.http.access.sessions import SESSION, SessionResource
from penstock.http.access.tokens import PREFIX, TOKENS, TokenResource
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.endpoint import audited, authenticated, on_server, public, readable, ruled

if TYPE_CHECKING:
    from penstock.access.tokens import Token
    from penstock.http.openapi.model import Description


class AccessDialect(Dialect):
    """Await `load` before the first request."""

    def __init__(self, services: Services) -> None:
        settings, clock, access = services.settings, services.clock, services.access
        self.store = TokenStore(services.engine, settings, clock=clock)
        self.links = Links(self.store, settings, clock=clock)
        self._access = access
        self._tokens = TokenResource(self.store, access, clock=clock)
        self._link = LinkResource(self.links, access, settings)
        self._session = SessionResource(self.links, access, settings, clock=clock)
        access.add_bearer(self.store.find)
        access.link = self.links.link
        if settings.cookies:
            access.session = self.links.session

    def routes(self) -> Routes:
        tokens = {
            **readable(on_server(Verb.ADMIN, "tokens", self._tokens.get)),
            "POST": audited("token.create", on_server(Verb.ADMIN, "tokens", self._tokens.post)),
        }
        session = {
            **readable(ruled(self._session.get)),
            "POST": authenticated(self._session.post),
            "DELETE": public(self._session.delete),
        }
        return Routes(
            fixed={
                TOKENS: tokens,
                LINK: {"POST": authenticated(self._link.post)},
                ROTATE: {
                    "POST": audited(
                        "link.rotate", on_server(Verb.ADMIN, "links", self._link.rotate)
                    )
                },
                SESSION: session,
            },
            prefixes={
                PREFIX: {
                    "DELETE": audited(
                        "token.remove", on_server(Verb.ADMIN, "tokens", self._tokens.delete)
                    )
                }
            },
        )

    def describe(self) -> Description:
        from penstock.http.access.operations import describe

        return describe()

    def start(self) -> None:
        if self.store.exists:
            # Whoever has made tokens once does not mean to let everybody in.
            self._access.require()

    async def load(self) -> None:
        """Read the tokens back: without them nobody who has one could be let in."""
        if self.store.exists:
            await self.store.load()
            self.links.load()

    def adopt(self, tokens: list[Token], key: bytes | None, *, exists: bool) -> None:
        """Take over the credentials of the process that stores them, in place of those here."""
        self.store.adopt(tokens)
        self.links.adopt(key)
        if exists:
            self._access.require()

    def close(self) -> None:
        self.store.close()
