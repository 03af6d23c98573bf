"""Run an untrusted command: `run(files, command, limits)` returns its result, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, cast

import msgspec

from synth.errors import Transient, UserError
from synth.runtime.child_process import end_child
from synth.sandbox.folder import own_folder
from synth.sandbox.modes import DEVICES, MODES, Mode, launcher_command, readable_paths
from synth.sandbox.orders import Bounds, CommandOrder

#: Seconds beyond the command's own in which the launcher must start, and report: for one that hangs.
_LAUNCHER_S = 120.0
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a command.

    None is no limit. seconds: of time, from its start. cpu_s: CPU seconds of each process. map_bytes: of address space
    of each process. memory_bytes: resident in all processes together, checked four times a second. processes:
    processes and threads at one time. disk_bytes: of each file, and of all files together, checked four times a
    second; 0: it may write none. output_bytes: of its output, and of its errors.
    """

    seconds: float | None
    cpu_s: int | None = None
    map_bytes: int | None = None
    memory_bytes: int | None
    processes: int
    disk_bytes: int = 0
    output_bytes: int = 1 << 20
    open_files: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended.

    ended: by itself (`exit`), or by the limit that it was over. code: of its exit; negative for a signal. cpu_s: of all
    its processes.
    """

    ended: Literal["exit", "time", "memory", "disk", "output"]
    code: int
    output: bytes
    errors: bytes
    cpu_s: float


class _Report(msgspec.Struct):
    ended: Literal["exit", "time", "memory", "disk", "closed"] = "closed"
    code: int = -9
    cpu_s: float = 0.0
    left: bool = False
    refused: str = ""


class SandboxRefused(Exception):
    """The sandbox did not start; the message has the reason."""


class SandboxedProcess:
    """A running command. stdin, stdout, stderr: its own."""

    def __init__(self, launcher: asyncio.subprocess.Process, control: socket.socket) -> None:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        self._launcher, self._control = launcher, control
        self.stdin, self.stdout, self.stderr = launcher.stdin, launcher.stdout, launcher.stderr

    @classmethod
    async def start(
        cls,
        mode: Mode,
        command: Sequence[str],
        limits: Limits,
        *,
        folder: Path,
        environment: Mapping[str, str],
        readable: Sequence[str | Path] = (),
    ) -> Self:
        """Start a command in a folder, of which it may write if `limits.disk_bytes` is more than 0.

        Call it in the thread of the event loop, and in none that ends: bubblewrap ends with the thread that started it.
        """
        read, writable = readable_paths(readable), limits.disk_bytes > 0
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = launcher_command(mode, folder=folder, writable=writable, read=read, fd=theirs.fileno())
            launcher = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=folder,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.setblocking(False)
        process = cls(launcher, ours)
        order: CommandOrder = {
            "command": list(command),
            "environment": dict(environment),
            "folder": str(folder),
            "read": read,
            "devices": list(DEVICES),
            "bounds": cast(Bounds, asdict(limits)),
            "namespaces": mode == "bubblewrap",
        }
        try:
            await asyncio.get_running_loop().sock_sendall(ours, json.dumps(order).encode() + b"\n")
        except BaseException:
            await process.end()
            raise
        return process

    async def report(self) -> _Report:
        """Wait until the command and all its descendants have ended."""
        loop, received = asyncio.get_running_loop(), b""
        with contextlib.suppress(ConnectionError):
            while piece := await loop.sock_recv(self._control, _PIECE_BYTES):
                received += piece
        if not received:
            return _Report(refused=f"its launcher ended with {await self._launcher.wait()}")
        return msgspec.json.decode(received, type=_Report)

    def stop(self) -> None:
        """Have the launcher end the command and all its descendants."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    async def end(self) -> None:
        """End the command and all its descendants, if it runs, and return when the launcher has ended."""
        self.stop()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAUNCHER_S):
                    await self.report()
                    if self.stdout.at_eof() and self.stderr.at_eof():
                        # It is about to end. asyncio logs a warning for a process that `kill` finds ended.
                        await self._launcher.wait()
        finally:
            self._control.close()
            await end_child(self._launcher)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A way to run untrusted commands, which has started on this machine once."""

    mode: Mode

    @classmethod
    async def open(cls, wanted: Literal["auto"] | Mode = "auto") -> Self:
        """Return a sandbox of the strongest mode that starts here. Raises `UserError` with each mode's reason."""
        reasons: list[str] = []
        for mode in MODES if wanted == "auto" else (wanted,):
            if why := await why_not(mode):
                reasons.append(f"{mode}: {why}")
            else:
                return cls(mode)
        raise UserError(
            f"no sandbox starts on this machine ({'; '.join(reasons)})",
            expected="bubblewrap with user namespaces, or Linux 5.13 or later with Landlock and seccomp",
            fix="install bubblewrap and allow user namespaces, or a kernel with Landlock",
            where="SYNTH_SANDBOX",
        )

    async def run(
        self,
        files: Mapping[str, bytes],
        command: Sequence[str],
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        readable: Sequence[str | Path] = (),
    ) -> Result:
        """Run a command in a new folder with these files, until it ends or is over a limit.

        environment: all of its variables; None: a path, a language, and the folder as HOME and TMPDIR. readable: what
        it may read beside programs, libraries and its folder. When this returns or raises, no process of it is left,
        and the folder is removed. Raises `SandboxRefused`, and `Transient` if the launcher hangs.
        """
        with ExitStack() as stack:
            folder = await asyncio.to_thread(stack.enter_context, own_folder(files))
            leave = stack.pop_all()
            try:
                return await self._run(folder, command, limits, stdin, environment, readable)
            finally:
                await asyncio.shield(asyncio.to_thread(leave.close))

    async def _run(
        self,
        folder: Path,
        command: Sequence[str],
        limits: Limits,
        stdin: bytes,
        environment: Mapping[str, str] | None,
        readable: Sequence[str | Path],
    ) -> Result:
        if environment is None:
            home = str(folder)
            environment = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": home, "TMPDIR": home, "OMP_NUM_THREADS": "1"}
        process = await SandboxedProcess.start(
            self.mode, command, limits, folder=folder, environment=environment, readable=readable
        )
        try:
            async with asyncio.timeout(None if limits.seconds is None else limits.seconds + _LAUNCHER_S):
                report, output, errors, _ = await asyncio.gather(
                    process.report(),
                    _read(process.stdout, limits.output_bytes, process),
                    _read(process.stderr, limits.output_bytes, process),
                    _write(process.stdin, stdin),
                )
        except TimeoutError:
            raise Transient("a command of the sandbox was not ended in time: the machine is busy") from None
        finally:
            await process.end()
        if report.refused:
            raise SandboxRefused(errors.decode(errors="replace").strip() or report.refused)
        if report.left:
            raise Transient("the sandbox could not end every process of a command")
        over = max(len(output), len(errors)) > limits.output_bytes
        ended = "output" if over or report.ended == "closed" else report.ended
        return Result(ended=ended, code=report.code, output=output, errors=errors, cpu_s=report.cpu_s)


#: Programs of the system, and of this interpreter.
_PATH = os.pathsep.join([os.path.dirname(sys.executable), os.defpath])
_PROBE = Limits(seconds=60.0, memory_bytes=1 << 28, processes=1)


async def why_not(mode: Mode) -> str:
    """Run a command in this mode, and return why it cannot be run here; "" if it can."""
    if sys.platform != "linux":
        return "it needs Linux"
    try:
        result = await Sandbox(mode).run({}, [sys.executable, "-I", "-S", "-c", "pass"], _PROBE)
    except (SandboxRefused, OSError, Transient) as error:
        return str(error)
    return "" if result.code == 0 else result.errors.decode(errors="replace").strip() or f"exit code {result.code}"


async def _read(stream: asyncio.StreamReader, most: int, process: SandboxedProcess) -> bytes:
    """Read a stream, and end the command after more than `most` bytes; return at most one byte more."""
    read = b""
    while piece := await stream.read(_PIECE_BYTES):
        read += piece[: most + 1 - len(read)]
        if len(read) > most:
            process.stop()
    return read


async def _write(stream: asyncio.StreamWriter, body: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        stream.write(body)
        await stream.drain()
    with contextlib.suppress(ConnectionError):
        stream.close()
