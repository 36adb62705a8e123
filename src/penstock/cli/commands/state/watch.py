"""`penstock state watch`: shows a live state that follows its stream, as a table or one change per
line."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.commands.state.screen import Screen, output
from penstock.cli.connection import Server, outage_notes, server_options, stream_argument
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import has_cursor, note
from penstock.cli.text import amount
from penstock.cli.values import offset_of

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream
    from penstock.state.live.changes import StateBatch
    from penstock.state.live.sync.state import LiveState


@click.command("watch")
@stream_argument()
@click.option("--type", "type", metavar="TEXT", help="Only entities of this type.")
@click.option("--key", metavar="TEXT", help="Only this entity; needs --type.")
@click.option("--prefix", metavar="TEXT", help="Only keys that start with TEXT; needs --type.")
@click.option(
    "--at",
    metavar="OFFSET",
    default="end",
    help="Start with the state at this offset, or at `start`.  [default: the current state]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change.")
@server_options
def watch(
    server: Server,
    stream: str,
    type: str | None,
    key: str | None,
    prefix: str | None,
    at: str,
    as_json: bool,
) -> None:
    """Show a state and follow it until the stream is closed, or until Ctrl-C.

    On a terminal, the output is a table: green entities are new, yellow ones have changed, red ones
    were deleted. Elsewhere, each change is a line as in `diff`: `+` is a new entity, `-` a deleted
    one, `~` one with another value. The command waits for a server that restarts, and no change is
    lost or repeated.

    --json prints type, key, operation, old, new and offset of each change. `old` or `new` is
    omitted if the entity did not or does not exist. A reset is a change of every entity it deletes.

    \b
    Examples:
      penstock state watch team
      penstock state watch team --type user --prefix a
      penstock state watch team --json --at start | jq -c '[.key, .new]'
    """
    if type is None and (key is not None or prefix is not None):
        raise click.UsageError("--key and --prefix need --type.")
    if key is not None and prefix is not None:
        raise click.UsageError("Set either --key or --prefix.")
    # A failure is reported once, by the command.
    logging.getLogger("penstock.state").addHandler(logging.NullHandler())
    with server.stream(stream) as remote, broken_pipe_noticed():
        remote.head()  # a server that is not there is an error, and not waited for
        state = _live_state(remote, type, key, prefix, offset_of(at))
        with output(stream, as_json=as_json) as screen:
            _follow(state, screen)
    if state.skipped:
        verb = "is not an event" if state.skipped == 1 else "are not events"
        note(f"{amount(state.skipped, 'message')} {verb}")


def _live_state(
    remote: Stream, type: str | None, key: str | None, prefix: str | None, at: str
) -> LiveState:
    from penstock.state.live.sync.state import LiveState

    return LiveState(
        remote,
        type=type,
        key=key,
        prefix=prefix,
        at=at,
        on_invalid=lambda _: None,
        # A note would be in the middle of a table.
        on_outage=None if has_cursor(sys.stdout) else outage_notes(note),
    )


def _follow(state: LiveState, screen: Screen) -> None:
    """Show each batch in the thread that follows the stream: a slow output slows the reader."""
    failures: list[BaseException] = []
    url = state.stream_url

    def show(batch: StateBatch) -> None:
        nonlocal url
        try:
            screen.show(batch.changes, batch.offset)
            if batch.url != url:
                url = batch.url
                note(f"The stream redirects to {url}.")
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            failures.append(error)
            state.close()

    state.on_batch(show)
    with state:
        try:
            state.wait_end()
        finally:
            if failures:
                raise failures[0]
