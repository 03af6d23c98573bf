"""Asking a teacher: once for each rollout, again while it is away, and never for what nothing is learned from."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import httpx
import msgspec
import numpy as np
import pytest

from synth.bus.kv.replicas import Replica, ReplicaTable
from synth.methods.distillation import DistillationSettings
from synth.rollouts.clients.teacher import TeacherClient
from synth.rollouts.collection.batching import ScoredRollout
from synth.rollouts.collection.types import (
    CollectionBlocked,
    CollectRequest,
    CompletedRollout,
    DurableRollout,
    RolloutSpec,
)
from synth.rollouts.jobs.teaching import Teaching
from synth.rollouts.rewards.scoring import Rewarded
from synth.trajectories import Branch, RewardSources
from tests.keyrings import calls_of

TRAIN = CollectRequest(iteration=1, mode="train", seeds=[0], group_size=2, oldest_version=0)
EVAL = CollectRequest(iteration=1, mode="eval", seeds=[0], group_size=2, oldest_version=0, pinned_version=0)
SAID = [-1.5, -0.25, -2.0]


def branch(*sampled: bool) -> Branch:
    mask = np.asarray([False, *sampled])
    zeros = np.zeros(len(mask), np.float32)
    return Branch(np.arange(len(mask), dtype=np.int32), mask, zeros, mask.astype(np.int32), mask.astype(np.int32))


class Replicas:
    """One replica that serves the job."""

    def serving(self, model: str) -> list[Replica]:
        return [Replica(id="r", boot="b", url="http://r", pool="default", models=[model])]


class Asked:
    """A teacher that answers in turn, and the log in which rollouts become durable."""

    def __init__(self, *answers: Callable[[], httpx.Response], max_outage_s: float = 60.0) -> None:
        self.questions: list[dict[str, object]] = []
        self.completed: list[CompletedRollout] = []
        self._answers = list(answers)
        self.teaching = Teaching(
            "job_1",
            DistillationSettings(teacher="t", max_outage_s=max_outage_s),
            TeacherClient(calls_of("rollouts"), timeout_s=5, transport=httpx.MockTransport(self._answer)),
            cast(ReplicaTable, Replicas()),
            at_once=1,
            complete=self._complete,
            progress=lambda stage: None,
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.questions.append(msgspec.json.decode(request.content))
        return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])()

    async def _complete(self, request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        self.completed.append(completed)
        sources = completed.score.sources
        rollout = ScoredRollout("r", 0, 0, 1.0, sources.environment, completed.branches, 0.1, 1)
        return DurableRollout(0, rollout, sources, None)

    async def complete(self, *branches: Branch, request: CollectRequest = TRAIN) -> list[Branch]:
        spec = request.specs("job_1", 0)[0]
        assert isinstance(spec, RolloutSpec)
        completed = CompletedRollout(spec, Rewarded(RewardSources([1.0]), "ok"), list(branches), 0.1, 1, 1)
        durable = await self.teaching.score_and_complete(request, completed)
        return durable.rollout.branches


def said() -> httpx.Response:
    return httpx.Response(200, json=SAID)


def away() -> httpx.Response:
    return httpx.Response(503, text="not ready")


async def test_a_rollout_is_durable_with_what_the_teacher_said():
    asked = Asked(said)
    [found] = await asked.complete(branch(False, True, True))
    assert found.teacher_logprobs is not None
    assert found.teacher_logprobs.tolist() == pytest.approx([np.nan, *SAID], nan_ok=True)
    assert asked.questions == [{"job_id": "job_1", "token_ids": [0, 1, 2, 3]}]


async def test_a_branch_without_a_sampled_token_and_an_evaluation_are_not_asked_about():
    asked = Asked(said)
    [silent, told] = await asked.complete(branch(False, False), branch(True, True, False))
    [evaluated] = await asked.complete(branch(True, True, True), request=EVAL)
    assert (silent.teacher_logprobs, evaluated.teacher_logprobs) == (None, None)
    assert (told.teacher_logprobs is not None, len(asked.questions)) == (True, 1)


async def test_a_teacher_that_is_away_is_asked_again():
    asked = Asked(away, lambda: httpx.Response(200, text="<html>"), lambda: httpx.Response(200, json=[-1.0]), said)
    [found] = await asked.complete(branch(True, True, True))
    assert (found.teacher_logprobs is not None, len(asked.questions), len(asked.completed)) == (True, 4, 1)


async def test_a_teacher_that_stays_away_ends_the_job_and_says_for_how_long():
    asked = Asked(away, max_outage_s=1e-9)
    with pytest.raises(CollectionBlocked) as blocked:
        await asked.complete(branch(True, True, True))
    broken = blocked.value.broken
    assert (broken.code, asked.completed) == ("teacher_failed", [])
    assert "'t' has not answered" in broken.problem.what
    assert "[distillation].max_outage_s" in broken.problem.expected


async def test_a_teacher_that_refuses_ends_the_job_with_its_reason():
    problem = {"what": "it knows 4 tokens", "expected": "", "fix": "", "where": "teacher"}
    asked = Asked(lambda: httpx.Response(400, json={"error": {"problems": [problem]}}))
    with pytest.raises(CollectionBlocked) as blocked:
        await asked.complete(branch(True, True, True))
    assert (blocked.value.broken.code, blocked.value.broken.problem.what) == ("teacher_failed", "it knows 4 tokens")
    assert len(asked.questions) == 1
