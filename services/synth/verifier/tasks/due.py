"""The tasks of a verified or resumed job, by its kind (decision 16)."""

from __future__ import annotations

from collections.abc import Set

from synth.methods.job import Job
from synth.work import Task


def first_tasks(job: Job, *, org: str, job_id: str, pool: str, replicas: int, term: int = 0) -> list[Task]:
    """Return the tasks to queue, in this order. replicas: of the process that serves the policy. term: of a resumed
    job.

    The task whose owner starts the job comes last: a verifier that dies between two tasks leaves a job that has not
    started, and queues them all again.
    """
    return [
        Task(kind=kind, pool=pool, org=org, job_id=job_id, term=term, index=index)
        for kind in job.tasks
        for index in (range(replicas) if kind == "serve" else [None])
    ]


def due_tasks(job: Job, *, org: str, job_id: str, pool: str, replicas: int, term: int, facts: Set[str]) -> list[Task]:
    """Return the tasks of a job that is not over that are queued or owned. facts: the types of its events in this term.

    Inference queues the training on rollouts when it serves or refuses the policy. A refusal ends the serve tasks, and
    a blocked collection the collect task, before the job's owner has ended the job.
    """
    done = {"serve"} if "policy.refused" in facts else set[str]()
    trains_on_rollouts = job.training is not None and job.play is not None
    if trains_on_rollouts and "rollout.blocked" in facts:
        done.add("collect")
    tasks = first_tasks(job, org=org, job_id=job_id, pool=pool, replicas=replicas, term=term)
    if trains_on_rollouts and facts & {"policy.loaded", "policy.refused"}:
        tasks.append(Task(kind="train", pool=pool, org=org, job_id=job_id, term=term))
    return [task for task in tasks if task.kind not in done]
