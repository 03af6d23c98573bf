"""Renders the rows of a file in a process of its own: a template is code that runs for each row, and takes the CPU."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import msgspec

from synth.chat.template_source import RenderOptions
from synth.datasets.render_check import RenderCheck
from synth.errors import Transient
from synth.events import LineProblem
from synth.runtime.child_process import end_child
from synth.runtime.environment.child_environment import child_environment

_PIECE_BYTES = 1 << 20
_problems = msgspec.json.Decoder(list[LineProblem])


async def render_rows(pieces: AsyncIterator[bytes], options: RenderOptions) -> list[LineProblem]:
    """Return the first bad lines of a file. Raises `Transient` if the process was ended from outside."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synth.verifier.render_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=child_environment(),
        # A signal that ends this service does not describe the file.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    reply = asyncio.ensure_future(process.stdout.read())
    try:
        # The process ends before the file does once enough lines are bad.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(msgspec.json.encode(options) + b"\n")
            async for piece in pieces:
                process.stdin.write(piece)
                await process.stdin.drain()
            process.stdin.close()
        body = await reply
        if code := await process.wait():
            raise Transient(f"the process that renders rows ended with {code}")
        return _problems.decode(body)
    finally:
        await end_child(process)
        reply.cancel()


def main() -> int:
    """Run `python -m synth.verifier.render_process`: options and rows on stdin, the bad lines on stdout as JSON."""
    os.nice(10)
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=RenderOptions)
    check = RenderCheck(options)
    while not check.full and (piece := sys.stdin.buffer.read(_PIECE_BYTES)):
        check.feed(piece)
    sys.stdout.buffer.write(msgspec.json.encode(check.finish()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
