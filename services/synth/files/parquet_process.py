"""Reading Parquet in a process of its own, whose memory is limited.

A small file can unpack to any size: a value that its dictionary holds once may stand in a billion rows. What a user
uploads must not take the service's memory, which other organisations need.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, cast

from synth.datasets.parquet import ParquetUnreadable, parquet_lines
from synth.errors import Transient
from synth.runtime.child_process import end_child
from synth.runtime.environment.child_environment import child_environment
from synth.sandbox.command import Limits, Sandbox, SandboxedProcess
from synth.sandbox.modes import code_roots

_PIECE_BYTES = 1 << 20
_UNREADABLE, _TOO_LARGE = 3, 4
#: Threads of pyarrow, beside the threads for each core.
_THREADS = 32


class ChildStreams(Protocol):
    """The output of a process."""

    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader


async def read_parquet(
    file: Path, *, memory_bytes: int, most_bytes: int, sandbox: Sandbox | None
) -> AsyncIterator[bytes]:
    """Yield the rows as JSONL, in pieces that may end anywhere. Raises `ParquetUnreadable`, and `Transient` if the
    process was killed from outside.

    memory_bytes: the memory limit of the process. most_bytes: of JSONL, of all rows. sandbox: in which the process
    runs.
    """
    command = [sys.executable, "-m", "synth.files.parquet_process", str(file), str(memory_bytes)]
    async with _started(command, file, sandbox) as (process, wait):
        stderr = asyncio.ensure_future(process.stderr.read())
        read = 0
        try:
            while piece := await process.stdout.read(_PIECE_BYTES):
                read += len(piece)
                if read > most_bytes:
                    raise ParquetUnreadable(f"its rows are more than {most_bytes:,} bytes of JSONL: divide the file")
                yield piece
            code = await wait()
            if code == _UNREADABLE:
                raise ParquetUnreadable((await stderr).decode(errors="replace").strip())
            if code in (_TOO_LARGE, -signal.SIGABRT):
                fix = "write it with smaller groups of rows, or smaller values"
                raise ParquetUnreadable(f"to read its rows takes more than {memory_bytes:,} bytes of memory: {fix}")
            if code:
                raise Transient(
                    f"the process that reads Parquet ended with {code}: {(await stderr).decode(errors='replace')}"
                )
        finally:
            stderr.cancel()


@asynccontextmanager
async def _started(
    command: list[str], file: Path, sandbox: Sandbox | None
) -> AsyncIterator[tuple[ChildStreams, Callable[[], Awaitable[int]]]]:
    """Start the process. Yields it with its output, and a function that waits for its exit code."""
    with tempfile.TemporaryDirectory(prefix="parquet-") as folder:
        if sandbox is not None:
            limits = Limits(seconds=None, memory_bytes=None, processes=_THREADS + 2 * (os.cpu_count() or 1))
            sandboxed = await SandboxedProcess.start(
                sandbox.mode,
                command,
                limits,
                folder=Path(folder).resolve(),
                environment=child_environment(),
                readable=[*code_roots(), file.resolve()],
            )

            async def code() -> int:
                report = await sandboxed.report()
                if report.refused:
                    raise Transient(f"the sandbox did not start: {report.refused}")
                return report.code

            try:
                yield sandboxed, code
            finally:
                await sandboxed.end()
            return
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=child_environment(),
            # In its own session: a signal that ends this service does not reach it, and is not taken for a fault of the
            # file.
            start_new_session=True,
        )
        try:
            yield cast(ChildStreams, process), process.wait
        finally:
            await end_child(process)


def main() -> int:
    """Run `python -m synth.files.parquet_process FILE BYTES`: writes the rows to stdout."""
    file, memory = Path(sys.argv[1]), int(sys.argv[2])
    # RLIMIT_DATA counts writable memory: libraries that are only mapped do not count.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    try:
        for piece in parquet_lines(file):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except ParquetUnreadable as error:
        short = isinstance(error.__cause__, MemoryError)
        sys.stderr.write(str(error))
        return _TOO_LARGE if short else _UNREADABLE
    except MemoryError:
        return _TOO_LARGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
