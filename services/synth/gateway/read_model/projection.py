"""The API's views of jobs and files: pure functions from a view and one more event to the next view.

A view is disposable: a replay of the log from the start gives the same view. An event that cannot follow (from a newer
writer or a damaged log) leaves the view unchanged.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from synth.api.job_clock import TURN_WAIT, JobClock
from synth.api.schemas import File, Job, JudgeTotals
from synth.bus.recorded import Recorded
from synth.events import (
    BlobRef,
    EvalCompleted,
    FileDeleted,
    FileReady,
    FileRejected,
    FileUploaded,
    Heartbeat,
    JobCreated,
    JobFailed,
    JobParked,
    JobPaused,
    JobRefused,
    JobRejected,
    JobResumed,
    JobStarted,
    JobSucceeded,
    JobValidated,
    JobVerified,
    Logged,
    ModelDeleted,
    ModelPublished,
    PolicyLoaded,
    QueueWaiting,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    TrainProgressed,
    TrainResumed,
    TrainStep,
    TrainWarned,
    trees_of,
)
from synth.gateway.presentation.vocabulary import is_shown
from synth.jobs.lifecycle import TERMINAL, TRANSITIONS, State


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job, with the data that only the gateway needs.

    state_since: the time of its last lifecycle fact. last_shown_at: the time of its last event that is shown.
    clock: how long it was queued and ran. waiting: its last announced place in the queue, since its last other fact.
    data_uris: the blobs of the files that it was verified with. source_trees: the manifests of the model that it was
    verified with, and of that model's bases. continued_tree: the manifest of the checkpoint that it continues from.
    log_bytes: of the services' stored logs about it. event_bytes: of its events in the log.
    """

    job: Job
    org: str
    created_seq: int
    state_since: datetime
    last_shown_at: datetime
    clock: JobClock = JobClock()
    waiting: QueueWaiting | None = None
    ended_seq: int | None = None
    policy_loaded: bool = False
    data_uris: list[str] = []
    source_trees: list[str] = []
    continued_tree: str | None = None
    log_bytes: int = 0
    event_bytes: int = 0

    @property
    def kept(self) -> dict[str, int]:
        """Return the job's part of its organisation's totals (`tables.org_totals`)."""
        return {"log_bytes": self.log_bytes, "event_bytes": self.event_bytes}


class FileRow(msgspec.Struct, frozen=True, kw_only=True):
    """A file and the blobs of its bytes.

    rewritten: its rows in the form for training. created_seq: the sequence of its upload. event_bytes: of its events in
    the log.
    """

    file: File
    blob: BlobRef
    rewritten: BlobRef | None = None
    org: str
    created_seq: int
    event_bytes: int = 0

    @property
    def uris(self) -> list[str]:
        """Return the blobs that belong only to this file."""
        return [self.blob.uri, *([self.rewritten.uri] if self.rewritten else [])]

    @property
    def kept(self) -> dict[str, int]:
        """Return the file's part of its organisation's totals (`tables.org_totals`)."""
        pending = int(self.file.status == "processing")
        return {"file_bytes": self.file.bytes, "files_pending": pending, "event_bytes": self.event_bytes}


class Trash(msgspec.Struct, frozen=True, kw_only=True):
    """The blobs of a deleted item, to be removed when nothing from before the deletion needs them any more.

    uris: the blobs of a file. tree: the manifest of a model. folder: the folder of a job's output. spared: the
    manifests in the folder that were still needed when the rest was removed.
    """

    uris: list[str] = []
    tree: BlobRef | None = None
    folder: str = ""
    spared: list[str] = []
    org: str
    deleted_seq: int


def apply_to_job(row: JobRow | None, recorded: Recorded) -> JobRow | None:
    """Return the job after one more of its events; None for an event of a job that was never created."""
    event, time = recorded.event, recorded.time
    if isinstance(event, JobCreated):
        return row or _create_row(event, recorded)
    if row is None:
        return None
    if is_shown(recorded):
        row = msgspec.structs.replace(row, last_shown_at=time)
    if isinstance(event, Heartbeat):
        return _replace(row, recorded)
    if isinstance(event, Logged):
        return msgspec.structs.replace(_replace(row, recorded), log_bytes=event.bytes)
    if isinstance(event, QueueWaiting):
        return msgspec.structs.replace(_replace(row, recorded), waiting=event)
    if recorded.type.startswith("job."):
        row = _transition(row, recorded)
    elif isinstance(event, TrainStep):
        row = _tick(row, row.clock.add_step(event.step, time, turn_wait_s=event.values.get(TURN_WAIT, 0.0)))
    else:
        row = _tick(row, row.clock.add(recorded.type, time))
    row = _replace(row, recorded, updated_at=time, **_facts(row.job, recorded))
    row = msgspec.structs.replace(row, waiting=None)
    if isinstance(event, JobVerified):
        uris = [ref.uri for ref in (event.training_data, event.validation_data) if ref is not None]
        trees = [*trees_of(event.source), *trees_of(event.teacher)]
        row = msgspec.structs.replace(row, data_uris=uris, source_trees=trees)
    if isinstance(event, PolicyLoaded | JobPaused | JobParked):
        row = msgspec.structs.replace(row, policy_loaded=isinstance(event, PolicyLoaded))
    return row


def apply_to_file(row: FileRow | None, recorded: Recorded) -> FileRow | None:
    """Return the file after one more of its events; None if it does not exist, or was deleted."""
    event = recorded.event
    if isinstance(event, FileUploaded):
        file = File(
            id=recorded.key,
            filename=event.name,
            purpose=event.purpose,
            bytes=event.blob.size,
            sha256=event.blob.sha256,
            created_at=recorded.time,
        )
        return row or FileRow(file=file, blob=event.blob, org=recorded.org, created_seq=recorded.seq)
    if row is None or (isinstance(event, FileDeleted) and event.uploaded_seq == row.created_seq):
        return None
    if isinstance(event, FileReady):
        results = msgspec.structs.asdict(event)
        row = msgspec.structs.replace(row, rewritten=results.pop("rewritten"))
        return msgspec.structs.replace(row, file=msgspec.structs.replace(row.file, status="ready", **results))
    if isinstance(event, FileRejected):
        changes = {"bad_lines": event.bad_lines, "problems": event.problems}
        return msgspec.structs.replace(row, file=msgspec.structs.replace(row.file, status="failed", **changes))
    return row


def _create_row(event: JobCreated, recorded: Recorded) -> JobRow:
    job = Job(
        id=recorded.key,
        state=State.CREATED,
        kind=event.kind,
        name=event.name or event.config_name,
        source_model=event.model,
        training_file=event.training_file,
        validation_file=event.validation_file,
        metadata=event.metadata,
        linked_job_id=event.continues.job if event.continues is not None else None,
        created_at=recorded.time,
        updated_at=recorded.time,
        last_seq=recorded.seq,
    )
    time = recorded.time
    row = JobRow(
        job=job,
        org=recorded.org,
        created_seq=recorded.seq,
        state_since=time,
        last_shown_at=time,
        continued_tree=event.continues.tree.uri if event.continues is not None else None,
    )
    return _tick(row, row.clock.add(recorded.type, time))


def _tick(row: JobRow, clock: JobClock) -> JobRow:
    job = row.job if clock.times is row.clock.times else msgspec.structs.replace(row.job, times=clock.times)
    return msgspec.structs.replace(row, clock=clock, job=job)


def _replace(row: JobRow, recorded: Recorded, **changes: Any) -> JobRow:
    return msgspec.structs.replace(row, job=msgspec.structs.replace(row.job, last_seq=recorded.seq, **changes))


def _transition(row: JobRow, recorded: Recorded) -> JobRow:
    state = TRANSITIONS.get((row.job.state, recorded.type))
    if state is None:
        return row
    job = msgspec.structs.replace(row.job, state=state)
    row = msgspec.structs.replace(row, job=job, state_since=recorded.time)
    row = _tick(row, row.clock.add(recorded.type, recorded.time))
    if state not in TERMINAL:
        return row
    ended = msgspec.structs.replace(row.job, ended_at=recorded.time, provisional_step=None)
    return msgspec.structs.replace(row, job=ended, ended_seq=recorded.seq)


def _facts(job: Job, recorded: Recorded) -> dict[str, Any]:
    """Return the fields of the job that an event changes, except its state."""
    match recorded.event:
        case JobValidated() as e:
            source = e.job.get("model", job.source_model)
            kind, tags = e.job.get("kind"), e.job.get("tags") or {}
            # A graded job has its files beside its grader.
            named_in = e.job.get("graded") or e.job
            files = {name: named_in.get(name) for name in ("training_file", "validation_file")}
            named = {"name": e.name or job.name, "label": e.job.get("label"), "tags": tags}
            return {"kind": kind, "source_model": source, "warnings": e.warnings, **named, **files}
        case JobVerified() as e:
            return {"stand_in": e.source.stand_in}
        case JobRejected() as e:
            return {"problems": e.problems, "code": "rejected"}
        case JobRefused() as e:
            return {"problems": e.problems, "code": "refused"}
        case JobStarted() as e:
            # The steps of an earlier attempt after its last checkpoint are lost.
            return {"attempt": e.attempt, "started_at": job.started_at or recorded.time, "provisional_step": None}
        case JobPaused():
            return {"provisional_step": None}
        case JobParked() as e:
            return {"problems": [e.problem], "code": "parked"}
        case JobResumed():
            return {"problems": [], "code": None}
        case JobSucceeded() as e:
            return {"model": e.model or job.model, "reason": e.reason, "verdict": e.verdict}
        case JobFailed() as e:
            return {"problems": [e.problem], "code": e.code, "verdict": e.verdict}
        case TrainProgressed(steps=[]):
            return {}
        case TrainProgressed() as e:
            newest = max((s.step for s in e.steps), default=0)
            return {"provisional_step": newest if newest > job.step else None, "steps": e.of}
        case TrainStep() as e:
            tokens = job.trained_tokens + int(e.values.get("trained_tokens", 0))
            ahead = job.provisional_step if (job.provisional_step or 0) > e.step else None
            return {
                "step": e.step,
                "steps": e.of,
                "values": e.values,
                "trained_tokens": tokens,
                "provisional_step": ahead,
            }
        case TrainWarned() as e:
            return {"warned": job.warned | {e.rule: e}}
        case TrainResumed() as e:
            return {"step": max(job.step, e.step)}
        case EvalCompleted() as e:
            return {"eval": e.values}
        case ModelPublished() as e:
            return {"model": e.model.id}
        case ModelDeleted() as e:
            return {"model": None if job.model == e.model else job.model}
        case RolloutCompleted():
            return {"rollouts": msgspec.structs.replace(job.rollouts, completed=job.rollouts.completed + 1)}
        case RolloutJudged() as e:
            return {"judge": _add_judged(job.judge or JudgeTotals(), e)}
        case RolloutFailed():
            return {"rollouts": msgspec.structs.replace(job.rollouts, failed=job.rollouts.failed + 1)}
        case _:
            return {}


def _add_judged(totals: JudgeTotals, event: RolloutJudged) -> JudgeTotals:
    judged, unscored = totals.judged + (event.problem is None), totals.unscored + (event.problem is not None)
    calls = totals.calls + event.calls
    return JudgeTotals(
        judged=judged,
        unscored=unscored,
        calls=calls,
        tokens=totals.tokens + event.tokens,
        unreadable=totals.unreadable + event.unreadable,
        cost=totals.cost + event.cost,
        calls_per_rollout=calls / (judged + unscored),
    )
