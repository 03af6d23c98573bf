"""The verdict of a training job, with the likely cause if it did not learn.

The verdict of an RL job compares the evaluations of its final policy and of its source, both read from the log.
"""

from __future__ import annotations

import statistics
from contextlib import aclosing

import msgspec

from synth.bus.connection import Connection
from synth.bus.replay import follow, replay
from synth.estimates.repeated import seed_means
from synth.estimates.verdict import Verdict, compare_policies
from synth.events import (
    Continuation,
    EvalCompleted,
    JobValidated,
    RolloutBatched,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
)
from synth.methods.base import TrainingJob
from synth.methods.rl import RlJob
from synth.trainer.owner.attempt import Attempt

_FACTS = ("rollout.completed", "rollout.judged", "rollout.failed", "eval.completed")
#: Fewer iterations than this are a likely cause in themselves.
_FEW = 20


async def read_verdict(attempt: Attempt, job: RlJob, last_step: int) -> Verdict | None:
    """Compare the evaluations of the last step and of step 0. Returns None if the job did not evaluate both.

    Call it when the evaluation of the last step has ended. A job that continues another one is compared with step 0 of
    the first job; None if that job was deleted.
    """
    bus, org, job_id = attempt.bus, attempt.fence.org, attempt.fence.job_id
    if last_step == 0 or last_step not in attempt.announced.evaluated:
        return None
    attempt.lease.progress("compare the evaluations", deadline=attempt.settings.model_io_s)
    continues, first, requested = attempt.announced.continues, job_id, await _evaluations(bus, org, job_id)
    last = requested[last_step]
    while 0 not in requested and continues is not None:
        first, continues = continues.job, await _continued(bus, org, continues.job)
        requested = await _evaluations(bus, org, first)
    if 0 not in requested:
        return None
    before = await _rewards(bus, org, first, 0, after=requested[0])
    after = await _rewards(bus, org, job_id, last_step, after=last)
    verdict = compare_policies(seed_means(before), seed_means(after))
    if verdict is None or verdict.outcome == "learned":
        return verdict
    batches = attempt.announced.batches
    cause, next = _explain(verdict, job, job_id, [batches[k] for k in sorted(batches) if k <= last_step])
    return msgspec.structs.replace(verdict, cause=cause, next=next)


async def _evaluations(bus: Connection, org: str, job_id: str) -> dict[int, int]:
    """Return the iterations of the evaluations that have ended, each with the sequence of its request."""
    requested: dict[int, int] = {}
    ended: set[int] = set()
    for recorded in await replay(bus, [f"{fact}.{org}.{job_id}" for fact in ("rollout.requested", "eval.completed")]):
        match recorded.event:
            case RolloutRequested(mode="eval", iteration=k):
                requested[k] = recorded.seq
            case EvalCompleted(iteration=k):
                ended.add(k)
            case _:
                pass
    return {k: seq for k, seq in requested.items() if k in ended}


async def _continued(bus: Connection, org: str, job_id: str) -> Continuation | None:
    """Return the checkpoint at which a job began; None for its source model."""
    for recorded in await replay(bus, [f"job.validated.{org}.{job_id}"]):
        if isinstance(recorded.event, JobValidated):
            return recorded.event.continues
    return None


async def _rewards(bus: Connection, org: str, job_id: str, iteration: int, *, after: int) -> dict[int, list[float]]:
    """Return the rewards of an evaluation by seed. after: the sequence of its request; its `eval.completed` ends it."""
    rewards: dict[str, tuple[int, float]] = {}
    async with aclosing(follow(bus, [f"{fact}.{org}.{job_id}" for fact in _FACTS], after=after)) as events:
        async for recorded in events:
            match recorded.event:
                case RolloutCompleted(mode="eval", iteration=k) as event if k == iteration:
                    rewards[event.rollout_id] = event.seed, event.reward
                case RolloutJudged(rollout_id=id, reward=reward) if id in rewards:
                    if reward is None:
                        del rewards[id]
                    else:
                        rewards[id] = rewards[id][0], reward
                case RolloutFailed(rollout_id=id):
                    rewards.pop(id, None)
                case EvalCompleted(iteration=k) if k == iteration:
                    break
                case _:
                    pass
    by_seed: dict[int, list[float]] = {}
    for seed, reward in rewards.values():
        by_seed.setdefault(seed, []).append(reward)
    return by_seed


def explain_validation(verdict: Verdict, job: TrainingJob, values: dict[str, float]) -> Verdict:
    """Add the likely cause that an SFT or DPO job did not learn. values: of its last step."""
    if verdict.outcome == "learned":
        return verdict
    if verdict.outcome == "worse" and values.get("loss", verdict.after) < verdict.before:
        cause = f"the training loss fell to {values['loss']:.3g}: the model learned its training rows by heart"
        next = "train for fewer epochs, or keep the best weights: [training.validation] save_best_model_at_end = true"
    elif verdict.outcome == "worse":
        cause = "the updates were too large"
        next = f"submit it again with a tenth of learning_rate, {job.lr:g}"
    else:
        cause = f"learning_rate {job.lr:g} and the number of steps changed the model too little"
        next = "submit it again with more epochs, or with a larger learning_rate"
    return msgspec.structs.replace(verdict, cause=cause, next=next)


def _explain(verdict: Verdict, job: RlJob, job_id: str, batches: list[RolloutBatched]) -> tuple[str, str]:
    """Return the most likely cause that a job did not learn, and what to try next; the surest cause first."""
    worst = f"synthctl rollouts ls {job_id} --worst"
    if verdict.outcome == "worse":
        return "the updates were too large for this task", (
            f"submit it again with half the [training] learning_rate; synthctl jobs metrics {job_id} --plot"
        )
    if verdict.before == verdict.after == 0.0:
        return "no rollout of either evaluation earned anything", f"read the model's answers: {worst}"
    if verdict.low == verdict.high == 0.0 and verdict.before == 1.0:
        return "the source already earned 1 on every seed", "take seeds that it does not solve yet"
    empty = sum(batch.groups_kept == 0 for batch in batches)
    if empty > len(batches) / 2:
        cause = f"in {empty} of {len(batches)} iterations the rollouts of every group earned the same"
        return cause, f"take seeds that the model solves now and then, or a larger group_size; {worst}"
    earned = [batch.values["reward_mean"] for batch in batches if "reward_mean" in batch.values]
    if len(earned) >= 6:
        third = len(earned) // 3
        first, last = statistics.fmean(earned[:third]), statistics.fmean(earned[-third:])
        if last - first > max(verdict.high, 0.05 * max(abs(first), abs(last))):
            cause = f"the reward rose in training, {first:.2g} → {last:.2g}, and not on the seeds of the evaluation"
            return cause, "give [data] seeds a wider range"
    half = (verdict.high - verdict.low) / 2
    if len(batches) < _FEW:
        cause = f"{len(batches)} iterations are few for learning_rate {job.lr:g}"
        return cause, "submit it again with more iterations, or with a larger [training] learning_rate"
    cause = f"{verdict.count} seeds show no difference below {half:.2g}, and training made a smaller one"
    return cause, "give [evaluation] more instances, or [training] a larger learning_rate"
