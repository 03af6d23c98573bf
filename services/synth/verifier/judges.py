"""Whether the judges of a job can be asked: their provider is set up, and their key is stored."""

from __future__ import annotations

from synth.bus.connection import Connection
from synth.bus.rpc import ANSWER_WITHIN_S, JUDGE, ask
from synth.errors import Problem
from synth.jobs.resolved import EvalJob, Job, RlJob
from synth.judging.contract import JudgeAnswer, JudgeRollouts
from synth.judging.settings import Rubric


async def judges_refused(bus: Connection, org: str, job: Job) -> list[Problem]:
    """Why the judges of a job would refuse to judge; none where it has none. No model is asked.

    Raises `Transient` where no judge service answers.
    """
    judging = job.rewards.judging if isinstance(job, RlJob | EvalJob) else None
    if judging is None:
        return []
    question = JudgeRollouts(org=org, job_id="", judging=judging, rubric=judging.rubric or Rubric(), rollouts=[])
    answer = await ask(bus, JUDGE, question, JudgeAnswer, within=ANSWER_WITHIN_S / 2)
    return [answer.failure.problem] if answer.failure is not None and answer.failure.kind == "refused" else []
