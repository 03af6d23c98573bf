"""Check the judges of a job before it starts: their provider is set up, their key is stored, and a rubric exists."""

from __future__ import annotations

import asyncio
import time

from synth.bus.connection import Connection
from synth.bus.rpc import ANSWER_WITHIN_S, JUDGE, ask
from synth.errors import Problem, Transient
from synth.judging.contract import JudgeAnswer, JudgeRollouts
from synth.judging.settings import Rubric
from synth.methods.job import Job
from synth.runtime import logs

log = logs.get("verifier")
_PAUSE_S = 1.0


async def judges_refused(bus: Connection, org: str, job: Job, *, retry_for_s: float | None = None) -> list[Problem]:
    """Return why the judges of a job would refuse to judge; empty if it has no judges. No model is called.

    retry_for_s: for how long a call to a judge service that does not answer is repeated; then the job is admitted, as
    its rollouts wait for judges anyway. None: one call. Raises `Transient` if no judge service answers.
    """
    judging = job.judging
    if judging is None:
        return []
    question = JudgeRollouts(org=org, job_id="", judging=judging, rubric=judging.rubric or Rubric(), rollouts=[])
    give_up = time.monotonic() + (retry_for_s or 0.0)
    while True:
        try:
            answer = await ask(bus, JUDGE, question, JudgeAnswer, within=ANSWER_WITHIN_S / 2)
            break
        except Transient as error:
            if retry_for_s is None:
                raise
            if time.monotonic() + _PAUSE_S > give_up:
                log.warning("a job's judges could not be looked at", reason=str(error))
                return []
        await asyncio.sleep(_PAUSE_S)
    return [answer.failure.problem] if answer.failure is not None and answer.failure.kind == "refused" else []


def seed_of_rubric(job: Job) -> int | None:
    """Return the seed whose task's rubric the judges apply, the job's first; None if the job file has a rubric."""
    return job.first_seed if job.judging is not None and job.judging.rubric is None else None


def rubric_lacks(job: Job, rubric: Rubric | None) -> list[Problem]:
    """Return the scores of a job for which the task app's rubric has no criteria."""
    judging = job.judging
    if judging is None or rubric is None:
        return []
    return [
        Problem(
            what=f"the task app's rubric has no criteria for the {track}, which is scored",
            expected=f"criteria for the {track} in its /task_info, or in [judge.options.rubric_overrides]",
            where="[judge.options]",
        )
        for track, scored, criteria in (
            ("event", judging.event, rubric.event),
            ("outcome", judging.outcome, rubric.outcome),
        )
        if scored and not criteria
    ]
