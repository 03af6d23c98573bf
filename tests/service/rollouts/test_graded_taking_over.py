"""A collector that dies while models grade: what they are asked is in the log, and so is what they said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synth.blobs import BlobStore
from synth.bus.history.fencing import start_collection
from synth.ids import new_org_id
from synth.judging.contract import JudgeUsage, Review, RolloutReview
from synth.judging.settings import JudgeModel, Judging
from synth.methods.rewards import RewardSettings
from synth.rollouts.collection.types import CollectRequest, CompletedRollout, DurableRollout
from synth.rollouts.event_log import RolloutLog
from tests.unit.rollouts.collection.test_request_runner import App

TOLD: dict[str, Any] = {"details": {"grader": {"parts": {"e": 1.0}, "lacking": {}, "asked": [{"key": "s"}]}}}


async def test_the_successor_asks_the_same_and_knows_the_rewards_that_were_made(bus_as, blobs: BlobStore):
    org, bus = new_org_id(), await bus_as("rollouts")
    judging = Judging(judges=[JudgeModel(model="m")], outcome=False)
    rewards = RewardSettings(scores="grader", judging=judging)
    request = CollectRequest(iteration=1, mode="train", seeds=[1], group_size=2, oldest_version=0)
    log = RolloutLog(bus, blobs, await start_collection(bus, org, "job_graded", worker="a"), rewards=rewards)
    durables: dict[int, DurableRollout] = {}

    async def complete(request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        told = replace(completed, score=replace(completed.score, info=TOLD))
        durables[completed.spec.index] = await log.complete(request, told)
        return durables[completed.spec.index]

    app = App()
    app.complete = complete
    await app.collect(request)
    review = RolloutReview(rollout_id=durables[0].rollout.rollout_id, outcome=Review(total=7.5))
    await log.judged(request, durables[0], review, JudgeUsage(calls=3))
    successor = RolloutLog(bus, blobs, await start_collection(bus, org, "job_graded", worker="b"), rewards=rewards)
    await successor.read()
    prior = await successor.prior_progress(request)
    assert (prior.done[0].reward, prior.done[0].sources) == (7.5, {"env": 7.5})
    assert {index: durable.info for index, durable in prior.unjudged.items()} == {1: TOLD}
    assert successor.judge_usage.calls == 3
