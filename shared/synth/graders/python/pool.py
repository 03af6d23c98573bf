"""Run sources of graders in the sandbox, each grading in its own process, with a limit on concurrent ones."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import msgspec

from synth.errors import Transient
from synth.graders.python.settings import PythonPoolSettings
from synth.sandbox.command import Limits, Result, Sandbox, SandboxRefused

_CHILD = Path(__file__).with_name("child.py")
_OUTPUT_BYTES = 1 << 16


class PythonFailed(Exception):
    """A source gave no score; the message has the reason."""


class PythonPool:
    """A limited number of concurrent gradings in the sandbox. settings: the limits of each, its start included."""

    def __init__(self, sandbox: Sandbox, settings: PythonPoolSettings) -> None:
        self._sandbox = sandbox
        self._slots = asyncio.Semaphore(settings.python_graders_at_once)
        self._limits = Limits(
            seconds=settings.python_grader_timeout_s,
            # One second more: the error names the other time.
            cpu_s=math.ceil(settings.python_grader_timeout_s) + 1,
            map_bytes=settings.python_grader_memory_bytes,
            memory_bytes=settings.python_grader_memory_bytes,
            processes=settings.python_grader_processes,
            disk_bytes=settings.python_grader_disk_bytes,
            output_bytes=_OUTPUT_BYTES,
        )

    async def grade(self, source: str, sample: dict[str, Any], item: Any) -> float:
        """Return the finite score of a source. Raises `PythonFailed`, or `Transient` if the sandbox did not start."""
        task = {"source": source, "sample": sample, "item": item}
        body = await asyncio.to_thread(msgspec.json.encode, task)
        async with self._slots:
            try:
                command = [sys.executable, "-I", str(_CHILD)]
                result = await self._sandbox.run({}, command, self._limits, stdin=body, readable=[_CHILD])
            except (SandboxRefused, OSError) as error:
                raise Transient(f"the sandbox of a python grader did not start: {error}") from error
        if result.ended != "exit":
            raise PythonFailed(self._exceeded(result))
        try:
            answer = msgspec.json.decode(result.output, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise PythonFailed("its process ended without an answer, as one that is killed does") from error
        if "error" in answer:
            raise PythonFailed(answer["error"])
        try:
            score = float(answer["score"])
        except (KeyError, ValueError) as error:
            raise PythonFailed("its process answered something else than a score") from error
        if not math.isfinite(score):
            raise PythonFailed(f"it returned {score}, which is not a score")
        return score

    def _exceeded(self, result: Result) -> str:
        limits = self._limits
        if result.ended == "time":
            return f"it did not end within {limits.seconds:g} s (SYNTH_PYTHON_GRADER_TIMEOUT_S)"
        if result.ended == "memory":
            return f"its processes held more than {limits.memory_bytes or 0:,} bytes (SYNTH_PYTHON_GRADER_MEMORY_BYTES)"
        if result.ended == "disk":
            return f"its files were more than {limits.disk_bytes:,} bytes (SYNTH_PYTHON_GRADER_DISK_BYTES)"
        return f"it answered more than {_OUTPUT_BYTES:,} bytes"


async def open_pool(settings: PythonPoolSettings) -> PythonPool | None:
    """Return the pool of a service; None if the operator has not allowed graders that are code.

    Raises `UserError` if they are allowed and no sandbox starts on this machine.
    """
    if not settings.python_graders:
        return None
    return PythonPool(await Sandbox.open(settings.sandbox), settings)
