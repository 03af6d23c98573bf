"""A child process is ended, whatever it or its own children hold."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from synth.runtime.child_process import end_child

_WRITES = "import os\nwhile True: os.write(1, bytes(1 << 20))"
# What it has started keeps its stdout, in a group of its own; it lives itself, too.
_LEAVES = (
    "import subprocess, time\n"
    "print(subprocess.Popen(['sleep', '100'], start_new_session=True).pid, flush=True)\n"
    "time.sleep(100)"
)


async def _started(program: str, *, limit: int = 1 << 16) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=pipe, stderr=pipe, limit=limit, start_new_session=True
    )


@pytest.mark.parametrize("group", [False, True])
async def test_a_process_ends_that_wrote_more_than_its_reader_holds(group: bool):
    process = await _started(_WRITES, limit=1 << 10)
    assert process.stdout is not None
    assert await process.stdout.read(1)
    async with asyncio.timeout(20):
        await end_child(process, group=group)
    assert process.returncode is not None


async def test_a_process_ends_whose_pipe_another_one_has_kept():
    process = await _started(_LEAVES)
    assert process.stdout is not None
    left = int(await process.stdout.readline())
    try:
        async with asyncio.timeout(20):
            await end_child(process)
        assert process.returncode is not None
    finally:
        os.kill(left, signal.SIGKILL)


async def test_a_process_that_has_ended_may_be_ended_again():
    process = await _started("print('done')")
    await process.wait()
    async with asyncio.timeout(20):
        await end_child(process, group=True)
        await end_child(process)
    assert process.returncode == 0
