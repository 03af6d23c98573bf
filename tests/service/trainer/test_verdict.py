"""The verdict of an RL job, read from its log: what both evaluations earned, and why a job did not learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from synth.bus.publish import Publisher
from synth.errors import Problem
from synth.estimates.verdict import Verdict
from synth.events import (
    BlobRef,
    Continuation,
    EvalCompleted,
    JobCreated,
    JobValidated,
    RolloutBatched,
    RolloutCompleted,
    RolloutFailed,
    RolloutJudged,
    RolloutRequested,
)
from synth.events.catalogue import Event
from synth.ids import new_job_id, new_org_id
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.trainer.owner.attempt import Attempt
from synth.trainer.owner.history import AttemptHistory
from synth.trainer.owner.verdict import read_verdict
from synth.validator.validate import validate
from tests.service.jobs import RL, make_model_dir, unclaimed

BLOB = BlobRef(uri="file:x", size=1, sha256="0" * 64)
LAST = 4


def rollout(k: int, seed: int, reward: float, *, mode: str = "eval") -> RolloutCompleted:
    return RolloutCompleted(
        rollout_id=f"{mode[0]}{k}_{seed}",
        iteration=k,
        mode=mode,
        index=0,
        group=seed,
        seed=seed,
        reward=reward,
        trajectory=BLOB,
        completion_tokens=1,
        calls=1,
        versions=(k, k),
        seconds=1.0,
        tries=1,
    )


def evaluation(k: int, *events: Event) -> list[Event]:
    seeds = [0, 1, 2, 3, 4]
    requested = RolloutRequested(iteration=k, mode="eval", seeds=seeds, group_size=1, oldest_version=k)
    return [requested, *events, EvalCompleted(model="m", instances=len(seeds), values={}, step=k, iteration=k)]


def paid(k: int, *rewards: float) -> list[Event]:
    return evaluation(k, *(rollout(k, seed, reward) for seed, reward in enumerate(rewards)))


def batch(k: int, reward: float, *, kept: int = 4) -> RolloutBatched:
    return RolloutBatched(
        iteration=k, batch=BLOB, sequences=4, groups_kept=kept, groups_dropped=4 - kept, values={"reward_mean": reward}
    )


@pytest.fixture
def verdict_of(bus_as, cluster_dir: Path):
    async def read(
        events: Sequence[Event],
        batches: Sequence[RolloutBatched] = (),
        last: int = LAST,
        *,
        earlier: Sequence[Sequence[Event]] = (),
    ) -> Verdict | None:
        """earlier: the events of the jobs that this one continues, the first job first."""
        created = JobCreated(config=RL, config_name="job.toml", body_sha256="0")
        validated = validate(created, Registry(make_model_dir(cluster_dir)))
        assert isinstance(validated, JobValidated), validated
        job = job_from_data(validated.job)
        assert isinstance(job, RlJob)
        publishers = {name: Publisher(await bus_as(name)) for name in ("trainer", "rollouts", "validator")}
        org, continues, fence = new_org_id(), None, unclaimed("", "")
        for of_job in (*earlier, events):
            fence = unclaimed(org, new_job_id())
            began = msgspec.structs.replace(validated, continues=continues)
            await publishers["validator"].lifecycle(began, org=org, key=fence.job_id, id="validated", after=0)
            for number, event in enumerate(of_job):
                by = "trainer" if isinstance(event, RolloutRequested) else "rollouts"
                await publishers[by].fenced(event, fence=fence, id=f"e{number}")
            at = f"rl:tiny:{fence.job_id}:step_1"
            following = Continuation(job=fence.job_id, model=at, step=1, version=1, tree=BLOB)
            if of_job is not events:
                continues = following
        announced = AttemptHistory(batches={b.iteration: b for b in batches}, continues=continues)
        announced.evaluated.update(event.iteration for event in events if isinstance(event, EvalCompleted))
        attempt: Any = SimpleNamespace(
            bus=await bus_as("trainer"),
            fence=fence,
            announced=announced,
            lease=SimpleNamespace(progress=lambda *a, **k: None),
            settings=SimpleNamespace(model_io_s=60.0),
        )
        return await read_verdict(cast(Attempt, attempt), job, last)

    return read


async def test_it_compares_the_evaluation_of_the_last_step_with_that_of_step_0(verdict_of):
    events = [
        *paid(0, 0.0, 0.2, 0.1, 0.0, 0.3),
        rollout(1, 0, 1.0, mode="train"),
        *paid(2, 0.0, 0.0, 0.0, 0.0, 0.0),
        *paid(LAST, 0.9, 1.0, 1.0, 0.8, 1.0),
    ]
    verdict = await verdict_of(events)
    assert verdict is not None
    assert (verdict.outcome, verdict.count, verdict.cause, verdict.next) == ("learned", 5, "", "")
    assert (verdict.before, verdict.after) == (pytest.approx(0.12), pytest.approx(0.94))


async def test_a_judges_reward_replaces_the_environments_and_a_rollout_without_one_does_not_count(verdict_of):
    rollouts = [rollout(0, seed, 1.0) for seed in range(5)]
    judged = [
        RolloutJudged(rollout_id=f"e0_{s}", iteration=0, mode="eval", index=0, reward=0.25, environment=1.0)
        for s in range(4)
    ]
    unscored = msgspec.structs.replace(judged[0], rollout_id="e0_4", reward=None)
    failed = RolloutFailed(
        rollout_id=f"e{LAST}_3",
        iteration=LAST,
        mode="eval",
        index=0,
        group=3,
        seed=3,
        problem=Problem(what="x"),
        tries=1,
    )
    last = [rollout(LAST, seed, 1.0) for seed in (0, 1, 2, 4)]
    verdict = await verdict_of([*evaluation(0, *rollouts, *judged, unscored), *evaluation(LAST, failed, *last)])
    assert verdict is not None
    # Seed 3 has no reward at the end, and seed 4 none at step 0.
    assert (verdict.before, verdict.after, verdict.count) == (0.25, 1.0, 3)


@pytest.mark.parametrize("events", [[], paid(0, 1, 1, 1, 1, 1), paid(LAST, 1, 1, 1, 1, 1)])
async def test_without_both_evaluations_there_is_none(verdict_of, events: list[Event]):
    assert await verdict_of(events) is None


async def test_a_job_that_continues_others_is_compared_with_the_source_of_the_first(verdict_of):
    first = [*paid(0, 0.0, 0.2, 0.1, 0.0, 0.3), *paid(2, 0.5, 0.5, 0.5, 0.5, 0.5)]
    verdict = await verdict_of(paid(LAST, 0.9, 1.0, 1.0, 0.8, 1.0), earlier=[first, []])
    assert verdict is not None
    assert (verdict.outcome, verdict.before, verdict.after) == ("learned", pytest.approx(0.12), pytest.approx(0.94))
    # What was evaluated and never ended is no evaluation.
    assert await verdict_of(paid(LAST, 1, 1, 1, 1, 1), earlier=[first[:1], []]) is None


def flat_batches(count: int, *, kept: int = 4) -> list[RolloutBatched]:
    return [batch(k, 0.5, kept=kept) for k in range(1, count + 1)]


FLAT = [0.5, 0.4, 0.6, 0.5, 0.5]
OTHER = [0.4, 0.6, 0.5, 0.6, 0.4]


@pytest.mark.parametrize(
    ("before", "after", "batches", "cause", "next"),
    [
        ([0.0] * 5, [0.0] * 5, [], "no rollout of either evaluation earned anything", "rollouts ls"),
        ([1.0] * 5, [1.0] * 5, [], "the source already earned 1 on every seed", "seeds that it does not solve"),
        (FLAT, OTHER, flat_batches(4, kept=0), "in 4 of 4 iterations the rollouts of every", "group_size"),
        (FLAT, OTHER, [batch(k, 0.2 * k) for k in range(1, 8)], "the reward rose in training", "[data] seeds"),
        (FLAT, OTHER, flat_batches(4), "4 iterations are few for learning_rate", "more iterations"),
        (FLAT, OTHER, flat_batches(40), "5 seeds show no difference below 0.", "instances"),
        ([0.9, 1.0, 0.8, 1.0, 0.9], [0.1, 0.0, 0.2, 0.1, 0.1], [], "the updates were too large", "half the [training]"),
    ],
)  # fmt: skip
async def test_a_job_that_did_not_learn_names_the_cause_and_what_to_try(
    verdict_of, before: list[float], after: list[float], batches: list[RolloutBatched], cause: str, next: str
):
    last = max(4, len(batches))
    verdict = await verdict_of([*paid(0, *before), *paid(last, *after)], batches, last)
    assert verdict is not None
    assert verdict.outcome in ("no_change", "worse")
    assert verdict.cause.startswith(cause)
    assert next in verdict.next
    assert cause in verdict.text()
