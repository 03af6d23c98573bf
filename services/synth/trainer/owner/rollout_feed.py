"""What an RL run asks of the collector, and what it gets: iterations requested ahead, batches in order, evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from synth.bus.replay import follow
from synth.errors import Transient
from synth.events import EvalCompleted, RolloutBatched, RolloutRequested
from synth.jobs.resolved import RlJob
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.owner import Attempt


class RolloutFeed:
    """Requests rollouts up to `async_level` iterations ahead of training and hands over their batches."""

    def __init__(self, attempt: Attempt, job: RlJob, announce: Announcer) -> None:
        self._attempt = attempt
        self._job = job
        self._announce = announce
        self._past = attempt.past
        self._asked: set[int] = {i for mode, i in self._past.requested if mode == "eval"}
        self._news = asyncio.Condition()
        self._following = asyncio.create_task(self._follow())

    async def request_up_to(self, k: int) -> None:
        """Ask for iteration k and for those that may be collected while it trains."""
        for i in range(k, min(self._job.iterations, k + self._job.async_level) + 1):
            await self._announce.requested(
                RolloutRequested(
                    iteration=i,
                    mode="train",
                    seeds=self._job.seeds_of(i),
                    group_size=self._job.group_size,
                    # Iteration i is trained on version i - 1: what is older than this would be dropped then.
                    oldest_version=max(0, i - 1 - self._job.max_staleness),
                    refill_seeds=self._job.refill_seeds_of(i),
                )
            )

    async def evaluate_after(self, k: int) -> None:
        """Ask for an evaluation of the policy after step k, when one is due."""
        evaluation = self._job.evaluation
        if evaluation is None or k % evaluation.every_n_iters:
            return
        self._asked.add(k)
        await self._announce.requested(
            RolloutRequested(
                iteration=k,
                mode="eval",
                seeds=evaluation.seeds,
                group_size=1,
                oldest_version=k,
                pinned_version=k,
            )
        )

    def pinned(self) -> set[int]:
        """Versions that an open evaluation still reads."""
        return self._asked - self._past.evaluated

    async def batch(self, k: int) -> tuple[RolloutBatched, Path]:
        """The batch of iteration k, as an event and as a file; waits for the collector."""
        await self._until(lambda: k in self._past.batches, f"wait for batch {k}")
        event = self._past.batches[k]
        # Trained by now; a local store's blobs are read where they are, and none is here.
        self._file(k - 1).unlink(missing_ok=True)
        return event, await self._attempt.blobs.fetch(event.batch, self._file(k))

    async def evaluations_done(self) -> None:
        """Wait for every evaluation that was asked for."""
        await self._until(lambda: not self.pinned(), "wait for evaluations")

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def _file(self, k: int) -> Path:
        return self._attempt.work_dir / f"batch-{k}.safetensors"

    async def _until(self, reached: Callable[[], bool], stage: str) -> None:
        wait = self._attempt.settings.batch_wait_s
        self._attempt.lease.progress(stage, deadline=wait + 60)
        try:
            async with asyncio.timeout(wait), self._news:
                await self._news.wait_for(lambda: reached() or self._following.done())
        except TimeoutError as error:
            raise Transient(f"{stage}: nothing after {wait:.0f} s") from error
        if self._following.done():
            self._following.result()

    async def _follow(self) -> None:
        fence = self._attempt.fence
        subjects = [f"{fact}.{fence.org}.{fence.job_id}" for fact in ("rollout.batch", "eval.completed")]
        try:
            async with aclosing(follow(self._attempt.bus.nc, subjects, after=self._past.seq)) as events:
                async for recorded in events:
                    async with self._news:
                        if isinstance(recorded.event, RolloutBatched):
                            self._past.batches[recorded.event.iteration] = recorded.event
                        elif isinstance(recorded.event, EvalCompleted):
                            self._past.evaluated.add(recorded.event.iteration)
                        self._news.notify_all()
        finally:
            async with self._news:
                self._news.notify_all()
