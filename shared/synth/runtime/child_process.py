"""Ends a process that we started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import cast


async def end_child(process: asyncio.subprocess.Process, *, group: bool = False) -> None:
    """Kill a process if it has not ended, and return when it is gone. Output that was not read by then is lost.

    group: whether the processes of its group are killed, too; it was started with `start_new_session`.

    The pipes are closed from this side. In Python before 3.12.5, waiting for the end of a process includes the end of
    its pipes (https://github.com/python/cpython/issues/119710), which never comes if a reader is full, or if another
    process has kept the other end.
    """
    with contextlib.suppress(ProcessLookupError):
        if group:
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            process.kill()
    # `asyncio` names no other way to them.
    transport = cast(asyncio.SubprocessTransport, process._transport)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    for fd in range(3):
        if pipe := transport.get_pipe_transport(fd):
            pipe.close()
    await process.wait()
