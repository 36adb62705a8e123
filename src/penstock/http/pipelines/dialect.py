"""The pipeline dialect: what the pipelines beside this server do, and queries over their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.endpoint import audited, on_server, readable
from penstock.http.openapi.model import Description
from penstock.http.pipelines.resource import BELOW, LIST, PREFIX, PipelineResource

if TYPE_CHECKING:
    from penstock.http.message import Request

NAME = "pipelines"


class PipelineDialect(Dialect):
    def __init__(self, services: Services) -> None:
        self._resource = PipelineResource(services.settings)

    def routes(self) -> Routes:
        resource = self._resource
        return Routes(
            fixed={LIST: readable(on_server(Verb.READ, NAME, resource.listing))},
            prefixes={
                PREFIX: {
                    **readable(on_server(Verb.READ, NAME, resource.get)),
                    "POST": audited(_action, on_server(Verb.ADMIN, NAME, resource.post)),
                }
            },
            below={PREFIX: BELOW},
        )

    def describe(self) -> Description:
        from penstock.http.pipelines.operations import describe

        return describe()

    def close(self) -> None:
        self._resource.close()


def _action(request: Request) -> str:
    """Return the action of a POST in the audit log."""
    return "pipeline.query" if request.path.endswith(b"/sql") else "pipeline.replay"
