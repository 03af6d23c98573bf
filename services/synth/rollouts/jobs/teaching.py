"""The scoring of a job's sampled tokens by its teacher, before the rollouts are made durable.

Invariants. The teacher's scores are in the rollout's trajectory, so that a collector that takes over has no rollout
scored twice, and the same log gives the same advantages. A teacher that is unavailable costs no rollout: rollouts wait
for it, for at most `[distillation] max_outage_s`. A teacher that refuses tokens ends the job with its reason. The
rollouts of an evaluation are not scored, because nothing is learned from them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from synth.bus.kv.replicas import ReplicaTable
from synth.errors import Problem, Transient, UserError
from synth.methods.distillation import DistillationSettings
from synth.rollouts.clients.teacher import TeacherClient
from synth.rollouts.collection.types import (
    CollectionBlocked,
    CollectRequest,
    Complete,
    CompletedRollout,
    DurableRollout,
    EnvironmentBroken,
)
from synth.runtime import logs
from synth.trajectories import Branch
from synth.trajectories.packing import Float32

log = logs.get("teaching")

#: A teacher that is unavailable is called again, and logged as unavailable, after at most this many seconds.
_LONGEST_PAUSE_S = 30.0


@dataclass
class Teaching:
    """The scoring of one job's rollouts by its teacher.

    complete: makes a rollout durable. at_once: the most sequences that are sent to the teacher at the same time.
    progress: called while rollouts wait for the teacher.
    """

    job_id: str
    distillation: DistillationSettings
    client: TeacherClient
    replicas: ReplicaTable
    at_once: int
    complete: Complete
    progress: Callable[[str], None]
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)

    async def score_and_complete(self, request: CollectRequest, completed: CompletedRollout) -> DurableRollout:
        """Make a rollout durable, with the teacher's scores of its tokens.

        Raises `CollectionBlocked` if the teacher refuses the tokens, or is unavailable for too long.
        """
        if request.mode == "train":
            scored = await asyncio.gather(*(self._scored(branch) for branch in completed.branches))
            completed = replace(completed, branches=list(scored))
        return await self.complete(request, completed)

    async def _scored(self, branch: Branch) -> Branch:
        if not branch.loss_mask.any():
            return branch
        async with self._slots:
            return replace(branch, teacher_logprobs=await self._ask_until_answered(branch))

    async def _ask_until_answered(self, branch: Branch) -> Float32:
        began = time.monotonic()
        for failures in range(1 << 62):
            self.progress("teacher")
            try:
                return await self._ask(branch)
            except UserError as error:
                raise _blocked(error.problems[0]) from error
            except Transient as error:
                reason = str(error)
            waited = time.monotonic() - began
            if waited > self.distillation.max_outage_s:
                raise _blocked(
                    Problem(
                        what=f"the teacher {self.distillation.teacher!r} has not answered for {waited:.0f} s: {reason}",
                        expected="an answer within [distillation].max_outage_s",
                        fix="see that `synthd inference` runs and has room for the teacher, then submit again",
                        where="[distillation]",
                    )
                )
            log.warning("the teacher is away, rollouts wait", reason=reason, waited_s=round(waited))
            await asyncio.sleep(min(_LONGEST_PAUSE_S, 0.25 * 2 ** min(failures, 8)))
        raise AssertionError("counting never ends")

    async def _ask(self, branch: Branch) -> Float32:
        serving = self.replicas.serving(self.job_id)
        if not serving:
            raise Transient(f"no replica serves {self.job_id} and its teacher")
        # The replica is random, so that rollouts spread over the replicas, and the next attempt may be at another one.
        return await self.client.score(random.choice(serving), self.job_id, branch.tokens)


def _blocked(problem: Problem) -> CollectionBlocked:
    return CollectionBlocked(EnvironmentBroken(problem, "teacher_failed"))
