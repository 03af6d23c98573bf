"""What a caller may do to a job that runs: cancel, pause, resume. Each is one fact, decided on the job as it stands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from synth.bus.history.job_log import JobHistory, append_decided
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.events import JobCancelRequested, JobPauseRequested, JobResumed, JobWithdrawn
from synth.events.catalogue import Event
from synth.gateway.commands.quotas import check_gpu_seconds
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.gateway.read_model.projection import JobRow
from synth.jobs.lifecycle import TERMINAL, State

_OWNED = (State.STARTED, State.PAUSING, State.CANCELLING)
#: A cancellation that is asked for again so soon is the same one: a double click, or a client's retry.
_SAME_REQUEST_S = 1.0


async def cancel_job(gateway: Gateway, caller: ApiKey, id: str) -> JobRow:
    """Withdraw a job that nobody owns, or ask its owner to stop. Repeating it asks the owner again; an end is a 409."""

    def decide(history: JobHistory) -> Event | None:
        if history.ended or (history.state is State.CANCELLING and _was_just_asked(history)):
            return None
        kind = JobCancelRequested if history.state in _OWNED else JobWithdrawn
        return kind(requested_by=caller.key_id)

    done = TERMINAL - {State.CANCELLED}
    return await _append_decision(
        gateway, caller, id, decide, is_refused=lambda state: state in done, expected="a job that has not ended"
    )


def _was_just_asked(history: JobHistory) -> bool:
    asked = [fact.time for fact in history.facts if isinstance(fact.event, JobCancelRequested)]
    return bool(asked) and (datetime.now(UTC) - asked[-1]).total_seconds() < _SAME_REQUEST_S


async def pause_job(gateway: Gateway, caller: ApiKey, id: str) -> JobRow:
    """Ask the owner of a started job to let go of it. Repeating it changes nothing; any other state is a 409."""

    def decide(history: JobHistory) -> Event | None:
        return JobPauseRequested(requested_by=caller.key_id) if history.state is State.STARTED else None

    fine = (State.STARTED, State.PAUSING, State.PAUSED)
    return await _append_decision(
        gateway, caller, id, decide, is_refused=lambda state: state not in fine, expected="a job that runs"
    )


async def resume_job(gateway: Gateway, caller: ApiKey, id: str) -> JobRow:
    """Make a paused job's tasks due again. Of a job that already goes on it changes nothing; else it is a 409.

    Raises a 429 where the organisation's jobs may take no more GPU-seconds.
    """
    if (await gateway.job(caller.org, id)).job.state is State.PAUSED:
        check_gpu_seconds(gateway, caller.org)

    def decide(history: JobHistory) -> Event | None:
        return JobResumed(requested_by=caller.key_id) if history.state is State.PAUSED else None

    def is_refused(state: State | None) -> bool:
        return state not in (State.PAUSED, State.VERIFIED, State.STARTED)

    return await _append_decision(gateway, caller, id, decide, is_refused=is_refused, expected="a paused job")


async def _append_decision(
    gateway: Gateway,
    caller: ApiKey,
    id: str,
    decide: Callable[[JobHistory], Event | None],
    *,
    is_refused: Callable[[State | None], bool],
    expected: str,
) -> JobRow:
    await gateway.job(caller.org, id)
    history, seq = await append_decided(gateway.bus, caller.org, id, decide)
    if seq is None and is_refused(history.state):
        problem = Problem(what=f"the job is {history.state}", expected=expected, where=id)
        raise ApiError(409, problem.text(), problems=[problem])
    return await gateway.job_at(caller.org, id, seq or history.last_seq)
