"""`penstock proxy`: runs a server that records the responses of the servers it may call."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.commands import serve
from penstock.cli.options import SettingsCommand, resolved, setting_flags


@click.command("proxy", cls=SettingsCommand)
@click.option(
    "--upstream",
    "upstreams",
    metavar="URL [HEADER=VARIABLE]",
    multiple=True,
    help="A server that may be called, as a URL that every called URL begins with. A header with "
    "the environment variable of its value is added to each request: "
    "'https://api.openai.com/v1 authorization=OPENAI_API_KEY'. May be repeated.",
)
@setting_flags
def command(upstreams: tuple[str, ...], **options: Any) -> None:
    """Run a server that records streaming responses of other servers, such as language models.

    POST a request to /v1/proxy/PATH with the URL to call in the header Upstream-URL: the answer is
    that of the upstream, and the stream PATH records it as it arrives. It is the same server as
    `penstock serve --proxy-upstreams …`.
    """
    if upstreams:
        more = options["proxy_upstreams"]
        options["proxy_upstreams"] = ",".join([*upstreams, *([more] if more else [])])
    settings = resolved(options).settings
    if not settings.proxy_upstreams:
        raise click.UsageError("Name a server that may be called: --upstream https://api.example.")
    named = ", ".join(text.split()[0] for text in settings.proxy_upstreams)
    serve.run(settings, note=f"It records responses of {named} at /v1/proxy/PATH")
