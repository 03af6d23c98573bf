"""Decode untrusted bytes in processes without keys and connections, which are reused."""

from __future__ import annotations

import asyncio
import mmap
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, Protocol

from synth.errors import Transient, UserError
from synth.runtime import logs
from synth.runtime.child_process import end_child
from synth.runtime.environment.child_environment import child_environment
from synth.sandbox.command import Limits, Sandbox, SandboxedProcess
from synth.sandbox.modes import Mode, code_roots
from synth.sandbox.zygote import REPLY, REQUEST

log = logs.get("sandbox")

_BOOT = "import os, sys; sys.path[:0] = sys.argv[1].split(os.pathsep); from synth.sandbox.zygote import main; main()"
#: A fork makes no processes. The supervisor counts processes after this number of allowed ones, which is slow.
_PROCESSES = 64
#: Bytes that are copied at one time on the event loop.
_PIECE = 1 << 18


class _Process(Protocol):
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader


class DecoderEnded(Exception):
    """A call ended before its process had finished. code: of its exit; answer: its output until then."""

    def __init__(self, code: int, answer: bytes) -> None:
        super().__init__(f"the process that decodes ended with {code}")
        self.code, self.answer = code, answer


class Decoders:
    """Processes for one function, `function(body, write)` of a module; each call runs in a fork of one of them.

    at_once: the most processes. sandbox: the sandbox's kind. With `auto`, on a machine that can start none, they run
    without one, with only the environment and the limits.
    """

    def __init__(self, function: str, *, at_once: int, sandbox: Literal["auto"] | Mode = "auto") -> None:
        self._module, self._name = function.split(":")
        self._wanted: Literal["auto"] | Mode = sandbox
        self._slots = asyncio.Semaphore(at_once)
        self._idle: list[tuple[_Process, Callable[[], Awaitable[None]]]] = []
        self._sandbox: asyncio.Task[Sandbox | None] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def mode(self) -> Mode | None:
        """How the processes are held; None before the first one, and without a sandbox."""
        done = self._sandbox is not None and self._sandbox.done() and self._sandbox.exception() is None
        opened = self._sandbox.result() if self._sandbox is not None and done else None
        return opened.mode if opened is not None else None

    async def call(self, body: bytes, *, seconds: float, cpu_s: int, map_bytes: int) -> memoryview:
        """What the function writes. seconds: until it is given up. cpu_s, map_bytes: CPU time and address space.

        Raises `DecoderEnded` for a call over its limits, or one that broke; `Transient` if the machine is busy.
        """
        async with self._slots:
            process, end = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(seconds):
                    process.stdin.write(REQUEST.pack(len(body), cpu_s, map_bytes) + body)
                    await process.stdin.drain()
                    code, length = REPLY.unpack(await process.stdout.readexactly(REPLY.size))
                    answer = await _read(process.stdout, length)
            except TimeoutError:
                await end()
                raise Transient("bytes of a user could not be decoded in time: the machine is busy") from None
            except (ConnectionError, asyncio.IncompleteReadError):
                # It ended while it was idle, or the call ended it.
                await end()
                raise DecoderEnded(-9, b"") from None
            except BaseException:
                await end()
                raise
            self._idle.append((process, end))
        if code:
            raise DecoderEnded(code, bytes(answer))
        return answer

    async def close(self) -> None:
        """End the processes. Nothing may be called any more."""
        for _, end in self._idle:
            await end()
        self._idle.clear()
        if self._folder is not None:
            self._folder.cleanup()

    async def _start(self) -> tuple[_Process, Callable[[], Awaitable[None]]]:
        if self._sandbox is None or (self._sandbox.done() and self._sandbox.exception() is not None):
            self._sandbox = asyncio.create_task(open_for_decoding(self._wanted))
        sandbox = await asyncio.shield(self._sandbox)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="decoders-")
        folder = Path(os.path.realpath(self._folder.name))
        roots = code_roots()
        command = [sys.executable, "-I", "-c", _BOOT, os.pathsep.join(roots), self._module, self._name]
        if sandbox is not None:
            limits = Limits(seconds=None, memory_bytes=None, processes=_PROCESSES)
            sandboxed = await SandboxedProcess.start(
                sandbox.mode, command, limits, folder=folder, environment=child_environment(), readable=roots
            )
            return sandboxed, sandboxed.end
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            env=child_environment(),
            start_new_session=True,
        )
        return _Plain(process), lambda: end_child(process, group=True)


async def open_for_decoding(wanted: Literal["auto"] | Mode) -> Sandbox | None:
    """Return the sandbox of decoders; with `auto` None, and a log line, if none starts. Others raise `UserError`."""
    try:
        return await Sandbox.open(wanted)
    except UserError as error:
        if wanted != "auto":
            raise
        log.warning("bytes of users are decoded without a sandbox", reason=str(error))
        return None


class _Plain:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout


async def _read(stream: asyncio.StreamReader, length: int) -> memoryview:
    """Read so many bytes. To copy or to clear the 150 MB of an image at once would hold the event loop.

    Raises `asyncio.IncompleteReadError`.
    """
    if length <= _PIECE:
        return memoryview(await stream.readexactly(length))
    answer, end = memoryview(mmap.mmap(-1, length)), 0
    while end < length:
        piece = await stream.read(min(_PIECE, length - end))
        if not piece:
            raise asyncio.IncompleteReadError(b"", length)
        answer[end : end + len(piece)] = piece
        end += len(piece)
    return answer
