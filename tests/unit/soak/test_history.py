"""The checker of histories finds each promise that a log breaks: a good log is broken in one place at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from synth.bus.recorded import Recorded
from synth.errors import Problem
from synth.events import (
    BlobRef,
    CheckpointSaved,
    EvalCompleted,
    JobCreated,
    JobFailed,
    JobStarted,
    JobSucceeded,
    JobValidated,
    JobVerified,
    ModelLeased,
    ModelRef,
    PolicyLoaded,
    PolicyPublished,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutRequested,
    TrainStep,
)
from synth.events.catalogue import Event, spec_of
from synth.transcripts.batch_header import BatchMeta, RolloutMeta
from tests.soak.history import JobHistory, check_job, check_log

JOB = "job_1"
BLOB = BlobRef(uri="blob://x", size=1, sha256="0" * 64)
MODEL = ModelRef(id="tiny")
PROBLEM = Problem(what="it broke", expected="nothing", fix="nothing")


def completed(iteration: int, index: int) -> RolloutCompleted:
    return RolloutCompleted(
        rollout_id=f"r{iteration}-{index}",
        iteration=iteration,
        mode="train",
        index=index,
        group=index // 2,
        seed=index // 2,
        reward=float(index % 2),
        trajectory=BLOB,
        completion_tokens=3,
        calls=1,
        versions=(iteration - 1, iteration - 1),
        seconds=1.0,
        tries=1,
    )


def batched(iteration: int) -> RolloutBatched:
    return RolloutBatched(iteration=iteration, batch=BLOB, sequences=4, groups_kept=2, groups_dropped=0, values={})


def saved(step: int, attempt: int) -> CheckpointSaved:
    return CheckpointSaved(step=step, version=step, attempt=attempt, tree=BLOB, size=1, model=MODEL)


def requested(iteration: int) -> RolloutRequested:
    return RolloutRequested(iteration=iteration, mode="train", seeds=[0, 1], group_size=2, oldest_version=0)


def good() -> list[Event]:
    """Two steps of two groups of two; the second by another attempt."""
    return [
        JobCreated(config="", config_name="job.toml", body_sha256=""),
        JobValidated(job={}, origins={}, warnings=[]),
        JobVerified(source=MODEL),
        JobStarted(attempt=1, worker="trainer-0"),
        requested(1),
        *(completed(1, index) for index in range(4)),
        batched(1),
        PolicyPublished(version=1, attempt=1, kind="full", weights=BLOB),
        saved(1, attempt=1),
        TrainStep(step=1, of=2, attempt=1, values={}),
        requested(2),
        *(completed(2, index) for index in range(4)),
        JobStarted(attempt=2, worker="trainer-1"),
        batched(2),
        PolicyPublished(version=2, attempt=2, kind="full", weights=BLOB),
        saved(2, attempt=2),
        TrainStep(step=2, of=2, attempt=2, values={}),
        JobSucceeded(steps=2),
    ]


def recorded(events: list[Event]) -> list[Recorded]:
    now = datetime.now(UTC)
    return [
        Recorded(seq=n, time=now, type=spec_of(event).type, org="org_1", key=JOB, id=f"{n}", event=event)
        for n, event in enumerate(events, start=1)
    ]


def meta(iteration: int, rollouts: list[RolloutCompleted]) -> BatchMeta:
    members = [RolloutMeta(rollout_id=r.rollout_id, seed=r.seed, group=r.group, reward=r.reward) for r in rollouts]
    return BatchMeta(
        job_id=JOB, iteration=iteration, temperature=1.0, rollouts=members, groups_kept=2, groups_dropped=0
    )


def history(events: list[Event], **batches: BatchMeta) -> JobHistory:
    known = {k: meta(k, [completed(k, index) for index in range(4)]) for k in (1, 2)}
    known |= {batch.iteration: batch for batch in batches.values()}
    return JobHistory(JOB, recorded(events), known, frozenset({"job.succeeded"}))


def broken(history: JobHistory) -> set[str]:
    return {violation.promise for violation in check_job(history)}


def at(events: list[Event], kind: type[Event], nth: int = 0) -> int:
    return [n for n, event in enumerate(events) if isinstance(event, kind)][nth]


def test_a_good_history_keeps_every_promise():
    # Another job starts from what this one made.
    assert check_job(history([*good(), ModelLeased(tree="blob://x", job="job_2")])) == []


def _without(kind: type[Event], nth: int = 0) -> Callable[[], list[Event]]:
    def change() -> list[Event]:
        events = good()
        del events[at(events, kind, nth)]
        return events

    return change


def _with(event: Event, *, before: type[Event], nth: int = 0) -> Callable[[], list[Event]]:
    def change() -> list[Event]:
        events = good()
        events.insert(at(events, before, nth), event)
        return events

    return change


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        (_without(JobSucceeded), "a job ends once, as it should"),
        (_with(JobFailed(code="x", problem=PROBLEM), before=JobSucceeded), "a job ends once, as it should"),
        (_with(saved(1, attempt=1), before=JobSucceeded), "a job has one owner"),
        (_without(JobStarted, 0), "a job has one owner"),
        (_with(TrainStep(step=2, of=2, attempt=2, values={}), before=JobSucceeded), "each step is trained once"),
        (_without(TrainStep, 0), "each step is trained once"),
        (_without(CheckpointSaved, 1), "a step is durable before it is announced"),
        (_with(completed(1, 0), before=RolloutBatched), "each rollout counts once"),
        (_without(RolloutCompleted, 2), "a batch is made of the logged rollouts"),
        (_without(RolloutBatched, 0), "a batch is made of the logged rollouts"),
        (_without(RolloutRequested, 1), "a batch is made of the logged rollouts"),
        (
            _with(RolloutBlocked(iteration=1, problem=PROBLEM), before=RolloutBatched),
            "faults of ours are no failures of the environment",
        ),
    ],
)
def test_a_fact_too_few_or_too_many_is_found(change: Callable[[], list[Event]], promise: str):
    assert promise in broken(history(change()))


def test_an_evaluation_that_ends_twice_is_found():
    ended = EvalCompleted(model="tiny", instances=1, values={}, step=1)
    events = good()
    events[-1:-1] = [ended, ended]
    assert broken(history(events)) == {"an evaluation ends once"}


def test_a_batch_of_a_rollout_that_was_never_logged_or_has_another_reward_is_found():
    rollouts = [completed(2, index) for index in range(4)]
    strange = msgspec.structs.replace(rollouts[0], rollout_id="r2-9")
    other = msgspec.structs.replace(rollouts[0], reward=0.5)
    for wrong in (strange, other, rollouts[1]):
        found = broken(history(good(), wrong=meta(2, [wrong, *rollouts[1:]])))
        assert found == {"a batch is made of the logged rollouts"}


def test_a_reply_that_a_clock_cut_off_is_found():
    events = good()
    n = at(events, RolloutCompleted)
    events[n] = msgspec.structs.replace(completed(1, 0), completion_tokens=0)
    assert broken(history(events)) == {"a policy is given its time"}


def test_what_the_log_has_twice_or_lost_is_found():
    facts = recorded(good())
    assert check_log(facts, facts) == []
    twice = [*facts, replace(facts[3], seq=len(facts) + 1)]
    assert {v.promise for v in check_log(twice, facts)} == {"each fact is in the log once"}
    lost = [fact for fact in facts if fact.seq != 4]
    assert {v.promise for v in check_log(lost, facts)} == {"what was acknowledged is kept"}
    assert {v.promise for v in check_log([facts[1], facts[0]], [])} == {"the log has one order"}
    loaded = PolicyLoaded(version=1, replica="inference-0", seconds=0.25, proven=3)
    facts = recorded([*good(), loaded, msgspec.structs.replace(loaded, seconds=0.5)])
    assert check_log(facts, facts) == []
    again = [*facts, replace(facts[-1], seq=len(facts) + 1, id="another")]
    assert {v.promise for v in check_log(again, facts)} == {"each fact is said once"}
