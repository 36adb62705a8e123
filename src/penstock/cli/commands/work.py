"""`penstock work`: claims what a pull-wake subscription has to be done, runs a command, acks."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import PATIENT_ATTEMPTS_MAX, Server, server_options
from penstock.cli.exits import FAILURE
from penstock.cli.terminal import printable
from penstock.errors import AlreadyClaimed, Fenced, NoPendingWork, StreamTrimmed

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.subscriptions import Wake, Work
    from penstock.client.sync.stream import Stream
    from penstock.client.sync.subscription import Subscription

PAUSE_FIRST_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
HEARTBEATS: Final = 3
"""Times that a lease is extended before it would end."""


@click.command("work")
@click.argument("subscription")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND")
@click.option("--worker", metavar="NAME", help="Name of this worker.  [default: host and process]")
@click.option("--once", is_flag=True, help="End when nothing is left to be done.")
@server_options
def command(
    server: Server, subscription: str, arguments: tuple[str, ...], worker: str | None, once: bool
) -> None:
    """Run COMMAND for what is new in the streams of SUBSCRIPTION, from now on.

    COMMAND gets the messages of one stream on its stdin, one JSON value a line (other streams: the
    bytes as they are). When it ends with 0 they are acked; otherwise, or when this worker dies,
    they are given out again: each message is processed at least once. Its environment says what
    it works on: PENSTOCK_STREAM, PENSTOCK_OFFSET (before the first message), PENSTOCK_NEXT_OFFSET
    (after the last) and PENSTOCK_GENERATION.

    Any number of workers may run; each piece of work is given to one of them at a time.

    \b
    Examples:
      penstock work jobs -- ./do-job
      penstock work jobs --once -- jq -c .id
    """
    from penstock.client.retry import Retry

    # A worker outlives a restart of its server.
    with server.client(retry=Retry(attempts_max=PATIENT_ATTEMPTS_MAX)) as client:
        name = worker or f"{platform.node()}-{os.getpid()}"
        loop = _Loop(client.subscription(subscription), arguments, name)
        if not loop.run(once=once):
            raise click.exceptions.Exit(FAILURE)


class _Loop:
    def __init__(self, subscription: Subscription, arguments: tuple[str, ...], worker: str) -> None:
        self._subscription = subscription
        self._client = subscription.client
        self._arguments = arguments
        self._worker = worker

    def run(self, *, once: bool) -> bool:
        """Until interrupted, or with `once` until nothing is left; whether all went well."""
        info = self._subscription.show()
        if info.wake_stream is None:
            raise click.ClickException(
                "the subscription calls a webhook; there is nothing to claim"
            )
        wakes = self._client.stream(info.wake_stream)
        failures = 0
        while True:
            # Before the claim: a wake that comes in between is not slept through.
            offset = wakes.head().offset
            try:
                wake = self._subscription.claim(self._worker)
            except (NoPendingWork, AlreadyClaimed):
                if once:
                    return True
                self._sleep(wakes, offset)
                continue
            if self._work(wake):
                failures = 0
                continue
            if once:
                return False
            failures += 1
            # A command that fails is not run again at once: the pause doubles.
            time.sleep(min(PAUSE_FIRST_S * 2.0 ** min(failures - 1, 30), PAUSE_MAX_S))

    def _sleep(self, wakes: Stream, offset: str) -> None:
        """Until the subscription is woken; others may share its wake stream."""
        with wakes.follow(offset) as follow:
            for batch in follow:
                if any(_is_for(event, self._subscription.id) for event in batch.messages):
                    return
        raise click.ClickException("the wake stream was closed; nobody will be woken any more")

    def _work(self, wake: Wake) -> bool:
        """Do what a wake names; whether the command did."""
        try:
            for work in wake.pending:
                if not self._stream(wake, work):
                    self._subscription.release(wake)
                    return False
            self._subscription.ack(wake, done=True)
        except Fenced:
            _warn("the lease has run out; another worker may have the work")
        except BaseException:
            self._give_back(wake)
            raise
        return True

    def _give_back(self, wake: Wake) -> None:
        from penstock.errors import PenstockError

        try:
            self._subscription.release(wake)
        except PenstockError:
            pass  # the lease ends by itself

    def _stream(self, wake: Wake, work: Work) -> bool:
        stream = self._client.stream(work.path)
        offset = work.acked_offset
        while True:
            try:
                for batch in stream.iter_batches(offset, until=work.tail_offset, decode=False):
                    if batch.data and not self._batch(wake, work, batch):
                        return False
                return True
            except StreamTrimmed as error:
                earliest = error.headers.get("Stream-Earliest-Offset")
                if earliest is None or earliest >= work.tail_offset:
                    self._subscription.ack(wake, {work.path: work.tail_offset})
                    return True
                _warn(f"{work.path} was trimmed before it was processed; going on at {earliest}")
                offset = earliest

    def _batch(self, wake: Wake, work: Work, batch: Batch) -> bool:
        environ = {
            **os.environ,
            "PENSTOCK_STREAM": work.path,
            "PENSTOCK_OFFSET": batch.offset,
            "PENSTOCK_NEXT_OFFSET": batch.next_offset,
            "PENSTOCK_GENERATION": str(wake.generation),
        }
        process = subprocess.Popen(self._arguments, stdin=subprocess.PIPE, env=environ)
        try:
            code = self._wait(process, _lines(batch), wake)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code:
            _warn(f"the command ended with {code} for {work.path}; giving the work back")
            return False
        self._subscription.ack(wake, {work.path: batch.next_offset})
        return True

    def _wait(self, process: subprocess.Popen[bytes], data: bytes, wake: Wake) -> int:
        """Until the command has ended, extending the lease meanwhile."""
        given: bytes | None = data
        while True:
            try:
                process.communicate(given, timeout=wake.lease_ttl_ms / 1000 / HEARTBEATS)
                return process.returncode
            except subprocess.TimeoutExpired:
                given = None
                self._subscription.ack(wake)


def _is_for(event: Any, id: str) -> bool:
    return isinstance(event, dict) and event.get("subscription_id") == id


def _lines(batch: Batch) -> bytes:
    from penstock.protocol.headers import is_json

    if not is_json(batch.content_type):
        return batch.data
    import msgspec

    messages = msgspec.json.decode(batch.data, type=list[msgspec.Raw])
    return b"".join(bytes(message) + b"\n" for message in messages)


def _warn(text: str) -> None:
    click.echo(printable(f"penstock work: {text}"), err=True)
