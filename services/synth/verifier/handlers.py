"""`job.validated` in; `job.verified` and the job's first tasks, or `job.refused`, out. `job.resumed` in; tasks out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import httpx
import msgspec

from synth.bus.cancellation import cancel_until_ended
from synth.bus.connection import Connection
from synth.bus.delivery import release_slot
from synth.bus.history.job_log import JobHistory, append_decided, read_job
from synth.bus.history.model_refs import find_model
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import enqueue
from synth.bus.reading import read_patiently
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.bus.rpc import CheckJob, CheckVerdict, TaskAppReport, VerifyTaskApp
from synth.bus.server.topology import EVENTS
from synth.chat.template_source import RenderOptions
from synth.datasets.refused import images_refused, prompts_refused, rows_refused
from synth.errors import Permanent, Problem, Transient, UserError
from synth.events import BlobRef, JobCreated, JobParked, JobRefused, JobResumed, JobValidated, JobVerified, JobWithdrawn
from synth.events.catalogue import Event, spec_of
from synth.jobs.lifecycle import RESUMED, State
from synth.methods.job import Job, job_from_data
from synth.models import Registry
from synth.outbound.answer_memory import AnswerMemory
from synth.runtime import logs
from synth.runtime.off_loop import OffLoop
from synth.taskapp.env_names import wrong_env_name
from synth.verifier.files import ReadyFile, look_at_file, wait_for_file
from synth.verifier.judges import judges_refused, rubric_lacks, seed_of_rubric
from synth.verifier.keyed_task_app import KeyedTaskApp
from synth.verifier.models import find_teacher, processor_problems
from synth.verifier.rendering import NotRenderedInTime, Rendering
from synth.verifier.settings import VerifierSettings
from synth.verifier.task_app import TaskAppCheck, VerifiedTaskApp
from synth.verifier.tasks.due import first_tasks

log = logs.get("verifier")

_T = TypeVar("_T")


def _job_of(validated: JobValidated, job_id: str) -> Job:
    """Return the resolved job. Raises `Permanent` for one that this version cannot read."""
    try:
        return job_from_data(validated.job)
    except msgspec.ValidationError as error:
        raise Permanent(f"{job_id} was validated by another version: {error}") from error


def _term_of(history: JobHistory, resumed: Recorded) -> int:
    """Return the term that this `job.resumed` began."""
    return sum(fact.type == RESUMED for fact in history.facts if fact.seq <= resumed.seq)


def _parked(history: JobHistory, problem: Problem, *, term: int) -> JobParked | None:
    """Return the event that parks a job that has not started in this term; None if it continued or was resumed."""
    due = history.state is State.VERIFIED and history.term == term
    return JobParked(problem=problem) if due else None


class Withdrawals:
    """The jobs that this process verifies; verification stops for a job that is withdrawn."""

    def __init__(self) -> None:
        self._watched: dict[tuple[str, str], asyncio.Event] = {}

    @contextmanager
    def watch(self, org: str, job_id: str) -> Iterator[asyncio.Event]:
        """Yield an event that is set when this job is withdrawn. Read the job's log after this, to miss nothing."""
        withdrawn = self._watched.setdefault((org, job_id), asyncio.Event())
        try:
            yield withdrawn
        finally:
            self._watched.pop((org, job_id), None)

    async def follow(self, bus: Connection) -> None:
        """Follow every withdrawal of a job from now on, for ever."""
        subject = f"{spec_of(JobWithdrawn).type}.>"
        async with aclosing(follow(bus, [subject], after=await _end_of_log(bus), unreadable_too=True)) as facts:
            async for fact in facts:
                withdrawn = self._watched.get((fact.org, fact.key))
                if withdrawn is not None:
                    withdrawn.set()


async def _end_of_log(bus: Connection) -> int:
    # Jobs that are withdrawn before it answers are verified to their end, and then not appended to.
    return (await read_patiently(partial(bus.js.stream_info, EVENTS), what="the end of the log")).state.last_seq


@dataclass(frozen=True)
class VerifierHandlers:
    """Verifies each validated job once, and queues its first tasks."""

    bus: Connection
    secrets: SecretStore
    registry: Registry
    client: httpx.AsyncClient
    settings: VerifierSettings
    stop: asyncio.Event
    off_loop: OffLoop
    answers: AnswerMemory
    rendering: Rendering
    withdrawals: Withdrawals = field(default_factory=Withdrawals)

    async def job_validated(self, event: Recorded, validated: JobValidated) -> None:
        org, job_id = event.org, event.key
        job = _job_of(validated, job_id)
        # Counted from the event, so that a wait that a second verifier continues has the same end.
        until = event.time + timedelta(seconds=self.settings.file_wait_s)
        with self.withdrawals.watch(org, job_id) as withdrawn:
            history = await read_job(self.bus, org, job_id)
            due = history.state is State.VALIDATED
            fact = await self._verify_unless(withdrawn, job, history, until, validated.origins) if due else None

        def decide(history: JobHistory) -> Event | None:
            return fact if history.state is State.VALIDATED else None

        history, seq = await append_decided(self.bus, org, job_id, decide)
        log.info("job looked at", verdict=type(fact).__name__, appended=seq is not None)
        verified = fact if seq is not None else history.last(JobVerified)
        if isinstance(verified, JobVerified) and not history.status.is_over(0):
            # Also when this event was delivered before: then the one before us may have died right here.
            await self._queue(job, org, job_id, term=0)

    async def job_resumed(self, event: Recorded, resumed: JobResumed) -> None:
        """Queue the tasks of the job's new term; the job was verified before its first one."""
        history = await read_job(self.bus, event.org, event.key)
        term = _term_of(history, event)
        if history.status.is_over(term):
            return
        job = _job_of(history.need(JobValidated), event.key)
        await self._queue(job, event.org, event.key, term=term)
        log.info("job resumed", job=event.key, term=term)

    async def verify_task_app(self, request: VerifyTaskApp) -> TaskAppReport:
        """Return the report on a task app for a client, before it submits a job."""
        report = await self._keyed_app(request.org, request.url, by=request.by).report()
        log.info("task app looked at", opened=sum(a.ok for a in report.attempts), tried=len(report.attempts))
        return report

    async def check_job(self, request: CheckJob) -> CheckVerdict:
        """Check a job's model and its uploaded files for a client."""
        job = job_from_data(request.job)
        problems: list[Problem] = []
        unchecked: list[str] = []
        rendering: RenderOptions | None = None
        until = asyncio.get_running_loop().time() + self.settings.ask_budget_s
        await _collect(problems, find_model(self.bus, request.org, job.model, self.registry))
        await _collect(
            problems, find_teacher(self.bus, request.org, job, self.registry, where="[distillation].teacher")
        )
        problems += processor_problems(job, self.registry, where="vision_processor_id")
        problems += self.rendering.template_problems(job, where="model")
        try:
            problems += await judges_refused(self.bus, request.org, job)
        except Transient as error:
            problems.append(Problem(what=str(error), fix="start `synthd judge`, then try again", where="[judge]"))
        for role, file_id, _ in job.files:
            # A path: the client has the file, and uploads it with the job.
            if not file_id.startswith("file_"):
                rendering = self.rendering.options(job, datetime.now(UTC).date())
                continue
            known = len(problems)
            ready = await _collect(problems, look_at_file(self.bus, request.org, file_id, role=role))
            if ready is not None:
                problems += self._refused(job, ready, file_id, role)
                if len(problems) > known:
                    continue
                left = until - asyncio.get_running_loop().time()
                where, today = f"{role} = {file_id!r}", datetime.now(UTC).date()
                try:
                    await self.rendering.check(job, ready, org=request.org, day=today, where=where, within=left)
                except NotRenderedInTime:
                    unchecked.append(file_id)
                except UserError as error:
                    problems += error.problems
            elif len(problems) == known:
                unchecked.append(file_id)
        return CheckVerdict(problems=problems, unchecked=unchecked, rendering=rendering)

    async def give_up(self, event: Recorded, problem: Problem) -> None:
        """Refuse a job that cannot be verified, park one whose tasks cannot be queued: its user would wait for ever."""

        def decide(history: JobHistory) -> Event | None:
            if history.state is State.VALIDATED:
                return JobRefused(problems=[problem])
            return _parked(history, problem, term=0)

        await append_decided(self.bus, event.org, event.key, decide)

    async def park(self, event: Recorded, problem: Problem) -> None:
        """Park a resumed job whose tasks cannot be queued: it can be resumed again."""

        def decide(history: JobHistory) -> Event | None:
            return _parked(history, problem, term=_term_of(history, event))

        await append_decided(self.bus, event.org, event.key, decide)

    async def _queue(self, job: Job, org: str, job_id: str, *, term: int) -> None:
        pool, replicas = self.settings.pool, self.settings.serve_replicas
        for task in first_tasks(job, org=org, job_id=job_id, pool=pool, replicas=replicas, term=term):
            await enqueue(self.bus, task)

    async def _verify_unless(
        self, withdrawn: asyncio.Event, job: Job, history: JobHistory, until: datetime, origins: Mapping[str, str]
    ) -> JobVerified | JobRefused | None:
        """Return the verdict; None as soon as the job is withdrawn."""
        verifying = asyncio.create_task(self._verify(job, history, until, origins))
        leaving = asyncio.create_task(withdrawn.wait())
        try:
            await asyncio.wait([verifying, leaving], return_when=asyncio.FIRST_COMPLETED)
            return verifying.result() if verifying.done() else None
        finally:
            await cancel_until_ended(verifying, leaving, what=f"the verification of {history.job_id}")

    async def _verify(
        self, job: Job, history: JobHistory, until: datetime, origins: Mapping[str, str]
    ) -> JobVerified | JobRefused:
        org = history.org
        problems: list[Problem] = []
        finding = find_model(self.bus, org, job.model, self.registry, for_job=history.job_id)
        source = await _collect(problems, finding)
        place = origins.get("distillation.teacher", "teacher")
        finding = find_teacher(self.bus, org, job, self.registry, where=place, for_job=history.job_id)
        teacher = await _collect(problems, finding)
        problems += processor_problems(
            job, self.registry, where=origins.get("vision.processor_id", "vision_processor_id")
        )
        problems += self.rendering.template_problems(job, where=origins.get("model", "model"))
        app: VerifiedTaskApp | None = None
        task_url: str | None = None
        files: dict[str, BlobRef] = {}
        for role, file_id, _ in job.files:
            ready = await _collect(problems, self._file(job, history, file_id, role, until))
            files |= {role: ready.rows} if ready else {}
        if job.app is not None:
            task_url = job.app.task_url
            keyed = self._keyed_app(org, task_url, by=history.need(JobCreated).created_by)
            app = await _collect(problems, keyed.verify(rubric_of=seed_of_rubric(job)))
            place = origins.get("rollout.env_name", "env_name")
            names = app.env_names if app else ()
            if wrong := wrong_env_name(job.app.env_name, names, where=place, url=task_url):
                problems.append(wrong)
            problems += rubric_lacks(job, app.rubric if app else None)
        problems += await judges_refused(self.bus, org, job, retry_for_s=self.settings.retry_for_s)
        if problems or source is None:
            return JobRefused(problems=problems)
        return JobVerified(
            source=job.start_model(source),
            task_url=task_url,
            task_key_id=app.key_id if app else None,
            task_name=app.name if app else None,
            training_data=files.get("training_file"),
            validation_data=files.get("validation_file"),
            rubric=msgspec.to_builtins(app.rubric) if app and app.rubric else None,
            teacher=teacher,
        )

    def _keyed_app(self, org: str, url: str, *, by: str) -> KeyedTaskApp:
        check = TaskAppCheck(
            client=self.client,
            url=url,
            call_deadline_s=self.settings.call_deadline_s,
            retry_for_s=self.settings.retry_for_s,
            off_loop=self.off_loop,
            org=org,
            max_answer_bytes=self.settings.max_answer_bytes,
            answers=self.answers,
        )
        return KeyedTaskApp(self.secrets, check, self.settings, org=org, by=by)

    async def _file(self, job: Job, history: JobHistory, file_id: str, role: str, until: datetime) -> ReadyFile:
        left = max(0.0, (until - datetime.now(UTC)).total_seconds())
        ready = await wait_for_file(self.bus, history.org, file_id, role=role, timeout=left, stop=self.stop)
        if problems := self._refused(job, ready, file_id, role):
            raise UserError(problems)
        # Rendering has slots of its own, and may take long.
        release_slot()
        where = f"{role} = {file_id!r}"
        await self.rendering.check(job, ready, org=history.org, day=history.created_on, where=where)
        return ready

    def _refused(self, job: Job, ready: ReadyFile, file_id: str, role: str) -> list[Problem]:
        where = f"{role} = {file_id!r}"
        if job.rows == "prompts":
            last = job.last_row(role)
            wrong = prompts_refused(
                ready.name, rows=ready.count, prompts=ready.prompts, images=ready.images, last=last, where=where
            )
            return [wrong] if wrong else []
        dpo = job.rows == "pairs"
        wrong = rows_refused(ready.name, pairs=ready.pairs, dpo=dpo, unanswered=ready.unanswered, where=where)
        problems = [wrong] if wrong else []
        if ready.images and self.registry.find(job.model).vision is None:
            problems.append(images_refused(ready.name, job.model, where=where))
        return problems


async def _collect(problems: list[Problem], question: Awaitable[_T]) -> _T | None:
    """Return the answer, or None with its problems added."""
    try:
        return await question
    except UserError as error:
        problems += error.problems
        return None
