"""Commands of `penstock pipeline` as processes: few at a time, with limits for time and output.

A process of its own keeps Spark's packages and the memory of queries out of the server, and can be
ended. Knows nothing of what the commands do.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Final

from penstock.errors import Overloaded, PipelineFailed

if TYPE_CHECKING:
    from penstock.config.settings import Settings

OUTPUT_BYTES_MAX: Final = 16 * 1024 * 1024
ERROR_BYTES_MAX: Final = 64 * 1024
WAITING_MAX: Final = 16
PIECE_BYTES: Final = 64 * 1024


class PipelineCommands:
    """Runs commands; the others wait."""

    def __init__(self, settings: Settings) -> None:
        self._timeout_s = settings.pipelines_timeout_s
        self._slots = asyncio.Semaphore(settings.pipelines_commands_max)
        self._waiting = 0

    async def run(self, command: str, *options: str, file: str, stdin: bytes = b"") -> bytes:
        """Return what a command prints; PipelineFailed has its message if it fails.

        The process is ended when this is cancelled: the client has left.
        """
        if self._waiting >= WAITING_MAX:
            raise Overloaded(
                "Too many requests about pipelines are waiting; try again.", Retry_After="2"
            )
        self._waiting += 1
        try:
            async with self._slots:
                return await self._run([command, *options, "--", file], stdin)
        finally:
            self._waiting -= 1

    async def _run(self, arguments: list[str], stdin: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "penstock.cli", "pipeline", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                output, message = await _communicate(process, stdin)
                code = await process.wait()
        except TimeoutError:
            raise PipelineFailed(
                f"`penstock pipeline {arguments[0]}` took longer than the "
                f"{self._timeout_s:g} seconds of pipelines_timeout_s. Run it on the command line, "
                "or raise the setting."
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                # Shielded: a second cancellation must not leave a process behind.
                await asyncio.shield(process.wait())
        if code != 0:
            raise PipelineFailed(_reason(message, code))
        return output


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(ConnectionError):  # it has ended without reading all of it
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_read(process.stdout, OUTPUT_BYTES_MAX))
        message = group.create_task(_read(process.stderr, ERROR_BYTES_MAX))
    if len(output.result()) > OUTPUT_BYTES_MAX:
        raise PipelineFailed(
            f"The command printed more than {OUTPUT_BYTES_MAX} bytes. Run it on the command line."
        )
    return output.result(), message.result()


async def _read(pipe: asyncio.StreamReader, size: int) -> bytes:
    """Return everything, or a little more than `size` bytes."""
    data = bytearray()
    while len(data) <= size and (piece := await pipe.read(PIECE_BYTES)):
        data += piece
    return bytes(data)


def _reason(message: bytes, code: int) -> str:
    """Return the last line that a command has printed, without its prefix."""
    lines = message.decode("utf-8", "replace").strip().splitlines()
    text = lines[-1].removeprefix("Error: ") if lines else ""
    return text or f"The command ended with exit code {code}, and has not said why."
