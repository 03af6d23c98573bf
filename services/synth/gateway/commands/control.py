"""Commands for a running job: cancel, pause, resume. Each appends one event that depends on the job's state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from contextlib import nullcontext
from datetime import UTC, datetime

import msgspec

from synth.blobs.configs import with_config
from synth.bus.history.job_log import JobHistory, append_decided
from synth.bus.kv.secrets import ApiKey
from synth.errors import Problem
from synth.events import Continuation, JobCancelRequested, JobCreated, JobPauseRequested, JobResumed, JobWithdrawn
from synth.events.catalogue import Event
from synth.gateway.commands.quotas import check_gpu_seconds, log_room
from synth.gateway.commands.submit import submit_job
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError
from synth.gateway.read_model.event_log import read_last
from synth.gateway.read_model.projection import JobRow
from synth.ids import job_id_for
from synth.jobs.lifecycle import TERMINAL, State

_OWNED = (State.STARTED, State.PAUSING, State.CANCELLING)
#: A second cancellation within this time is the same request: a double click, or a client's retry.
_SAME_REQUEST_S = 1.0
#: The approximate size of one more event of a job.
_EVENT_BYTES = 1 << 10
_WAITING = (State.CREATED, State.VALIDATED, State.VERIFIED)

#: The name of a state in the caller's API.
StateName = Callable[[State], str]


async def cancel_job(gateway: Gateway, caller: ApiKey, id: str, *, named: StateName = str) -> JobRow:
    """Withdraw a job without an owner, or request that its owner stop it, also again. A job that has ended is a 409."""

    def decide(history: JobHistory) -> Event | None:
        if history.ended or (history.state is State.CANCELLING and _was_just_asked(history)):
            return None
        kind = JobCancelRequested if history.state in _OWNED else JobWithdrawn
        return kind(requested_by=caller.key_id)

    fine = frozenset(State) - TERMINAL | {State.CANCELLED}
    again = (await gateway.job(caller.org, id)).job.state is State.CANCELLING
    # The first request still applies; further ones need room, so that they cannot fill the log.
    with log_room(gateway, caller.org, _EVENT_BYTES) if again else nullcontext():
        return await _append_decision(
            gateway, caller, id, decide, fine=fine, named=named, expected="a job that has not ended"
        )


def _was_just_asked(history: JobHistory) -> bool:
    requested = [fact.time for fact in history.facts if isinstance(fact.event, JobCancelRequested)]
    return bool(requested) and (datetime.now(UTC) - requested[-1]).total_seconds() < _SAME_REQUEST_S


async def pause_job(gateway: Gateway, caller: ApiKey, id: str, *, named: StateName = str) -> JobRow:
    """Request that the owner of a started job release it. Repeating it changes nothing; another state is a 409."""

    def decide(history: JobHistory) -> Event | None:
        return JobPauseRequested(requested_by=caller.key_id) if history.state is State.STARTED else None

    return await _append_decision(
        gateway,
        caller,
        id,
        decide,
        fine={State.STARTED, State.PAUSING, State.PAUSED},
        named=named,
        expected="a job that is running",
        fix_of_waiting="pause it once it runs; a job that waits holds no worker, and can be cancelled",
    )


async def resume_job(gateway: Gateway, caller: ApiKey, id: str, *, named: StateName = str) -> JobRow:
    """Make a paused job's tasks due again, or submit a job that continues from the last checkpoint of a failed one.

    Returns the job that continues. A job that already continues is not changed; any other state is a 409. Raises a 429
    if the organisation's jobs may take no more GPU-seconds, or its events no more of the log.
    """

    def decide(history: JobHistory) -> Event | None:
        return JobResumed(requested_by=caller.key_id) if history.state is State.PAUSED else None

    row = await gateway.job(caller.org, id)
    if row.job.state is State.FAILED:
        return await _continue_job(gateway, caller, row)
    paused = row.job.state is State.PAUSED
    if paused:
        check_gpu_seconds(gateway, caller.org)
    fine = {State.PAUSED, State.VERIFIED, State.STARTED}
    with log_room(gateway, caller.org, _EVENT_BYTES) if paused else nullcontext():
        return await _append_decision(
            gateway, caller, id, decide, fine=fine, named=named, expected="a paused or failed job"
        )


async def _continue_job(gateway: Gateway, caller: ApiKey, failed: JobRow) -> JobRow:
    """Submit a job that continues a failed one from its checkpoint, or return one that does so and has not ended."""
    id, org = failed.job.id, caller.org
    route = f"/api/jobs/{id}/resume"
    # Each continuation has the next number. A deleted one keeps its number: its id cannot be used again.
    number = 0
    for number in itertools.count():
        later = job_id_for(org, route, str(number))
        row = gateway.read_model.job(org, later)
        if row is None and not gateway.read_model.is_deleted(org, later):
            break
        if row is not None and row.job.state not in TERMINAL:
            return row
    newest = next(iter(gateway.read_model.checkpoints(id)), None)
    checkpoint = gateway.read_model.checkpoint(org, newest.model) if newest is not None else None
    created = await read_last(gateway.bus, JobCreated, org, id)
    if checkpoint is None or created is None or not isinstance(created.event, JobCreated):
        days = gateway.settings.failed_checkpoint_days
        kept = "" if days is None else f": it is kept for {days:g} days (SYNTH_FAILED_CHECKPOINT_DAYS)"
        problem = Problem(
            what=f"the job failed, and has no checkpoint to go on from{kept}",
            expected="a failed job with a checkpoint, or a paused job",
            fix=f"submit it again: synthctl jobs config {id} > again.toml",
            where=id,
        )
        raise ApiError(409, problem.text(), problems=[problem])
    known = checkpoint.checkpoint
    continues = Continuation(job=id, model=known.model, step=known.step, version=known.step, tree=checkpoint.tree)
    whole = await with_config(gateway.blobs, created.event)
    again = msgspec.structs.replace(whole, continues=continues, created_by=caller.key_id, body_sha256="")
    row, _ = await submit_job(gateway, org, again, route=route, key=str(number))
    return row


async def _append_decision(
    gateway: Gateway,
    caller: ApiKey,
    id: str,
    decide: Callable[[JobHistory], Event | None],
    *,
    fine: Collection[State],
    named: StateName,
    expected: str,
    fix_of_waiting: str = "",
) -> JobRow:
    """Append the event of a command, if there is one to append. Raises a 409 in another state than the fine ones.

    fix_of_waiting: for a job that has not started yet.
    """
    await gateway.job(caller.org, id)
    history, seq = await append_decided(gateway.bus, caller.org, id, decide)
    if seq is None and history.state is not None and history.state not in fine:
        fix = fix_of_waiting if history.state in _WAITING else ""
        problem = Problem(what=f"the job is {named(history.state)}", expected=expected, fix=fix, where=id)
        raise ApiError(409, problem.text(), problems=[problem])
    return await gateway.job_at(caller.org, id, seq or history.last_seq)
