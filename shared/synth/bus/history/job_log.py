"""The history of a job, read from the log: the state, the facts, and the compare-and-set that adds one more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date
from typing import TypeVar
from uuid import uuid4

from synth.bus.connection import Connection
from synth.bus.publish import Fence, Publisher
from synth.bus.recorded import Recorded
from synth.bus.replay import replay
from synth.errors import Conflict, Fenced, Permanent, Transient
from synth.events import JobStarted
from synth.events.catalogue import Event, spec_of
from synth.jobs.lifecycle import RESUMED, TERMINAL, IllegalTransition, JobStatus, State, apply

_E = TypeVar("_E", bound=Event)
_MAX_RACES = 12


@dataclass(frozen=True)
class JobHistory:
    """The `job.*` facts of one job, in order, and where they leave it (state None: no such job)."""

    org: str
    job_id: str
    facts: list[Recorded]
    status: JobStatus

    @property
    def state(self) -> State | None:
        return self.status.state

    @property
    def term(self) -> int:
        """How often the job has been resumed: tasks of an earlier term are void."""
        return self.status.term

    @property
    def since(self) -> int:
        """The sequence at which this term begins, 0 for the first; owners of earlier terms have let go of the job."""
        return max((fact.seq for fact in self.facts if fact.type == RESUMED), default=0)

    @property
    def last_seq(self) -> int:
        return self.facts[-1].seq if self.facts else 0

    @property
    def created_on(self) -> date:
        """The day (UTC) of the first fact: the date of the job for templates that write one."""
        if not self.facts:
            raise Permanent(f"the log has no job {self.job_id}")
        return self.facts[0].time.astimezone(UTC).date()

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def attempt(self) -> int:
        """The last attempt that started; 0 before the first."""
        started = self.last(JobStarted)
        return started.attempt if started else 0

    def last(self, kind: type[_E]) -> _E | None:
        """Return the last fact of this kind."""
        return next((f.event for f in reversed(self.facts) if isinstance(f.event, kind)), None)

    def need(self, kind: type[_E]) -> _E:
        """Return the last fact of this kind, for a job whose state implies that there is one.

        Raises `Transient` if the fact is not there yet, and `Permanent` if the log knows no such job.
        """
        result = self.last(kind)
        if result is None and not self.facts:
            raise Permanent(f"the log knows no job {self.job_id}")
        if result is None:
            raise Transient(f"{self.job_id} has no {spec_of(kind).type} yet")
        return result


async def read_job(bus: Connection, org: str, job_id: str) -> JobHistory:
    """Read a job's lifecycle from the log. Raises `Permanent` if its facts cannot follow each other."""
    facts = await replay(bus, [f"job.*.{org}.{job_id}"])
    status = JobStatus()
    for fact in facts:
        try:
            status.add(fact.type)
        except IllegalTransition as error:
            raise Permanent(f"the log of {job_id} is damaged at {fact.seq}: {error}") from error
    return JobHistory(org=org, job_id=job_id, facts=facts, status=status)


async def append_decided(
    bus: Connection, org: str, job_id: str, decide: Callable[[JobHistory], Event | None]
) -> tuple[JobHistory, int | None]:
    """Append the fact that `decide` chooses on the job as it stands; decide again when another writer was first.

    Returns the history that was decided on, and the sequence of the new fact (None: nothing to add).
    Raises `IllegalTransition` when the fact cannot follow the state.
    """
    publisher = Publisher(bus)
    for _ in range(_MAX_RACES):
        history = await read_job(bus, org, job_id)
        event = decide(history)
        if event is None:
            return history, None
        fact = spec_of(event).type
        apply(history.state, fact)
        try:
            # Ours alone, and one for every retry of this very append, which is so recognised as ours. (A client id
            # would not do: each server of the bus counts its own.)
            id = f"{history.last_seq}:{uuid4().hex}"
            seq = await publisher.lifecycle(event, org=org, key=job_id, id=id, after=history.last_seq)
            return history, seq
        except Conflict:
            continue
    raise Transient(f"{job_id}: lost {_MAX_RACES} races for its next fact")


async def start_attempt(
    bus: Connection,
    org: str,
    job_id: str,
    *,
    worker: str,
    term: int = 0,
    devices: Callable[[JobHistory], int] = lambda _: 0,
) -> tuple[JobHistory, Fence | None]:
    """Become the job's owner: append the next `job.started`. term: the task's term. devices: how many will train.

    No fence is returned for a job that has ended, is paused, or was resumed since the task was queued.
    """

    def decide(history: JobHistory) -> Event | None:
        if history.status.is_over(term):
            return None
        return JobStarted(attempt=history.attempt + 1, worker=worker, devices=devices(history))

    history, seq = await append_decided(bus, org, job_id, decide)
    if seq is None:
        return history, None
    return history, Fence(org=org, job_id=job_id, attempt=history.attempt + 1, seq=seq)


async def append_as_owner(
    bus: Connection, fence: Fence, decide: Callable[[JobHistory], Event | None]
) -> tuple[JobHistory, int | None]:
    """Append like `append_decided`, for the owner of an attempt. Raises `Fenced` when another attempt has started."""

    def guarded(history: JobHistory) -> Event | None:
        if history.attempt != fence.attempt:
            raise Fenced(f"{fence.job_id}: attempt {history.attempt} has started since attempt {fence.attempt}")
        return decide(history)

    return await append_decided(bus, fence.org, fence.job_id, guarded)
