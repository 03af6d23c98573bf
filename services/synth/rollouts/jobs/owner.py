"""The owner of collect tasks: opens the context of a collection, and runs it for an RL job or for an evaluation.

The trainer owns an RL job, and its collector only serves the trainer: the collector owns the collection, by its
`collection.started`. An evaluation is owned by its collector, which holds the attempt. Either ends at once when another
collector has taken over.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from synth.blobs import BlobStore
from synth.bus.connection import Connection
from synth.bus.history.fencing import run_owned, start_collection
from synth.bus.history.job_log import JobHistory, read_job
from synth.bus.kv.replicas import ReplicaTable
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Fence
from synth.bus.tasks.lease import Lease
from synth.errors import Permanent, Problem, UserError
from synth.events import JobFailed, JobValidated, JobVerified
from synth.graders.python.pool import PythonPool
from synth.graders.schema import parse_grader, runs_python
from synth.judging.settings import Rubric
from synth.methods.base import PlayedJob
from synth.methods.eval import EvalJob
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.methods.rollouts import RolloutSettings
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.service_calls import CallSigner
from synth.rollouts.clients.environment_key import environment_key
from synth.rollouts.clients.graded import GradedPlayer
from synth.rollouts.clients.player import Player
from synth.rollouts.clients.prompt_rows import PromptRows
from synth.rollouts.clients.recorder import RecorderClient
from synth.rollouts.clients.task_app import TaskAppClient
from synth.rollouts.clients.teacher import TeacherClient
from synth.rollouts.collection.batching import CreditRules
from synth.rollouts.collection.collector import Collector
from synth.rollouts.collection.policy_versions import PolicyVersions
from synth.rollouts.collection.types import EnvironmentBroken
from synth.rollouts.concurrency.job_concurrency import JobConcurrency
from synth.rollouts.event_log import RolloutLog
from synth.rollouts.jobs.context import CollectionContext
from synth.rollouts.jobs.evaluation import evaluate, fail
from synth.rollouts.jobs.grading import ModelGraders
from synth.rollouts.jobs.judging import RolloutJudge, ask_judge
from synth.rollouts.jobs.rl import collect_iterations
from synth.rollouts.jobs.rollout_runner import RolloutRunner
from synth.rollouts.jobs.teaching import Teaching
from synth.rollouts.rewards.plugin import load_advantage
from synth.rollouts.settings import RolloutsSettings
from synth.runtime.off_loop import OffLoop
from synth.service_secrets import Purpose, ServiceSecrets
from synth.work import Task


@dataclass(frozen=True)
class CollectTaskOwner:
    """The owner of this process's collect tasks. collectors: the collectors of its current jobs, by job id."""

    bus: Connection
    blobs: BlobStore
    settings: RolloutsSettings
    secrets: ServiceSecrets
    replicas: ReplicaTable
    off_loop: OffLoop
    answers: AnswerMemory
    python: PythonPool | None = None
    """The processes that run graders written in Python; None if the service runs none."""
    collectors: dict[str, Collector] = field(default_factory=dict[str, Collector])

    async def run(self, task: Task, lease: Lease) -> None:
        """Own one collect task until its job has ended or is paused."""
        history = await read_job(self.bus, task.org, task.job_id)
        if history.status.is_over(task.term):
            return
        job = job_from_data(history.need(JobValidated).job)
        match job:
            case RlJob():
                fence = await self._start_collection(task)
                await run_owned(self.bus, fence, self._collect(history, job, lease, fence))
            case EvalJob():
                open_context = functools.partial(self._open_context, history, job, lease)
                await evaluate(self.bus, history, job, lease, self.settings.replica, open_context)
            case _:
                raise AssertionError(f"no rollouts are collected for a job of {job.method}")

    async def _start_collection(self, task: Task) -> Fence:
        return await start_collection(self.bus, task.org, task.job_id, worker=self.settings.replica)

    async def _collect(self, history: JobHistory, job: RlJob, lease: Lease, fence: Fence) -> None:
        try:
            advantage = None if job.advantage is None else load_advantage(job.advantage, self.settings.plugins)
        except Permanent as error:
            broken = EnvironmentBroken(Problem(what=str(error), where="[training].advantage"), "plugin_failed")
            await RolloutLog(self.bus, self.blobs, fence, rewards=job.rewards).publish_blocked(0, broken)
            return
        async with self._open_context(history, job, lease, fence, CreditRules.of(job, advantage)) as context:
            await collect_iterations(context, job)

    async def give_up(self, task: Task, reason: str) -> None:
        """End the job of a task that is a dead letter, or report to the job's owner, so that nobody waits in vain."""
        problem = Problem(what=f"the rollouts cannot be collected: {reason}", fix="look at the rollouts service's log")
        history = await read_job(self.bus, task.org, task.job_id)
        if history.status.is_over(task.term):
            return
        job = job_from_data(history.need(JobValidated).job)
        if job.training is not None and isinstance(job, PlayedJob):
            fence = await self._start_collection(task)
            event_log = RolloutLog(self.bus, self.blobs, fence, rewards=job.rewards)
            await event_log.publish_blocked(0, EnvironmentBroken(problem))
        else:
            await fail(self.bus, task, JobFailed(code="internal", problem=problem), self.settings.replica)

    @asynccontextmanager
    async def _open_context(
        self,
        history: JobHistory,
        job: RlJob | EvalJob,
        lease: Lease,
        fence: Fence,
        credit: CreditRules | None = None,
    ) -> AsyncIterator[CollectionContext]:
        rollout_settings = job.rollout
        # A task without progress for longer than the longest wait of a rollout counts as hung.
        hung_after_s = self._answer_within_s(rollout_settings) * (rollout_settings.max_retries + 2)
        lease.progress("start", deadline=hung_after_s)

        def progress(stage: str) -> None:
            lease.progress(stage, deadline=hung_after_s)

        player = await self._player(history, job)
        recorder = RecorderClient(self._calls(), history.job_id, timeout_s=self.settings.recorder_timeout_s)
        versions = PolicyVersions()
        runner = RolloutRunner(
            history.job_id,
            rollout_settings,
            job.rewards,
            player=player,
            recorder=recorder,
            replicas=self.replicas,
            versions=versions,
            credentials=self.secrets[Purpose.CREDENTIALS],
            public_url=self.settings.inference_public_url,
            replica_wait_s=self.settings.policy_wait_s,
            grace_s=self._grace_s(rollout_settings),
            transcript_bytes=self.settings.transcript_bytes,
            off_loop=self.off_loop,
            answers=self.answers,
            org=history.org,
            progress=progress,
        )
        term = lease.task.term
        event_log = RolloutLog(self.bus, self.blobs, fence, rewards=job.rewards, advanced=lease.advanced)
        teaching = self._teaching(history, job, event_log, progress)
        collector = Collector(
            history.job_id,
            concurrency=JobConcurrency(rollout_settings.max_concurrent_rollouts, engine_queue=runner.engine_queue),
            max_tries=1 + rollout_settings.max_retries,
            run_try=runner.run_try,
            complete=event_log.complete if teaching is None else teaching.score_and_complete,
            abandon=event_log.abandon,
            progress=lambda done, of: progress(f"collecting {done} of {of}"),
            group_timeout_s=rollout_settings.group_timeout_s,
            judge=self._judge(history, job, event_log, progress),
            # Nothing is learned from an evaluation.
            credit=credit or CreditRules(),
        )

        async def mark_idle() -> None:
            # A collector waits for its trainer without a limit: an idle collector does not hang.
            while True:
                await asyncio.sleep(hung_after_s / 4)
                if not collector.open_requests:
                    progress("idle")
                    # Every request so far is done, and none of them has ended the process.
                    await lease.advanced()

        idle = asyncio.create_task(mark_idle())
        self.collectors[history.job_id] = collector
        try:
            yield CollectionContext(self.bus, self.settings, history, term, collector, versions, event_log)
        finally:
            idle.cancel()
            # A later task of the job may have begun.
            if self.collectors.get(history.job_id) is collector:
                del self.collectors[history.job_id]
            await player.aclose()
            await recorder.aclose()
            if teaching is not None:
                await teaching.client.aclose()

    def _calls(self) -> CallSigner:
        return CallSigner(self.secrets[Purpose.ROLLOUTS_CALLS], lasts_s=self.settings.call_token_s)

    def _teaching(
        self, history: JobHistory, job: RlJob | EvalJob, event_log: RolloutLog, progress: Callable[[str], None]
    ) -> Teaching | None:
        if job.teacher is None:
            return None
        return Teaching(
            history.job_id,
            job.teacher,
            TeacherClient(self._calls(), timeout_s=self.settings.teacher_timeout_s),
            self.replicas,
            at_once=self.settings.teacher_requests,
            complete=event_log.complete,
            progress=progress,
        )

    def _judge(
        self, history: JobHistory, job: RlJob | EvalJob, event_log: RolloutLog, progress: Callable[[str], None]
    ) -> RolloutJudge | None:
        judging = job.rewards.judging
        if judging is None:
            return None
        rubric, graders = judging.rubric, None
        if job.rewards.scores == "grader":
            assert job.graded_rows is not None
            rubric, graders = Rubric(), ModelGraders(parse_grader(job.graded_rows.grader), event_log)
        if rubric is None:
            rubric = msgspec.convert(history.need(JobVerified).rubric, Rubric)
        ask = ask_judge(self.bus)
        return RolloutJudge(history.org, history.job_id, judging, rubric, event_log, ask, progress, graders)

    async def _player(self, history: JobHistory, job: RlJob | EvalJob) -> Player:
        """Open the job's player. Raises `Permanent` if rows lack a field to which the grader refers."""
        graded = job.graded_rows
        if graded is None:
            return await self._task_app_client(history, job)
        verified = history.need(JobVerified)
        grader = parse_grader(graded.grader)
        if runs_python(grader) and self.python is None:
            raise Permanent("the grader is python code, and this rollouts service runs none (SYNTH_PYTHON_GRADERS)")
        rows: dict[str, PromptRows] = {}
        files = {"training_file": verified.training_data, "validation_file": verified.validation_data}
        for name, ref in files.items():
            if ref is not None:
                try:
                    rows[name] = await PromptRows.open(self.blobs, ref, grader, where=name)
                except UserError as error:
                    raise Permanent(str(error)) from error
        return GradedPlayer(
            graded,
            job.rollout,
            rows,
            job_id=history.job_id,
            max_characters=self.settings.max_graded_characters,
            answer_within_s=self._answer_within_s(job.rollout),
            python=self.python,
        )

    async def _task_app_client(self, history: JobHistory, job: RlJob | EvalJob) -> TaskAppClient:
        store = SecretStore(self.bus, self.secrets)
        key = await environment_key(store, history, job.rollout.task_url, self.settings)
        return TaskAppClient(
            job.rollout,
            job_id=history.job_id,
            key=key,
            limit=job.rollout.max_concurrent_rollouts,
            max_answer_bytes=self.settings.max_answer_bytes,
            max_answer_depth=self.settings.max_answer_depth,
            answer_within_s=self._answer_within_s(job.rollout),
            guard=self.settings.guard,
        )

    def _grace_s(self, rollout: RolloutSettings) -> float:
        """Return how many seconds an app may take to answer after the time of its rollout."""
        return min(self.settings.answer_grace_s, rollout.rollout_timeout_s)

    def _answer_within_s(self, rollout: RolloutSettings) -> float:
        """Return the most seconds that one try of a rollout may take, including its waiting for the policy."""
        return rollout.rollout_timeout_s + self._grace_s(rollout) + self.settings.policy_wait_s
