"""`job.validated` in; `job.verified` and the job's first tasks, or `job.refused`, out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec

from synth import logs
from synth.bus.connection import Connection
from synth.bus.job_log import JobHistory, append_decided, read_job
from synth.bus.model_refs import find_model
from synth.bus.publish import enqueue
from synth.bus.recorded import Recorded
from synth.bus.secrets import SecretStore
from synth.catalogue import Event
from synth.errors import Permanent, Problem, UserError
from synth.events import BlobRef, JobRefused, JobValidated, JobVerified
from synth.jobs.lifecycle import State
from synth.jobs.resolved import Job, SftJob, job_from_data
from synth.models import Registry
from synth.verifier.files import wait_for_file
from synth.verifier.settings import VerifierSettings
from synth.verifier.task_app import TaskApp, TaskAppCheck
from synth.verifier.tasks import first_tasks

log = logs.get("verifier")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Handlers:
    """Looks at each validated job's world once, and makes its first tasks due."""

    bus: Connection
    secrets: SecretStore
    registry: Registry
    client: httpx.AsyncClient
    settings: VerifierSettings
    stop: asyncio.Event

    async def job_validated(self, event: Recorded, validated: JobValidated) -> None:
        org, job_id = event.org, event.key
        try:
            job = job_from_data(validated.job)
        except msgspec.ValidationError as error:
            raise Permanent(f"{job_id} was validated by another version: {error}") from error
        history = await read_job(self.bus, org, job_id)
        fact = await self._look_at(job, org) if history.state is State.VALIDATED else None

        def decide(history: JobHistory) -> Event | None:
            return fact if history.state is State.VALIDATED else None

        history, seq = await append_decided(self.bus, org, job_id, decide)
        log.info("job looked at", verdict=type(fact).__name__, appended=seq is not None)
        verified = fact if seq is not None else history.last(JobVerified)
        if isinstance(verified, JobVerified) and not history.ended:
            # Also when this event was delivered before: then the one before us may have died right here.
            await self._queue(job, org, job_id)

    async def give_up(self, event: Recorded, problem: Problem) -> None:
        """End a job that cannot be looked at: its user would wait for ever."""

        def decide(history: JobHistory) -> Event | None:
            return JobRefused(problems=[problem]) if history.state is State.VALIDATED else None

        await append_decided(self.bus, event.org, event.key, decide)

    async def _queue(self, job: Job, org: str, job_id: str) -> None:
        settings = self.settings
        for task in first_tasks(job, org=org, job_id=job_id, pool=settings.pool, replicas=settings.serve_replicas):
            await enqueue(self.bus, task)

    async def _look_at(self, job: Job, org: str) -> JobVerified | JobRefused:
        problems: list[Problem] = []
        source = await _collect(problems, find_model(self.bus, org, job.model, self.registry))
        app: TaskApp | None = None
        task_url: str | None = None
        training: BlobRef | None = None
        validation: BlobRef | None = None
        if isinstance(job, SftJob):
            training = await _collect(problems, self._file(org, job.training_file, "training_file"))
            if job.validation_file is not None:
                validation = await _collect(problems, self._file(org, job.validation_file, "validation_file"))
        else:
            task_url = job.rollout.task_url
            app = await _collect(problems, self._task_app(org, task_url))
        if problems or source is None:
            return JobRefused(problems=problems)
        return JobVerified(
            source=source,
            task_url=task_url,
            task_key_id=app.key_id if app else None,
            task_name=app.name if app else None,
            training_data=training,
            validation_data=validation,
        )

    async def _task_app(self, org: str, url: str) -> TaskApp:
        check = TaskAppCheck(
            client=self.client,
            url=url,
            call_deadline_s=self.settings.call_deadline_s,
            retry_for_s=self.settings.retry_for_s,
        )
        return await check.run(await self.secrets.environment_keys(org))

    async def _file(self, org: str, file_id: str, role: str) -> BlobRef:
        return await wait_for_file(self.bus, org, file_id, role=role, timeout=self.settings.file_wait_s, stop=self.stop)


async def _collect(problems: list[Problem], question: Awaitable[_T]) -> _T | None:
    """The answer, or None with its problems added."""
    try:
        return await question
    except UserError as error:
        problems += error.problems
        return None
