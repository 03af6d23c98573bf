"""How long a job was queued and how long it ran: one fold over its facts, for the read model and for watchers.

A job is *queued* from its submission, from each resume, and from the end of an attempt that was handed back or died,
until an attempt starts. It *runs* while an attempt works on it. What an attempt waited for its turn at a device that it
shares counts as queued. While it is paused it does neither. An attempt that died ran until it was seen last.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from synth.jobs.lifecycle import TERMINAL_FACTS

#: Facts of the service that works on a job.
_WORK = ("train.", "rollout.", "collection.", "policy.", "checkpoint.", "eval.")
_LET_GO = TERMINAL_FACTS | {"job.paused", "job.parked"}
#: The value of a step that states how long its attempt waited for its turn at a shared device.
TURN_WAIT = "seconds_turn"


class JobTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job was queued and ran, in seconds. A pause is neither.

    queued_s, ran_s: up to `queued_since` or `running_since`, if that is set. queued_since: since when it waits for a
    worker; running_since: since when an attempt works on it.
    """

    queued_s: float = 0.0
    ran_s: float = 0.0
    queued_since: datetime | None = None
    running_since: datetime | None = None

    def queued(self, now: datetime) -> float:
        """Return the seconds that the job was queued, until now."""
        return self.queued_s + _seconds(self.queued_since, now)

    def ran(self, now: datetime) -> float:
        """Return the seconds that attempts have worked on the job, until now."""
        return self.ran_s + _seconds(self.running_since, now)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a job. ended_at: None while it works."""

    started_at: datetime
    ended_at: datetime | None = None


class JobClock(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a job after its facts so far.

    seen: when the service that works on it appended its last fact. first_step: the step that its first one was trained
    from; step: the last one; ran_at_step: the seconds that it had run by then.
    """

    times: JobTimes = JobTimes()
    runs: tuple[Run, ...] = ()
    seen: datetime | None = None
    first_step: int | None = None
    step: int = 0
    ran_at_step: float = 0.0

    def add(self, fact: str, at: datetime) -> JobClock:
        """Add a fact that the lifecycle allows, or one of the service that works on the job. For a step: `add_step`."""
        if fact == "job.created":
            return _replace(self, queued_since=at)
        if fact == "job.started":
            clock = self._end_run(self.seen or at)._end_wait(at)
            run = Run(started_at=at)
            return msgspec.structs.replace(_replace(clock, running_since=at), runs=(*clock.runs, run), seen=at)
        if fact == "train.handed_back":
            return self._end_run(at)
        if fact == "job.resumed":
            return _replace(self, queued_since=at)
        if fact in _LET_GO:
            return self._end_run(at)._end_wait(at)
        return msgspec.structs.replace(self, seen=at) if fact.startswith(_WORK) else self

    def add_step(self, step: int, at: datetime, *, turn_wait_s: float) -> JobClock:
        """Add a durable step. turn_wait_s: its attempt's seconds of waiting for a shared device since the last step."""
        times = self.times
        if turn_wait_s and times.running_since is not None:
            waited = {"queued_s": times.queued_s + turn_wait_s, "ran_s": times.ran_s - turn_wait_s}
            times = msgspec.structs.replace(times, **waited)
        first = step - 1 if self.first_step is None else self.first_step
        ran = times.ran(at)
        return msgspec.structs.replace(self, times=times, seen=at, first_step=first, step=step, ran_at_step=ran)

    def seconds_left(self, now: datetime, *, steps: int | None) -> float | None:
        """Return the seconds until the last step, at the pace so far; None if the job does not run or has no pace."""
        if self.first_step is None or self.step <= self.first_step or not steps or self.times.running_since is None:
            return None
        a_step = self.ran_at_step / (self.step - self.first_step)
        return max(0.0, a_step * (steps - self.step) - (self.times.ran(now) - self.ran_at_step))

    def _end_run(self, at: datetime) -> JobClock:
        """Return the clock after the attempt has ended and the job is queued again; unchanged without an attempt."""
        times = self.times
        if times.running_since is None:
            return self
        runs = (*self.runs[:-1], msgspec.structs.replace(self.runs[-1], ended_at=at))
        clock = msgspec.structs.replace(self, runs=runs)
        return _replace(clock, ran_s=times.ran(at), running_since=None, queued_since=at)

    def _end_wait(self, at: datetime) -> JobClock:
        return _replace(self, queued_s=self.times.queued(at), queued_since=None)


def _replace(clock: JobClock, **times: object) -> JobClock:
    return msgspec.structs.replace(clock, times=msgspec.structs.replace(clock.times, **times))


def _seconds(since: datetime | None, until: datetime) -> float:
    # The clocks of the bus and of the reader may differ.
    return 0.0 if since is None else max(0.0, (until - since).total_seconds())
