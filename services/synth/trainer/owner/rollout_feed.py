"""The feed of an RL run: its requests to the collector (iterations ahead of training, evaluations) and its batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from synth.bus.replay import follow
from synth.errors import Transient
from synth.events import EvalCompleted, RolloutBatched, RolloutRequested
from synth.methods.rl import RlJob
from synth.trainer.owner.announcer import Announcer
from synth.trainer.owner.attempt import Attempt

#: Events that show that the collector works: a batch may take any time, as long as its rollouts come in.
_FACTS = ("rollout.batch", "rollout.completed", "rollout.judged", "rollout.failed", "eval.completed")


class RolloutFeed:
    """Requests rollouts up to `async_level` iterations ahead of training, and waits for their batches, in order."""

    def __init__(self, attempt: Attempt, job: RlJob, announcer: Announcer) -> None:
        self._attempt = attempt
        self._job = job
        self._announcer = announcer
        self._announced = attempt.announced
        self._requested_evaluations: set[int] = {i for mode, i in self._announced.requested if mode == "eval"}
        self._changed = asyncio.Condition()
        self._following = asyncio.create_task(self._follow())

    async def request_up_to(self, k: int, *, stage: int) -> None:
        """Request iteration k and the iterations that may be collected while it trains, unless already requested.

        stage: the curriculum stage for the new requests.
        """
        for i in range(k, min(self._job.iterations, k + self._job.async_level) + 1):
            await self._announcer.request_rollouts(
                RolloutRequested(
                    iteration=i,
                    mode="train",
                    seeds=self._job.seeds_of(i, stage=stage),
                    group_size=self._job.group_size,
                    # Iteration i is trained on version i - 1: a rollout that is older than this would be dropped then.
                    oldest_version=max(0, i - 1 - self._job.max_staleness),
                    refill_seeds=self._job.refill_seeds_of(i, stage=stage),
                    stage=stage,
                )
            )

    async def request_evaluation(self, k: int, *, last: bool = False) -> None:
        """Request an evaluation of the policy after step k, if one is due; step 0 is the source model.

        last: whether k is the final step, which every job with evaluations evaluates.
        """
        evaluation = self._job.evaluation
        if evaluation is None or (k % evaluation.every_n_iters and not last):
            return
        self._requested_evaluations.add(k)
        await self._announcer.request_rollouts(
            RolloutRequested(
                iteration=k,
                mode="eval",
                seeds=evaluation.seeds,
                group_size=evaluation.rollouts_per_seed,
                oldest_version=k,
                pinned_version=k,
            )
        )

    def pinned_versions(self) -> set[int]:
        """Return the policy versions that a running evaluation still reads."""
        return self._requested_evaluations - self._announced.evaluated

    async def wait_batch(self, k: int) -> Path:
        """Return the batch of iteration k, as a file; waits for the collector. Its images are fetched then.

        Raises `JobFailure` for an image that cannot be read.
        """
        await self._wait_until(lambda: k in self._announced.batches, f"wait for batch {k}")
        event = self._announced.batches[k]
        # Batch k - 1 is trained by now. Its file does not exist if the blobs of a local store are read in place.
        self._file(k - 1).unlink(missing_ok=True)
        path = await self._attempt.blobs.fetch(event.batch, self._file(k))
        if self._job.vision is not None:
            self._attempt.lease.progress("fetch the images", deadline=self._attempt.settings.model_io_s)
            await self._attempt.images.fetch_batch(path)
        return path

    async def wait_evaluations(self) -> None:
        """Wait until every evaluation that was requested is in the log."""
        await self._wait_until(lambda: not self.pinned_versions(), "wait for evaluations")

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)

    def _file(self, k: int) -> Path:
        return self._attempt.work_dir / f"batch-{k}.safetensors"

    async def _wait_until(self, reached: Callable[[], bool], stage: str) -> None:
        """Wait for as long as rollouts come in, each of which may take all of its tries, and `batch_wait_s` beyond."""
        judging = self._job.rewards.judging
        outage_s = judging.max_outage_s if judging is not None else 0.0
        silence = self._attempt.settings.batch_wait_s + self._job.rollout.longest_s(1) + outage_s
        while not reached() and not self._following.done():
            self._attempt.lease.progress(stage, deadline=silence + 60)
            try:
                async with asyncio.timeout(silence), self._changed:
                    if not reached() and not self._following.done():
                        await self._changed.wait()
            except TimeoutError as error:
                raise Transient(f"{stage}: no rollout came in for {silence:.0f} s (SYNTH_BATCH_WAIT_S)") from error
        if self._following.done():
            self._following.result()

    async def _follow(self) -> None:
        fence = self._attempt.fence
        subjects = [f"{fact}.{fence.org}.{fence.job_id}" for fact in _FACTS]
        try:
            async with aclosing(follow(self._attempt.bus, subjects, after=self._announced.seq)) as events:
                async for recorded in events:
                    async with self._changed:
                        if isinstance(recorded.event, RolloutBatched):
                            self._announced.batches[recorded.event.iteration] = recorded.event
                        elif isinstance(recorded.event, EvalCompleted):
                            self._announced.evaluated.add(recorded.event.iteration)
                        self._changed.notify_all()
        finally:
            async with self._changed:
                self._changed.notify_all()
