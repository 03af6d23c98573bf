"""Runs the work for large requests and answers away from the event loop, in threads and in worker processes.

A thread is enough for code that gives the GIL back: Python code, which does so every 5 ms, and libraries that release
it. One long call of C code does not: to decode 22 MiB of `[[],[],…]` holds every thread of a process for seconds. Such
calls run in a worker process.

The result of a worker is unpickled on the event loop, so a function that runs there must return a small value.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import BrokenResourceError, BrokenWorkerProcess, CapacityLimiter, ClosedResourceError, to_process, to_thread
from pydantic import Field

from synth.errors import Problem, Transient, UserError
from synth.fairness.slots import FairSlots
from synth.settings import Settings

#: Up to this size work is done in place: even the worst takes only some milliseconds, as much as to call a worker.
INLINE_BYTES = 64 << 10

_T = TypeVar("_T")


class WorkerSettings(Settings):
    """What large requests and answers may cost a process."""

    worker_processes: int = Field(default=2, ge=1)
    """Worker processes in which a service reads answers of more than 64 KiB, and the gateway the model of such a chat.
    Graders of the graders API run in them. They start when they are first needed. Organisations share them by turns;
    one more is kept for an organisation that has none."""

    worker_threads: int = Field(default=2, ge=1)
    """Threads in which a service decodes, renders and tokenises requests of more than 64 KiB. Organisations share them
    by turns; one more is kept for an organisation that has none. Smaller requests do not wait for them."""

    worker_memory_bytes: int = Field(default=4 << 30, ge=256 << 20)
    """Memory that a worker process may have. A request that needs more is refused."""

    worker_timeout_s: float = Field(default=60.0, gt=0)
    """How long a worker process may take for one request or answer; then it is killed, and the request is refused."""


class TooMuchWork(UserError):
    """A request or an answer takes more time or memory than a worker process has."""

    def __init__(self, task: str, taken: str, setting: str) -> None:
        problem = Problem(
            what=f"to {task} takes more than {taken}",
            expected="less",
            fix=f"send less at once, or have the operator raise {setting}",
            where="body",
        )
        super().__init__(problem)


class OffLoop:
    """The threads and worker processes of one service. Their number is bounded; organisations share them by turns."""

    def __init__(self, settings: WorkerSettings | None = None) -> None:
        settings = settings or WorkerSettings()
        self._memory_bytes = settings.worker_memory_bytes
        self._timeout_s = settings.worker_timeout_s
        self._process_slots = FairSlots(settings.worker_processes, spare=1)
        self._thread_slots = FairSlots(settings.worker_threads, spare=1)

    async def thread(self, function: Callable[..., _T], *args: Any, org: str, size: int) -> _T:
        """Call a function in a thread; if `size` is above 64 KiB, in one that the organisations share by turns.

        size: bytes of its input. The function must release the GIL, or never hold it for long. If the caller is
        cancelled, this returns when the thread has ended, because its slot is not free before.
        """
        if size <= INLINE_BYTES:
            return await asyncio.to_thread(function, *args)
        async with self._thread_slots.hold(org):
            return await to_thread.run_sync(function, *args, limiter=CapacityLimiter(1))

    async def process(self, function: Callable[..., _T], *args: Any, org: str, size: int | None, task: str) -> _T:
        """Call a function of a module in a worker process if `size` is None or above 64 KiB, else in place.

        size: bytes of its input; None if it may take long for few bytes. task: describes the work in errors ("decode
        the body"). The worker is killed if the caller is cancelled. Raises the exceptions of the function (they must be
        picklable), `TooMuchWork` beyond the limits of time and memory, and `Transient` if the worker ends before it
        returns.
        """
        if size is not None and size <= INLINE_BYTES:
            return function(*args)
        async with self._process_slots.hold(org):
            try:
                async with asyncio.timeout(self._timeout_s):
                    try:
                        return await self._call_worker(function, args)
                    except BrokenWorkerProcess as error:
                        if not isinstance(error.__cause__, BrokenResourceError | ClosedResourceError):
                            raise
                        # The worker did not take the request: it had ended while it was idle, for another reason.
                        return await self._call_worker(function, args)
            except TimeoutError as error:
                raise TooMuchWork(task, f"{self._timeout_s:g} s", "SYNTH_WORKER_TIMEOUT_S") from error
            except MemoryError as error:
                taken = f"{self._memory_bytes:,} bytes of memory"
                raise TooMuchWork(task, taken, "SYNTH_WORKER_MEMORY_BYTES") from error
            except BrokenWorkerProcess as error:
                raise Transient(f"the process that was to {task} ended; send it again", delay=1.0) from error

    async def _call_worker(self, function: Callable[..., _T], args: tuple[Any, ...]) -> _T:
        # `anyio` has a limiter of its own, which is not fair.
        limiter = CapacityLimiter(1)
        return await to_process.run_sync(_run, self._memory_bytes, function, args, cancellable=True, limiter=limiter)


def _run(memory_bytes: int, function: Callable[..., _T], args: tuple[Any, ...]) -> _T:
    """Call a function in the worker process, within its memory."""
    # A signal for the service's whole group must not end a request that the service still drains.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    # The collector would traverse the decoded objects again and again, and take most of the time.
    gc.disable()
    try:
        return function(*args)
    finally:
        gc.enable()
