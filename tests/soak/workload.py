"""Jobs of every kind, submitted one after the other, some of them cancelled or paused; and how each must end."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass, field

import httpx

from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.demo.math import dataset
from synth.jobs.lifecycle import TERMINAL_FACTS
from tests.chaos.job_text import demo
from tests.soak.cluster import MODEL, SoakCluster
from tests.soak.history import Violation

SUCCEEDED = frozenset({"job.succeeded"})
CANCELLED = frozenset({"job.cancelled", "job.withdrawn"})
_JUDGED = """
[rubric.weights]
env = 1.0
outcome = 0.5
[[rubric.outcome.criteria]]
id = "digits"
description = "The reply has many digits."
[[judge.judges]]
model = "scripted"
url = "{url}"
"""
_KINDS = ("rl", "rl", "judged", "sft", "evaluation", "cancelled", "paused")


@dataclass
class Log:
    """Every fact as a reader sees it while the log grows, and who waits for one."""

    seen: list[Recorded] = field(default_factory=list[Recorded])
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def keep_reading(self, cluster: SoakCluster) -> None:
        """Follow the whole log until cancelled."""
        async for fact in follow(cluster.bus, ["*.*.*.*"]):
            async with self.news:
                self.seen.append(fact)
                self.news.notify_all()

    async def until(self, job: str, types: frozenset[str], *, count: int = 1, seconds: float) -> Recorded:
        """The `count`th fact of these types of a job. Raises `TimeoutError`."""

        def found() -> Recorded | None:
            matching = [fact for fact in self.seen if fact.key == job and fact.type in types]
            return matching[count - 1] if len(matching) >= count else None

        async with asyncio.timeout(seconds), self.news:
            await self.news.wait_for(lambda: found() is not None)
        fact = found()
        assert fact is not None
        return fact


@dataclass
class Workload:
    """Submits jobs for as long as it is asked to. expected: job → the facts with which it may end.

    retries: of a rollout whose environment fails. A task app that is away for seconds is part of the plan.
    job_s: seconds in which a job must end. late: those that did not. turns: the kinds of jobs, one after the other.
    """

    cluster: SoakCluster
    log: Log
    rng: random.Random
    expected: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    late: list[str] = field(default_factory=list[str])
    model: str = ""
    retries: int = 12
    job_s: float = 420.0
    turns: tuple[str, ...] = _KINDS

    async def prepare(self) -> None:
        """Make the model that RL can improve, undisturbed."""
        rows = [dict(row) for row in dataset.rows(8000, seed=0)]
        self._file = await self.cluster.upload("math.jsonl", rows)
        job = await self._submit("sft", demo("sft", total_steps=300))
        await self.log.until(job, SUCCEEDED, seconds=self.job_s)
        self.model = f"fft:{MODEL}:{job}"

    def lateness(self) -> list[Violation]:
        """What the jobs that did not end in time say against the platform."""
        return [Violation("a job ends in time", job, self.kinds[job]) for job in self.late]

    async def keep_submitting(self, stop: asyncio.Event, *, at_once: int = 3) -> None:
        """Keep so many jobs live until `stop`, and then wait for their ends."""
        async with asyncio.TaskGroup() as lanes:
            for lane in range(at_once):
                lanes.create_task(self._lane(stop, random.Random(self.rng.random()), lane))

    async def _lane(self, stop: asyncio.Event, rng: random.Random, lane: int) -> None:
        turn = lane
        while not stop.is_set():
            kind = self.turns[turn % len(self.turns)] if turn < 2 * len(self.turns) else rng.choice(self.turns)
            turn += 3
            await self._run_one(kind, rng)

    async def _run_one(self, kind: str, rng: random.Random) -> None:
        iterations = rng.randint(4, 10)
        texts = {
            "sft": lambda: demo("sft", total_steps=60, checkpoint_every=20),
            "evaluation": lambda: self._patient("[eval]", demo("eval")),
            "judged": lambda: self._rl(iterations, rng) + _JUDGED.format(url=self.cluster.judge_url),
        }
        text = texts.get(kind, lambda: self._rl(iterations, rng))()
        job = await self._submit(kind, text)
        try:
            if kind == "cancelled":
                await self._cancel(job, rng)
            elif kind == "paused":
                await self._pause_and_resume(job)
            await self.log.until(job, TERMINAL_FACTS, seconds=self.job_s)
        except TimeoutError:
            self.late.append(job)

    async def _submit(self, kind: str, text: str) -> str:
        body: dict[str, object] = {"config": text, "config_name": f"{kind}.toml"}
        if kind == "sft":
            body["training_file"] = self._file
        else:
            body |= {"task_url": self.cluster.task_url, "model": self.model}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        job = str((await self.cluster.ask("POST", "/api/jobs", json=body, headers=headers))["id"])
        self.expected[job] = CANCELLED | SUCCEEDED if kind == "cancelled" else SUCCEEDED
        self.kinds[job] = kind
        return job

    async def _cancel(self, job: str, rng: random.Random) -> None:
        moment = rng.choice(["job.created", "job.verified", "job.started", "rollout.completed", "train.step"])
        await self.log.until(job, frozenset({moment}) | TERMINAL_FACTS, seconds=self.job_s)
        if await self._tell(job, "cancel"):
            self.expected[job] = CANCELLED

    async def _pause_and_resume(self, job: str) -> None:
        found = await self.log.until(job, frozenset({"train.step"}) | TERMINAL_FACTS, seconds=self.job_s)
        if found.type in TERMINAL_FACTS:
            return
        if not await self._tell(job, "pause"):
            return
        paused = await self.log.until(job, frozenset({"job.paused"}) | TERMINAL_FACTS, seconds=self.job_s)
        if paused.type == "job.paused":
            await self._tell(job, "resume")

    async def _tell(self, job: str, what: str) -> bool:
        """Cancel, pause or resume a job; False where it had ended before the gateway was reached."""
        try:
            await self.cluster.ask("POST", f"/api/jobs/{job}/{what}")
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.CONFLICT:
                raise
            await self.log.until(job, TERMINAL_FACTS, seconds=self.job_s)
            return False
        return True

    def _rl(self, iterations: int, rng: random.Random) -> str:
        text = demo("rl_long", iterations_per_epoch=iterations, async_level=rng.randint(0, 1))
        return self._patient("[rollout]", text)

    def _patient(self, section: str, text: str) -> str:
        assert f"{section}\n" in text
        return text.replace(f"{section}\n", f"{section}\nmax_retries = {self.retries}\nrollout_timeout_s = 30.0\n", 1)
