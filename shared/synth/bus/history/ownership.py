"""Owning a job: one attempt takes it, runs it until something interrupts it, and ends it.

Invariants. Only the last attempt that started can end a job. The ending is decided on the log as it is then: a job that
has ended stays ended, and one whose cancellation was requested ends cancelled, even if it would have ended otherwise.
An attempt notices that its successor has started, and its work ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.bus.history.fencing import lost
from synth.bus.history.job_log import JobHistory, append_as_owner, start_attempt
from synth.bus.publish import Fence
from synth.bus.replay import follow
from synth.errors import Permanent, Problem
from synth.events import (
    JobCancelled,
    JobCancelRequested,
    JobFailed,
    JobPaused,
    JobPauseRequested,
    PolicyRefused,
    RolloutBlocked,
)
from synth.events.catalogue import Event, subject_of
from synth.jobs.lifecycle import State
from synth.runtime import logs

log = logs.get("ownership")

_INTERRUPTING_FACTS = ("job.cancel_requested", "job.pause_requested", "rollout.blocked", "policy.refused")


@dataclass(frozen=True)
class Ownership:
    """The right of one attempt to run a job and to end it. history: the job's, as it was when the attempt started."""

    bus: Connection
    history: JobHistory
    fence: Fence

    @classmethod
    async def take(
        cls,
        bus: Connection,
        org: str,
        job_id: str,
        *,
        worker: str,
        term: int,
        devices: Callable[[JobHistory], int] = lambda _: 0,
    ) -> Ownership | None:
        """Start the job's next attempt. None for a job that is over, or was resumed since this term.

        devices: how many will train a job with this history.
        """
        history, fence = await start_attempt(bus, org, job_id, worker=worker, term=term, devices=devices)
        return None if fence is None else cls(bus, history, fence)

    def requested_ending(self, *, step: int) -> JobCancelled | JobPaused | None:
        """Return the ending that the user requested and that an earlier attempt did not live to announce."""
        if self.history.state is State.CANCELLING:
            return JobCancelled(step=step)
        return JobPaused(step=step) if self.history.state is State.PAUSING else None

    async def run(
        self,
        work: Awaitable[Event],
        *,
        last_step: Callable[[], int] = lambda: 0,
        pausing: asyncio.Event | None = None,
        pause_s: float = 0.0,
    ) -> Event:
        """Return the ending that `work` returns, or the one that interrupts it; `work` is then cancelled.

        last_step: returns the last announced training step, for the event of a cancellation or a pause.
        pausing: set when the user requests a pause, or the job cannot go on; `work` then has `pause_s` seconds to
        end by itself.
        A `Permanent` error of `work` is the job's failure; any other error is raised. Raises `Fenced` as soon as
        another attempt has started; `work` has ended by then.
        """
        pausing = pausing or asyncio.Event()
        working = asyncio.ensure_future(work)
        interrupted = asyncio.create_task(self._interruption(pausing))
        overdue = asyncio.create_task(_overdue(pausing, pause_s))
        losing = asyncio.create_task(lost(self.bus, self.fence))
        tasks: list[asyncio.Future[Any]] = [working, interrupted, overdue, losing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if interrupted.done():
                failure, since = interrupted.result()
                tasks.append(asyncio.create_task(self._cancel_when_asked(working, since)))
                if failure is not None:
                    # The job fails, and keeps its results so far, as in a pause.
                    pausing.set()
                    await asyncio.wait([working, losing], timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            await cancel_until_ended(working, what=f"the work of {self.fence.job_id}")
            if losing.done():
                raise losing.result()
            if interrupted.done():
                return interrupted.result()[0] or JobCancelled(step=last_step())
            return JobPaused(step=last_step())
        except Permanent as error:
            return JobFailed(code="cannot_run", problem=Problem(what=str(error)))
        finally:
            await cancel_until_ended(*tasks, what=f"the work of {self.fence.job_id}")

    async def end(self, ending: Event, *, step: int = 0) -> None:
        """Announce how the job ends. step: of the `job.cancelled` that replaces `ending` if the user has cancelled."""

        def decide(history: JobHistory) -> Event | None:
            if history.ended:
                return None
            if history.state is State.CANCELLING:
                return JobCancelled(step=step)
            if isinstance(ending, JobPaused) and not ending.reason and (requested := history.last(JobPauseRequested)):
                return msgspec.structs.replace(ending, reason=requested.reason)
            return ending

        history, _ = await append_as_owner(self.bus, self.fence, decide)
        if isinstance(ending, JobFailed) and history.state is State.CANCELLING:
            log.warning("a job that was cancelled would have failed", code=ending.code, reason=ending.problem.text())

    async def _interruption(self, pausing: asyncio.Event) -> tuple[JobFailed | None, int]:
        """Wait for a cancellation (None), a broken environment, or a policy that cannot be served; and its sequence.

        A request to pause sets `pausing` and does not interrupt: the work may well end first.
        """
        subjects = [f"{fact}.{self.fence.org}.{self.fence.job_id}" for fact in _INTERRUPTING_FACTS]
        async with aclosing(follow(self.bus, subjects, after=self.history.since)) as events:
            async for recorded in events:
                match recorded.event:
                    case JobPauseRequested():
                        pausing.set()
                    case RolloutBlocked() | PolicyRefused() as obstacle:
                        return failure_of(obstacle), recorded.seq
                    case _:
                        return None, recorded.seq
        raise AssertionError("a follow never ends")

    async def _cancel_when_asked(self, working: asyncio.Future[Event], since: int) -> None:
        """Cancel the work, which has been interrupted, at each new request of the user."""
        subject = subject_of(JobCancelRequested, self.fence.org, self.fence.job_id)
        async with aclosing(follow(self.bus, [subject], after=since)) as requests:
            async for request in requests:
                log.warning("cancelled again, as the user has asked again", job=self.fence.job_id, seq=request.seq)
                working.cancel()


def failure_of(obstacle: RolloutBlocked | PolicyRefused) -> JobFailed:
    """Return the ending of a job whose environment is broken, or whose policy no engine can serve."""
    code = obstacle.code if isinstance(obstacle, RolloutBlocked) else "cannot_serve"
    return JobFailed(code=code, problem=obstacle.problem)


async def _overdue(pausing: asyncio.Event, seconds: float) -> None:
    """Return `seconds` after a pause was requested."""
    await pausing.wait()
    await asyncio.sleep(seconds)
    if seconds:
        log.warning("the pause takes too long, letting go of the job as it was", seconds=seconds)
