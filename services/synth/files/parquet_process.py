"""Reading Parquet in a process of its own, whose memory is limited.

A small file can unpack to any size: a value that its dictionary holds once may stand in a billion rows. What a user
uploads must not take the service's memory, which other organisations need.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from synth.datasets.parquet import ParquetUnreadable, parquet_lines
from synth.errors import Transient
from synth.runtime.child_process import end_child
from synth.runtime.environment.child_environment import child_environment

_PIECE_BYTES = 1 << 20
_UNREADABLE, _TOO_LARGE = 3, 4


async def read_parquet(file: Path, *, memory_bytes: int, most_bytes: int) -> AsyncIterator[bytes]:
    """The rows as JSONL, in pieces that may end anywhere. Raises `ParquetUnreadable`, and `Transient` where reading was
    ended from outside.

    memory_bytes: what the process may hold. most_bytes: of JSONL, of all rows.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "synth.files.parquet_process", str(file), str(memory_bytes)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=child_environment(),
        # A signal that ends this service is not one that ends the reading: it says nothing of the file.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.ensure_future(process.stderr.read())
    read = 0
    try:
        while piece := await process.stdout.read(_PIECE_BYTES):
            read += len(piece)
            if read > most_bytes:
                raise ParquetUnreadable(f"its rows are more than {most_bytes:,} bytes of JSONL: divide the file")
            yield piece
        code = await process.wait()
        if code == _UNREADABLE:
            raise ParquetUnreadable((await said).decode(errors="replace").strip())
        if code in (_TOO_LARGE, -signal.SIGABRT):
            fix = "write it with smaller groups of rows, or smaller values"
            raise ParquetUnreadable(f"to read its rows takes more than {memory_bytes:,} bytes of memory: {fix}")
        if code:
            raise Transient(
                f"the process that reads Parquet ended with {code}: {(await said).decode(errors='replace')}"
            )
    finally:
        await end_child(process)
        said.cancel()


def main() -> int:
    """`python -m synth.files.parquet_process FILE BYTES`: the rows on stdout."""
    file, memory = Path(sys.argv[1]), int(sys.argv[2])
    # Of memory that can be written to: libraries that are only mapped do not count.
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
