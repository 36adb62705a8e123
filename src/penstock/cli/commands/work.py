"""`penstock work`: claims the wakes of a subscription, runs a command for each, acknowledges."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.backoff import Backoff
from penstock.cli.connection import PATIENT_ATTEMPTS_MAX, Server, server_options
from penstock.cli.exits import FAILURE
from penstock.cli.system import is_program
from penstock.cli.terminal import printable
from penstock.cli.values import Name
from penstock.errors import AlreadyClaimed, Fenced, NoPendingWork, StreamTrimmed

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.subscriptions import Wake, Work
    from penstock.client.sync.stream import Stream
    from penstock.client.sync.subscription import Subscription

# Without jitter: a worker that fails alone has nobody to collide with.
BACKOFF: Final = Backoff(base_s=1.0, cap_s=60.0)
HEARTBEATS: Final = 3  # extensions of a lease before it would end


@click.command("work")
@click.argument("subscription", type=Name())
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND")
@click.option(
    "--worker", metavar="NAME", help="Name of this worker.  [default: host name and process id]"
)
@click.option("--once", is_flag=True, help="Stop when no wake is pending.")
@server_options
def command(
    server: Server, subscription: str, arguments: tuple[str, ...], worker: str | None, once: bool
) -> None:
    """Run COMMAND for each pending wake of SUBSCRIPTION, and wait for more.

    COMMAND gets the new messages of one stream on stdin, one JSON value per line (other streams:
    the bytes as they are). If it exits with 0, the messages are acknowledged. Otherwise, or if this
    worker dies, they are delivered again: each message is processed at least once. COMMAND has
    these environment variables: PENSTOCK_STREAM, PENSTOCK_OFFSET (before the first message),
    PENSTOCK_NEXT_OFFSET (after the last message) and PENSTOCK_GENERATION.

    Any number of workers can run. Each wake is leased to one of them at a time.

    \b
    Examples:
      penstock work jobs -- ./do-job
      penstock work jobs --once -- jq -c .id
    """
    from penstock.client.retry import Retry

    if not is_program(arguments[0]):  # before a wake is claimed
        raise click.UsageError(f"COMMAND {arguments[0]!r} is not a program that can be run.")
    # A worker keeps running while its server restarts.
    with server.client(retry=Retry(attempts_max=PATIENT_ATTEMPTS_MAX)) as client:
        name = worker or f"{platform.node()}-{os.getpid()}"
        loop = _Worker(client.subscription(subscription), arguments, name)
        if not loop.run(once=once):
            raise click.exceptions.Exit(FAILURE)


class _Worker:
    """Claims wakes one after the other and runs the command for each."""

    def __init__(self, subscription: Subscription, arguments: tuple[str, ...], worker: str) -> None:
        self._subscription = subscription
        self._client = subscription.client
        self._arguments = arguments
        self._worker = worker

    def run(self, *, once: bool) -> bool:
        """Work until interrupted, or with `once` until no wake is pending.

        Return whether the command succeeded for all of them.
        """
        info = self._subscription.show()
        if info.wake_stream is None:
            raise click.ClickException(
                "The subscription calls a webhook, so its wakes cannot be claimed."
            )
        wakes = self._client.stream(info.wake_stream)
        failures = 0
        while True:
            # The offset is read before the claim, so that no wake in between is missed.
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
            # A failing command is not repeated at once: the pause doubles.
            time.sleep(BACKOFF.wait_s(failures, 0.0))

    def _sleep(self, wakes: Stream, offset: str) -> None:
        """Wait for a wake of the subscription. Others may share its wake stream."""
        with wakes.follow(offset) as follow:
            for batch in follow:
                if any(_is_for(event, self._subscription.id) for event in batch.messages):
                    return
        raise click.ClickException("The wake stream is closed, so there will be no more wakes.")

    def _work(self, wake: Wake) -> bool:
        """Run the command for the streams of a wake. Return whether it succeeded."""
        try:
            for work in wake.pending:
                if not self._stream(wake, work):
                    self._subscription.release(wake)
                    return False
            self._subscription.ack(wake, done=True)
        except Fenced:
            _warn("The lease has expired. Another worker may have claimed the wake.")
        except BaseException:
            self._release(wake)
            raise
        return True

    def _release(self, wake: Wake) -> None:
        from penstock.errors import PenstockError

        try:
            self._subscription.release(wake)
        except PenstockError:
            pass  # the lease expires anyway

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
                _warn(f"{work.path} was trimmed before it was processed. Continuing at {earliest}.")
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
            _warn(
                f"The command exited with {code} for {work.path}. "
                "The messages will be delivered again."
            )
            return False
        self._subscription.ack(wake, {work.path: batch.next_offset})
        return True

    def _wait(self, process: subprocess.Popen[bytes], data: bytes, wake: Wake) -> int:
        """Wait for the command, and extend the lease meanwhile."""
        stdin: bytes | None = data
        while True:
            try:
                process.communicate(stdin, timeout=wake.lease_ttl_ms / 1000 / HEARTBEATS)
                return process.returncode
            except subprocess.TimeoutExpired:
                stdin = None
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
