"""The lifecycle of a job: one transition table, one pure fold over its `job.*` facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from synth.errors import SynthError


class State(StrEnum):
    CREATED = "created"
    VALIDATED = "validated"
    VERIFIED = "verified"
    STARTED = "started"
    CANCELLING = "cancelling"
    PAUSING = "pausing"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})

#: (state, fact) → state. None is "no job yet". Other facts are refused.
TRANSITIONS: dict[tuple[State | None, str], State] = {
    (None, "job.created"): State.CREATED,
    (State.CREATED, "job.validated"): State.VALIDATED,
    (State.CREATED, "job.rejected"): State.REJECTED,
    (State.CREATED, "job.withdrawn"): State.CANCELLED,
    (State.VALIDATED, "job.verified"): State.VERIFIED,
    (State.VALIDATED, "job.refused"): State.REJECTED,
    (State.VALIDATED, "job.withdrawn"): State.CANCELLED,
    (State.VERIFIED, "job.started"): State.STARTED,
    (State.VERIFIED, "job.withdrawn"): State.CANCELLED,
    # Its tasks cannot be queued. The results of earlier terms are kept, and it can be resumed.
    (State.VERIFIED, "job.parked"): State.PAUSED,
    # A later attempt continues after the earlier one died, also to end a cancellation that the earlier one did not
    # finish.
    (State.STARTED, "job.started"): State.STARTED,
    (State.CANCELLING, "job.started"): State.CANCELLING,
    (State.PAUSING, "job.started"): State.PAUSING,
    (State.STARTED, "job.cancel_requested"): State.CANCELLING,
    # Repeated: an owner that continues after the first request gets another one.
    (State.CANCELLING, "job.cancel_requested"): State.CANCELLING,
    (State.STARTED, "job.pause_requested"): State.PAUSING,
    (State.PAUSING, "job.paused"): State.PAUSED,
    # The collapse watch paused it, as the job's own configuration requires.
    (State.STARTED, "job.paused"): State.PAUSED,
    (State.PAUSING, "job.cancel_requested"): State.CANCELLING,
    # It was almost finished when the pause was requested.
    (State.PAUSING, "job.succeeded"): State.SUCCEEDED,
    (State.PAUSING, "job.failed"): State.FAILED,
    # As after its verification: its tasks are due, and it has no owner.
    (State.PAUSED, "job.resumed"): State.VERIFIED,
    (State.PAUSED, "job.withdrawn"): State.CANCELLED,
    (State.STARTED, "job.succeeded"): State.SUCCEEDED,
    (State.STARTED, "job.failed"): State.FAILED,
    (State.CANCELLING, "job.cancelled"): State.CANCELLED,
    (State.CANCELLING, "job.failed"): State.FAILED,
}

#: Facts that end a job: none of that job follows them.
TERMINAL_FACTS = frozenset(fact for (_, fact), state in TRANSITIONS.items() if state in TERMINAL)

_KNOWN = frozenset(fact for _, fact in TRANSITIONS)

#: The fact that begins another term of a job: its tasks are queued again, and the tasks of the term before are void.
RESUMED = "job.resumed"


class IllegalTransition(SynthError):
    """A fact that cannot follow the state the job is in."""

    def __init__(self, state: State | None, fact: str) -> None:
        super().__init__(f"{fact} cannot follow state {state.value if state else 'none'}")
        self.state = state
        self.fact = fact


def apply(state: State | None, fact: str) -> State:
    """Return the state after one more fact. Raises `IllegalTransition`."""
    after = TRANSITIONS.get((state, fact))
    if after is None:
        raise IllegalTransition(state, fact)
    return after


def apply_known(state: State | None, fact: str) -> State | None:
    """Return the state as `apply` does, but ignore facts that only a newer version defines."""
    return apply(state, fact) if fact in _KNOWN else state


@dataclass
class JobStatus:
    """A job's state and term (how often it was resumed), folded from the facts of its log."""

    state: State | None = None
    term: int = 0

    def add(self, fact: str) -> None:
        """Take in one more fact of the log."""
        self.state = apply_known(self.state, fact)
        self.term += fact == RESUMED

    def is_over(self, term: int) -> bool:
        """Return whether a task that was queued in this term has nothing left to do."""
        if self.state in TERMINAL or self.term > term:
            return True
        return self.term == term and self.state is State.PAUSED
