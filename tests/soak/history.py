"""Checks the log of a cluster against what the platform promises, whatever was done to it meanwhile.

Each check takes the facts of one job and yields what contradicts a promise. It knows nothing of the faults.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from synth.bus.recorded import Recorded, UnknownEvent, encode
from synth.events import (
    CheckpointSaved,
    EvalCompleted,
    FileDeleted,
    FileReady,
    FileRejected,
    FileUploaded,
    Heartbeat,
    JobStarted,
    PolicyPublished,
    QueueWaiting,
    RolloutBatched,
    RolloutBlocked,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
    TrainStep,
)
from synth.events.catalogue import Write, spec_of
from synth.jobs.lifecycle import TERMINAL_FACTS, IllegalTransition, JobStatus
from synth.transcripts.batch_header import BatchMeta

#: What may still be said of a job that has ended: its rollouts' last words, what is done with what it made,
#: and the logs of its tasks.
_AFTER_THE_END = (
    "collection.started",
    "blob.expired",
    "watch.heartbeat",
    "job.deleted",
    "model.deleted",
    "model.leased",
    "policy.loaded",
    "policy.refused",
    "queue.waiting",
)


@dataclass(frozen=True)
class Violation:
    """A promise that the log does not keep. promise: its name, as the checks' table has it."""

    promise: str
    job: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.job}: {self.what}"


@dataclass(frozen=True)
class JobHistory:
    """The facts of one job in the order of the log, the batches that they name, and how the job should have ended."""

    job: str
    facts: Sequence[Recorded]
    batches: Mapping[int, BatchMeta]
    expected: frozenset[str]

    def of(self, type: str) -> list[Recorded]:
        """The facts of one type."""
        return [fact for fact in self.facts if fact.type == type]


_Check = Callable[[JobHistory], Iterator[str]]


def check_job(history: JobHistory) -> list[Violation]:
    """Everything in the job's log that contradicts a promise."""
    return [Violation(name, history.job, what) for name, check in CHECKS.items() for what in check(history)]


def check_log(facts: Sequence[Recorded], seen: Iterable[Recorded]) -> list[Violation]:
    """What is wrong with the log as a whole. seen: the facts that a reader was given while it grew."""
    found = [
        Violation("each fact is in the log once", second.key, f"{second.id} at {first.seq} and {second.seq}")
        for first, second in _twice(facts)
    ]
    found += [
        Violation("each fact is said once", second.key, f"{second.type} at {first.seq} and {second.seq}")
        for first, second in _said_twice(facts)
    ]
    found += [
        Violation("the log has one order", b.key, f"{b.seq} behind {a.seq}")
        for a, b in pairwise(facts)
        if b.seq <= a.seq
    ]
    kept = {fact.seq: fact.id for fact in facts}
    found += [
        Violation("what was acknowledged is kept", fact.key, f"{fact.type} at {fact.seq} is gone")
        for fact in seen
        if kept.get(fact.seq) != fact.id and fact.type not in ("watch.heartbeat", "train.progressed")
    ]
    return found


def _twice(facts: Sequence[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    first: dict[str, Recorded] = {}
    for fact in facts:
        if fact.id and fact.id in first:
            yield first[fact.id], fact
        first.setdefault(fact.id, fact)


def _said_twice(facts: Sequence[Recorded]) -> Iterator[tuple[Recorded, Recorded]]:
    """Facts that only their ids protect, and that say the same of the same thing."""
    first: dict[tuple[str, str, str, bytes, int], Recorded] = {}
    state_since: dict[str, int] = {}
    for fact in facts:
        if fact.type.startswith("job."):
            state_since[fact.key] = fact.seq
        if isinstance(fact.event, UnknownEvent) or spec_of(fact.event).write is not Write.ONCE:
            continue
        if isinstance(fact.event, Heartbeat | FileUploaded | FileReady | FileRejected | FileDeleted):
            # A job is still alive, and a file may be deleted and come again.
            continue
        # A job that is resumed may wait once more, for as long as before.
        since = state_since.get(fact.key, 0) if isinstance(fact.event, QueueWaiting) else 0
        said = (fact.type, fact.org, fact.key, encode(fact.event), since)
        if said in first and first[said].id != fact.id:
            yield first[said], fact
        first.setdefault(said, fact)


def _lifecycle(history: JobHistory) -> Iterator[str]:
    status = JobStatus()
    ends: list[str] = []
    for fact in history.facts:
        if isinstance(fact.event, UnknownEvent):
            yield f"{fact.type} at {fact.seq} cannot be read"
        late = fact.type in _AFTER_THE_END or fact.type.startswith("rollout.") or fact.type.endswith(".logged")
        if ends and not late:
            yield f"{fact.type} at {fact.seq}, behind {ends[0]}"
        if not fact.type.startswith("job."):
            continue
        try:
            status.add(fact.type)
        except IllegalTransition as error:
            yield f"at {fact.seq}: {error}"
        if fact.type in TERMINAL_FACTS:
            ends.append(fact.type)
    if len(ends) != 1:
        yield f"it has {len(ends)} endings: {', '.join(ends) or 'none'}"
    elif ends[0] not in history.expected:
        last = next(fact.event for fact in reversed(history.facts) if fact.type == ends[0])
        yield f"it ended with {ends[0]}, not with {' or '.join(sorted(history.expected))}: {last}"


def _one_owner(history: JobHistory) -> Iterator[str]:
    attempt = 0
    for fact in history.facts:
        event = fact.event
        if isinstance(event, JobStarted):
            if event.attempt != attempt + 1:
                yield f"attempt {event.attempt} behind attempt {attempt}"
            attempt = event.attempt
        elif isinstance(event, PolicyPublished | CheckpointSaved | TrainStep) and event.attempt != attempt:
            yield f"{fact.type} at {fact.seq} is of attempt {event.attempt}, while {attempt} owned the job"


def _each_step_once(history: JobHistory) -> Iterator[str]:
    trained = [fact.event.step for fact in history.facts if isinstance(fact.event, TrainStep)]
    if trained != list(range(1, len(trained) + 1)):
        yield f"its steps are {_short(trained)}"
    versions = [fact.event.version for fact in history.facts if isinstance(fact.event, PolicyPublished)]
    # A version that is published again by the next attempt has the same number, and the same weights.
    for before, after in pairwise(versions):
        if after > before + 1:
            yield f"version {after} behind version {before}"


def _each_rollout_once(history: JobHistory) -> Iterator[str]:
    counted = Counter(
        (fact.event.mode, fact.event.rollout_id) for fact in history.facts if isinstance(fact.event, RolloutCompleted)
    )
    yield from (f"{mode} rollout {id} is counted {n} times" for (mode, id), n in counted.items() if n > 1)
    places = Counter(
        (event.mode, event.iteration, event.index)
        for fact in history.facts
        if isinstance(event := fact.event, RolloutCompleted)
    )
    yield from (f"place {place} was played {n} times" for place, n in places.items() if n > 1)


def _batches_are_the_logged_rollouts(history: JobHistory) -> Iterator[str]:
    logged: dict[int, dict[str, RolloutCompleted]] = defaultdict(dict)
    rewards: dict[str, float] = {}
    asked: set[int] = set()
    at = 0
    for fact in history.facts:
        match fact.event:
            case RolloutRequested(mode="train") as requested:
                asked.add(requested.iteration)
            case RolloutCompleted(mode="train") as done:
                logged[done.iteration][done.rollout_id] = done
            case RolloutJudged() as judged if judged.reward is not None:
                rewards[judged.rollout_id] = judged.reward
            case RolloutBatched() as batched:
                at += 1
                if batched.iteration != at:
                    yield f"batch {batched.iteration} stands in the place of batch {at}"
                if batched.iteration not in asked:
                    yield f"batch {batched.iteration} was never asked for"
                meta = history.batches.get(batched.iteration)
                if meta is None:
                    yield f"batch {batched.iteration} cannot be read"
                    continue
                yield from _batch(meta, logged[batched.iteration], rewards)
            case _:
                continue


def _batch(meta: BatchMeta, logged: dict[str, RolloutCompleted], judged: dict[str, float]) -> Iterator[str]:
    members = Counter(rollout.rollout_id for rollout in meta.rollouts)
    for id, n in members.items():
        if n > 1:
            yield f"batch {meta.iteration} has rollout {id} {n} times"
    for rollout in meta.rollouts:
        done = logged.get(rollout.rollout_id)
        if done is None:
            yield f"batch {meta.iteration} has rollout {rollout.rollout_id}, which the log before it has not"
            continue
        reward = judged.get(rollout.rollout_id, done.reward)
        if (done.seed, done.group, reward) != (rollout.seed, rollout.group, rollout.reward):
            yield f"batch {meta.iteration} has another rollout {rollout.rollout_id} than the log"


def _evaluations(history: JobHistory) -> Iterator[str]:
    steps = Counter(
        (fact.event.step, fact.event.iteration) for fact in history.facts if isinstance(fact.event, EvalCompleted)
    )
    yield from (f"the evaluation of step {step} ended {n} times" for (step, _), n in steps.items() if n > 1)


def _no_healthy_job_is_blocked(history: JobHistory) -> Iterator[str]:
    for fact in history.facts:
        if isinstance(fact.event, RolloutBlocked):
            yield f"rollout.blocked at {fact.seq}: {fact.event.problem.what}"
        if isinstance(fact.event, RolloutFailed):
            yield f"rollout.failed at {fact.seq}: {fact.event}"


def _a_policy_is_given_its_time(history: JobHistory) -> Iterator[str]:
    for fact in history.facts:
        if isinstance(done := fact.event, RolloutCompleted) and done.calls and not done.completion_tokens:
            yield f"rollout {done.rollout_id} counts without a token of its {done.calls} calls"


def _steps_have_their_checkpoint(history: JobHistory) -> Iterator[str]:
    saved = 0
    for fact in history.facts:
        if isinstance(fact.event, CheckpointSaved):
            saved = max(saved, fact.event.step)
        elif isinstance(fact.event, TrainStep) and fact.event.step > saved:
            yield f"step {fact.event.step} was announced before a checkpoint covered it"


def _short(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers))
    return text if len(text) < 200 else f"{text[:90]} … {text[-90:]}"


#: Promise → what finds it broken.
CHECKS: dict[str, _Check] = {
    "a job ends once, as it should": _lifecycle,
    "a job has one owner": _one_owner,
    "each step is trained once": _each_step_once,
    "a step is durable before it is announced": _steps_have_their_checkpoint,
    "each rollout counts once": _each_rollout_once,
    "a batch is made of the logged rollouts": _batches_are_the_logged_rollouts,
    "a policy is given its time": _a_policy_is_given_its_time,
    "an evaluation ends once": _evaluations,
    "faults of ours are no failures of the environment": _no_healthy_job_is_blocked,
}
