"""The training process as its supervisor sees it: started, spoken to, listened to, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Callable

import msgspec

from synth.errors import Transient
from synth.runtime import logs
from synth.trainer.protocol import Done, Failed, Finish, Pause, Paused, Progressed, Ready, Start, Stepped, TrainBatch

log = logs.get("child")

Said = Ready | Stepped | Paused | Done | Failed
_LINE = 16 << 20
# It talks to its supervisor alone: neither the bus and the cluster's secret nor the blob store are its business. It is
# the first rank of its group, wherever the service itself was started.
_WITHHELD = ("SYNTH_", "AWS_", "AZURE_", "GOOGLE_", "ENVIRONMENT_API_KEY", "RANK")


class TrainingStopped(Transient):
    """The process ended without saying why (killed, out of memory in the kernel): another attempt resumes."""


class TrainingProcess:
    """One `python -m synth.trainer.learner.main`. Its log lines are ours; its messages come out of `hear`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._progress: Callable[[str], None] = lambda stage: None
        self._log = asyncio.create_task(self._forward_log())

    @classmethod
    async def spawn(cls, *, threads: int) -> TrainingProcess:
        """Start it; it imports what training needs, which takes seconds, and waits for its job."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)}
        environment = {**inherited, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "synth.trainer.learner.main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE,
            env=environment,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.returncode is None

    async def ended(self) -> None:
        """Return when it has ended, for whatever reason."""
        await self._process.wait()

    async def begin(self, start: Start, *, progress: Callable[[str], None]) -> None:
        """Hand it its job, its only one. progress: called with the stage whenever it shows a sign of life."""
        self._progress = progress
        await self.say(start)

    async def say(self, message: Start | TrainBatch | Pause | Finish) -> None:
        """Send one message. Raises `TrainingStopped` when nobody listens any more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise TrainingStopped(f"the training process is gone ({await self._process.wait()})") from error

    async def hear(self, *, silence: float) -> Said:
        """The next message that is not a sign of life. silence: seconds without one that count as a hang."""
        assert self._process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(silence):
                    line = await self._process.stdout.readline()
            except TimeoutError as error:
                self._process.kill()
                raise TrainingStopped(f"the training process said nothing for {silence:.0f} s") from error
            if not line:
                raise TrainingStopped(f"the training process ended by itself ({await self._process.wait()})")
            message = msgspec.json.decode(line, type=Said | Progressed)
            if not isinstance(message, Progressed):
                return message
            self._progress(message.stage)

    async def end(self) -> None:
        """End it: the end of its input first (it stops at once), a kill after 5 s."""
        if self._process.returncode is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                async with asyncio.timeout(5):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await self._log

    async def _forward_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if text := line.decode(errors="replace").rstrip():
                log.info(text, child=self._process.pid)


class TrainingProcesses:
    """Where training processes come from. One waits, its imports done, so that a job starts seconds earlier.

    A process runs one job and ends: nothing of a job, not even its allocator's state, can reach the next one.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._waiting: TrainingProcess | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()

    @property
    def waiting_pid(self) -> int | None:
        """The process that waits, if one does."""
        return self._waiting.pid if self._waiting is not None and self._waiting.running else None

    async def keep_one_waiting(self) -> None:
        """Have a process waiting whenever none is at work, for ever; it is ended with this."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if self._waiting is None or not self._waiting.running:
                    self._waiting = await TrainingProcess.spawn(threads=self._threads)
        finally:
            if self._waiting is not None:
                await self._waiting.end()

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncGenerator[TrainingProcess]:
        """The process that waits, or a new one; ended afterwards."""
        self._wanted.clear()
        process, self._waiting = self._waiting, None
        if process is None or not process.running:
            process = await TrainingProcess.spawn(threads=self._threads)
        try:
            yield process
        finally:
            await process.end()
            self._wanted.set()
