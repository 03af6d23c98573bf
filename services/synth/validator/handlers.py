"""`job.created` in, `job.validated` or `job.rejected` out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial

import msgspec

from synth.blobs import BlobMissing, BlobStore
from synth.blobs.configs import with_config
from synth.bus.connection import Connection
from synth.bus.history.job_log import JobHistory, append_decided
from synth.bus.history.model_leases import lease_models
from synth.bus.recorded import Recorded
from synth.bus.rpc import ValidateJob, ValidationVerdict
from synth.errors import Problem, UserError
from synth.events import JobCreated, JobRejected, JobValidated
from synth.events.catalogue import Event
from synth.jobs.lifecycle import State
from synth.jobs.limits import JobLimitSettings
from synth.jobs.plan import TrainerDevice
from synth.methods.job import job_from_data
from synth.models import Registry
from synth.runtime import logs
from synth.runtime.off_loop import INLINE_BYTES, OffLoop, TooMuchWork
from synth.validator.validate import validate

log = logs.get("validator")


@dataclass(frozen=True)
class ValidatorHandlers:
    """Validates each new job once; a job that is past `created` is left as it is.

    trainer: the device that trains jobs, None if it is not known. python_graders: whether graders of type `python` are
    run. plugins: modules whose functions jobs may name. limits: how large a job may be. off_loop: where large jobs are
    read.
    """

    bus: Connection
    blobs: BlobStore
    registry: Registry
    trainer: TrainerDevice | None = None
    python_graders: bool = False
    plugins: tuple[str, ...] = ()
    limits: JobLimitSettings | None = None
    off_loop: OffLoop = field(default_factory=OffLoop)

    async def job_created(self, event: Recorded, created: JobCreated) -> None:
        try:
            whole = await with_config(self.blobs, created)
        except BlobMissing as error:
            # It was withdrawn and deleted meanwhile, or the store has lost it.
            await self.give_up(event, _lost_config(error))
            return
        verdict = await self._validate(whole, org=event.org)
        if isinstance(verdict, JobValidated):
            try:
                job, origins, goes_on = job_from_data(verdict.job), verdict.origins, created.continues
                await lease_models(
                    self.bus, event.org, event.key, job, self.registry, origins=origins, continues=goes_on
                )
                verdict = msgspec.structs.replace(verdict, continues=goes_on)
            except UserError as error:
                verdict = JobRejected(problems=error.problems)

        def decide(history: JobHistory) -> Event | None:
            return verdict if history.state is State.CREATED else None

        _, seq = await append_decided(self.bus, event.org, event.key, decide)
        log.info("job decided", verdict=type(verdict).__name__, appended=seq is not None)

    async def validate_job(self, request: ValidateJob) -> ValidationVerdict:
        """Return the verdict on a job for a client, before it submits the job."""
        verdict = await self._validate(request.created, org=request.org, uploaded=False)
        log.info("job file looked at", verdict=type(verdict).__name__)
        if isinstance(verdict, JobRejected):
            return ValidationVerdict(problems=verdict.problems)
        return ValidationVerdict(job=verdict.job, warnings=verdict.warnings)

    async def _validate(self, created: JobCreated, *, org: str, uploaded: bool = True) -> JobValidated | JobRejected:
        function = partial(
            validate,
            uploaded=uploaded,
            trainer=self.trainer,
            python_graders=self.python_graders,
            plugins=self.plugins,
            limits=self.limits,
        )
        size = len(created.config)
        if size <= INLINE_BYTES:
            # A thread, because a few thousand lines of TOML must not stop the heartbeats.
            return await asyncio.to_thread(function, created, self.registry)
        try:
            return await self.off_loop.process(
                function, created, self.registry, org=org, size=size, task="validate the job"
            )
        except TooMuchWork as error:
            return JobRejected(problems=error.problems)

    async def give_up(self, event: Recorded, problem: Problem) -> None:
        """Reject a job that cannot be validated: its user would wait for ever."""

        def decide(history: JobHistory) -> Event | None:
            return JobRejected(problems=[problem]) if history.state is State.CREATED else None

        await append_decided(self.bus, event.org, event.key, decide)


def _lost_config(error: BlobMissing) -> Problem:
    return Problem(
        what=f"the job's configuration is not in the blob store ({error})",
        expected="the file as it was submitted",
        fix="submit it again",
    )
