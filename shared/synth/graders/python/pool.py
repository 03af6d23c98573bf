"""Runs sources of graders, each grading in a process of its own, so many at one time.

What bounds a process is its time, its memory and its output. Nothing keeps it from files, the network or the other
processes of its user: see `synth.graders.python.settings`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from synth.graders.python.settings import PythonPoolSettings
from synth.runtime.child_process import end_child

_CHILD = Path(__file__).with_name("child.py")
_OUTPUT_BYTES = 1 << 16


class PythonFailed(Exception):
    """A source gave no score; the message says why."""


class PythonPool:
    """Processes for sources. at_once: how many; timeout_s: of one grading, the start of its process included."""

    def __init__(self, *, at_once: int, timeout_s: float, memory_bytes: int) -> None:
        self._rooms = asyncio.Semaphore(at_once)
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes

    async def grade(self, source: str, sample: dict[str, Any], item: Any) -> float:
        """The score, a finite number. Raises `PythonFailed`."""
        task = {
            "source": source,
            "sample": sample,
            "item": item,
            "memory_bytes": self._memory_bytes,
            # One second more: the time that is told of is the other one.
            "cpu_s": math.ceil(self._timeout_s) + 1,
        }
        body = await asyncio.to_thread(msgspec.json.encode, task)
        async with self._rooms:
            said = await self._run(body)
        try:
            answer = msgspec.json.decode(said, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise PythonFailed("its process ended without an answer, as one that is killed does") from error
        if "error" in answer:
            raise PythonFailed(answer["error"])
        try:
            score = float(answer["score"])
        except (KeyError, ValueError) as error:
            raise PythonFailed("its process answered something else than a score") from error
        if not math.isfinite(score):
            raise PythonFailed(f"it returned {score}, which is no score")
        return score

    async def _run(self, body: bytes) -> bytes:
        with tempfile.TemporaryDirectory(prefix="grader-") as folder:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(_CHILD),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=folder,
                # Neither the keys of this service, nor anything else of its environment.
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                async with asyncio.timeout(self._timeout_s):
                    with contextlib.suppress(ConnectionError):
                        process.stdin.write(body)
                        await process.stdin.drain()
                        process.stdin.close()
                    return await _read(process.stdout)
            except TimeoutError as error:
                raise PythonFailed(
                    f"it did not end within {self._timeout_s:g} s (SYNTH_PYTHON_GRADER_TIMEOUT_S)"
                ) from error
            finally:
                # Also what it has started.
                await end_child(process, group=True)


def open_pool(settings: PythonPoolSettings) -> PythonPool | None:
    """The pool of a service; None where the operator has not allowed graders that are code."""
    if not settings.python_graders:
        return None
    return PythonPool(
        at_once=settings.python_graders_at_once,
        timeout_s=settings.python_grader_timeout_s,
        memory_bytes=settings.python_grader_memory_bytes,
    )


async def _read(stream: asyncio.StreamReader) -> bytes:
    said = b""
    while piece := await stream.read(_OUTPUT_BYTES):
        said += piece
        if len(said) > _OUTPUT_BYTES:
            raise PythonFailed(f"it answered more than {_OUTPUT_BYTES:,} bytes")
    return said
