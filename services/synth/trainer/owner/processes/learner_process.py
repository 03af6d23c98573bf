"""The training process as the service sees it: spawned, sent messages, received from, and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from synth.errors import Crashed
from synth.runtime import logs
from synth.runtime.forking.server import ForkServer
from synth.trainer.owner.processes.training_forks import TrainingFork, start_server
from synth.trainer.protocol import (
    FILE_STAGES,
    TOKENISE,
    Done,
    Failed,
    Finish,
    Pause,
    Paused,
    Progressed,
    Ready,
    Saved,
    Start,
    Stepped,
    Stored,
    TrainBatch,
)

log = logs.get("learner_process")

LearnerMessage = Ready | Stepped | Paused | Done | Failed


class LearnerStopped(Crashed):
    """The process ended without an error message (killed, or out of memory in the kernel): another attempt resumes."""


class LearnerProcess:
    """A training process and its messages. Its stderr goes to the log.

    saved: its checkpoints, as they become durable; None when the process has ended. `recv` returns its other messages.
    """

    def __init__(self, process: TrainingFork) -> None:
        self._process = process
        self._on_progress: Callable[[Progressed], None] = lambda progressed: None
        self._log = asyncio.create_task(self._forward_log())
        self.saved: asyncio.Queue[Saved | None] = asyncio.Queue()
        self._messages: asyncio.Queue[LearnerMessage | None] = asyncio.Queue()
        self._stage = ""
        self._heard_at = time.monotonic()
        self._stage_changed = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.returncode is None

    async def wait_stopped(self) -> None:
        """Wait until the process has ended, for any reason."""
        await self._process.wait()

    async def start_job(self, start: Start, *, progress: Callable[[Progressed], None]) -> None:
        """Give the process its only job. progress: called with each sign of life."""
        self._on_progress = progress
        await self.send(start)

    async def send(self, message: Start | TrainBatch | Pause | Finish | Stored) -> None:
        """Send one message. Raises `LearnerStopped` when the process is gone."""
        assert self._process.stdin is not None
        if self._process.stdin.is_closing():
            raise LearnerStopped(f"the training process is gone ({await self._process.wait()})")
        try:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LearnerStopped(f"the training process is gone ({await self._process.wait()})") from error

    async def recv(self, *, silence: Callable[[str], float]) -> LearnerMessage:
        """Return the next message that is not a sign of life. Raises `LearnerStopped` when there will be none.

        silence: for a stage ("" before the first), the seconds without progress after which the process counts as hung
        and is killed. Every message is progress, except a report on a dataset that repeats the one before.
        """
        self._heard_at = time.monotonic()
        receiving = asyncio.ensure_future(self._messages.get())
        changed: asyncio.Task[bool] | None = None
        try:
            while not receiving.done():
                self._stage_changed.clear()
                stage, seconds = self._stage, silence(self._stage)
                left = self._heard_at + seconds - time.monotonic()
                if left <= 0:
                    self._process.kill()
                    setting = "SYNTH_MODEL_IO_S" if stage in FILE_STAGES else "SYNTH_CHILD_SILENCE_S"
                    what = f"the training process {'made no progress' if stage == TOKENISE else 'sent nothing'}"
                    since = stage and f", since it began to {stage}"
                    raise LearnerStopped(f"{what} for {seconds:.0f} s{since} ({setting})")
                # The next stage may be given less time than the one that is waited for.
                changed = asyncio.create_task(self._stage_changed.wait())
                await asyncio.wait([receiving, changed], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            message = receiving.result()
        finally:
            receiving.cancel()
            if changed is not None:
                changed.cancel()
        if message is None:
            raise LearnerStopped(f"the training process ended by itself ({await self._process.wait()})")
        return message

    async def _read(self) -> None:
        try:
            await self._read_lines()
        finally:
            self._messages.put_nowait(None)
            self.saved.put_nowait(None)

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        at = -1
        while line := await self._process.stdout.readline():
            message = msgspec.json.decode(line, type=LearnerMessage | Progressed | Saved)
            if isinstance(message, Progressed):
                if self._stage == TOKENISE == message.stage and message.done == at:
                    continue
                if self._stage != message.stage:
                    self._stage_changed.set()
                self._stage, at = message.stage, message.done if message.stage == TOKENISE else -1
                self._heard_at = time.monotonic()
                self._on_progress(message)
            else:
                self._stage, self._heard_at = "", time.monotonic()
                if isinstance(message, Saved):
                    self.saved.put_nowait(message)
                else:
                    self._messages.put_nowait(message)

    async def stop(self) -> None:
        """Stop the process by closing its input. It has 5 s to end and to say why; then it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await self._process.wait()
                # A process that it has started may keep its stderr open.
                await asyncio.shield(self._log)
        await self._process.end()
        await self._log
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _forward_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if text := line.decode(errors="replace").rstrip():
                log.info(text, pid=self._process.pid)


class LearnerPool:
    """A pool that starts a training process for each job, as a fork of a process that has imported what it needs.

    A process runs one job and ends: nothing of a job, not even the state of its allocator, can reach the next one.
    """

    def __init__(self) -> None:
        self._server: ForkServer | None = None
        self._starting = asyncio.Lock()

    @property
    def server_pid(self) -> int | None:
        """The pid of the fork server, if there is one."""
        return self._server.pid if self._server is not None and self._server.alive else None

    async def keep_warm(self) -> None:
        """Start the fork server before the first job. When cancelled, it ends the server and its processes."""
        try:
            await self._ensure_server()
            await asyncio.Event().wait()
        finally:
            if self._server is not None:
                await self._server.close()

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncGenerator[LearnerProcess]:
        """Yield a new process; it is stopped at the end of the block."""
        process = LearnerProcess(await TrainingFork.start(await self._ensure_server()))
        try:
            yield process
        finally:
            await process.stop()

    async def _ensure_server(self) -> ForkServer:
        async with self._starting:
            if self._server is None or not self._server.alive:
                self._server = await start_server()
            return self._server
