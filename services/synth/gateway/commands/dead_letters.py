"""An operator's commands for a dead letter: have it handled again, or settle it.

The action comes before the event that records it. Between the two the letter is still open, and repeating the action
changes nothing.
"""

from __future__ import annotations

from synth.api.dead_letters import DeadLetter, SettledLetter
from synth.bus.history.job_log import JobHistory, append_decided, read_job
from synth.bus.kv.secrets import ApiKey
from synth.bus.publish import enqueue, enqueue_redelivery
from synth.bus.server.topology import queue_name
from synth.errors import Problem
from synth.events import JobParked, JobPaused, JobResumed, LetterDropped, LetterRetried
from synth.events.catalogue import CATALOGUE, Event, Reading, Role
from synth.gateway.dead_letters import read_letter
from synth.gateway.deps import Gateway
from synth.gateway.errors import ApiError, not_found
from synth.jobs.lifecycle import State
from synth.runtime import logs
from synth.work import Redelivery, task_of

log = logs.get("dead letters")

#: The number of characters of a letter's reason that are also in the reason of its pause, at least.
_SAME_REASON = 200


async def retry_letter(gateway: Gateway, caller: ApiKey, id: int) -> SettledLetter:
    """Resume the job that the letter parked, or else queue its event or its task again.

    Raises a 409 if the letter is settled or its job has ended, and a 422 if it names nothing to handle.
    """
    letter = await _open_letter(gateway, id)
    queue, task = _queue_of(letter), task_of(letter.subject)
    if letter.org is None or letter.about is None or (queue is None and task is None):
        raise _refused(422, letter, "its subject names no event and no task of this version", fix="drop it")
    resumed = not letter.about.startswith("file_") and await _resume(gateway, caller, letter, letter.org, letter.about)
    if not resumed and task is not None:
        await enqueue(gateway.bus, task)
    elif not resumed and queue is not None:
        again = Redelivery(seq=letter.seq, letter=letter.id)
        await enqueue_redelivery(gateway.bus, again, queue=queue, org=letter.org, key=letter.about)
    how = "resumed" if resumed else "queued"
    await _settle(gateway, letter, LetterRetried(letter=id, how=how, requested_by=caller.key_id))
    log.info("dead letter retried", letter=id, how=how, subject=letter.subject, by=caller.key_id)
    return await _settled(gateway, id, how)


async def drop_letter(gateway: Gateway, caller: ApiKey, id: int) -> SettledLetter:
    """Settle a letter without any action. Raises a 409 if it is settled."""
    letter = await _open_letter(gateway, id)
    await _settle(gateway, letter, LetterDropped(letter=id, requested_by=caller.key_id))
    log.info("dead letter dropped", letter=id, subject=letter.subject, by=caller.key_id)
    return await _settled(gateway, id, "dropped")


async def _open_letter(gateway: Gateway, id: int) -> DeadLetter:
    found = await read_letter(gateway.bus, id)
    if found is None:
        raise not_found("dead letter", str(id))
    if found.letter.state != "open":
        raise _refused(409, found.letter, f"it was {found.letter.state} by {found.letter.settled_by}", fix="")
    return found.letter


def _queue_of(letter: DeadLetter) -> str | None:
    """Return the queue from which the letter's event was taken; None if its service takes no such event."""
    type = ".".join(letter.subject.split(".")[:2])
    reader = next((role for role in Role if role.value == letter.service), None)
    if type not in CATALOGUE or reader is None or CATALOGUE[type].reads.get(reader) is not Reading.QUEUE:
        return None
    return queue_name(reader, type) if letter.seq else None


async def _resume(gateway: Gateway, caller: ApiKey, letter: DeadLetter, org: str, job_id: str) -> bool:
    """Resume the letter's job if it is parked; return False if its work is due already."""
    history = await read_job(gateway.bus, org, job_id)
    if history.ended or history.state is None:
        what = f"its job {job_id} is {history.state}" if history.ended else f"there is no job {job_id}"
        raise _refused(409, letter, what, fix="submit the job again, and drop the letter")

    def decide(now: JobHistory) -> Event | None:
        if now.state is not State.PAUSED:
            return None
        if not _paused_by(letter, now):
            what = f"its job {job_id} was paused by somebody else, or for another reason"
            raise _refused(409, letter, what, fix=f"resume the job if it is to go on: synthctl jobs resume {job_id}")
        return JobResumed(requested_by=caller.key_id)

    _, seq = await append_decided(gateway.bus, org, job_id, decide)
    return seq is not None


def _paused_by(letter: DeadLetter, history: JobHistory) -> bool:
    """Return whether this letter caused the job's current pause: both have the same reason."""
    pause = next(fact.event for fact in reversed(history.facts) if isinstance(fact.event, JobPaused | JobParked))
    said = pause.problem.text() if isinstance(pause, JobParked) else pause.reason
    return " ".join(letter.reason.split())[:_SAME_REASON] in " ".join(said.split())


async def _settle(gateway: Gateway, letter: DeadLetter, decision: LetterRetried | LetterDropped) -> None:
    # A letter without an owner is settled under names that no organisation and no job can have.
    org, key = letter.org or "none", letter.about or f"letter_{letter.id}"
    stored = int(letter.created_at.timestamp() * 1000)
    await gateway.publisher.once(decision, org=org, key=key, id=f"{letter.id}:{stored}")


async def _settled(gateway: Gateway, id: int, how: str) -> SettledLetter:
    result = await read_letter(gateway.bus, id)
    assert result is not None
    return SettledLetter(letter=result.letter, how=how)


def _refused(status: int, letter: DeadLetter, what: str, *, fix: str) -> ApiError:
    problem = Problem(what=f"dead letter {letter.id} cannot be settled so: {what}", fix=fix, where=letter.subject)
    return ApiError(status, problem.text(), problems=[problem])
