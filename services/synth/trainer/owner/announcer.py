"""Announces what an attempt at a training job makes.

The order of the announcements is the resume guarantee: weights, then the checkpoint that covers the step, then the step
itself. The next attempt therefore finds a step announced in full, or can train it again. A checkpoint is announced when
it is durable, while later steps are trained and their weights announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from nats.errors import Error as NatsError

from synth.blobs import BlobCorrupt, BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.history.model_leases import leased_trees
from synth.bus.publish import Fence, Publisher
from synth.errors import SynthError
from synth.events import (
    BlobExpired,
    BlobRef,
    CheckpointSaved,
    Continuation,
    ModelPublished,
    ModelRef,
    PolicyPublished,
    RolloutRequested,
    TrainResumed,
    TrainStep,
)
from synth.runtime import logs
from synth.trainer.owner.collapse_watch import CollapseWatch
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.history import AttemptHistory, read_policy
from synth.trainer.owner.provisional_steps import ProvisionalSteps
from synth.trainer.protocol import Ready, Saved, Stepped

log = logs.get("announcer")

#: Given the steps that have a checkpoint: those whose checkpoint is kept.
KeepSteps = Callable[[list[int]], set[int]]


@dataclass(eq=False)
class Announcer:
    """Publishes the events of an attempt, each after the blobs that it names.

    total: steps of the job. model_at: returns the served model of a step, given the tree of its checkpoint. watch: None
    if the job has no collapse watch. provisional: publishes the steps that wait for their checkpoint.
    """

    bus: Connection
    blobs: BlobStore
    fence: Fence
    announced: AttemptHistory
    _: KW_ONLY
    total: int
    model_at: Callable[[int, BlobRef], ModelRef]
    watch: CollapseWatch | None
    provisional: ProvisionalSteps
    _queued: list[TrainStep] = field(default_factory=list[TrainStep])
    _expiring: asyncio.Lock = field(default_factory=asyncio.Lock)
    _published_step: int = 0
    _step_published: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def _publisher(self) -> Publisher:
        return Publisher(self.bus)

    @property
    def _prefix(self) -> str:
        return f"jobs/{self.fence.job_id}/attempt-{self.fence.attempt}"

    async def announce_resume(self, ready: Ready, reports: dict[int, dict[str, float]]) -> None:
        """Announce the resume from a checkpoint, with its proof, and then the steps that were never announced.

        reports: the values of the steps that the checkpoint covers, by step.
        """
        event = TrainResumed(
            step=ready.step,
            attempt=self.fence.attempt,
            loss_then=ready.loss_then,
            loss_now=ready.loss_now,
            same_fingerprint=ready.same_fingerprint,
        )
        await self._publisher.fenced(event, fence=self.fence, id=str(self.fence.attempt))
        self._published_step = ready.step
        for step, values in sorted(reports.items()):
            self._queue_step(step, values)
        await self._announce_queued_steps(up_to=ready.step)

    async def delete_expired_blobs(self) -> None:
        """Delete the blobs of the last `blob.expired`: its attempt may have died before it had deleted them."""
        await self._delete_but_leased(self.announced.expired_last, trees=self.announced.expired_last)

    async def request_rollouts(self, event: RolloutRequested) -> None:
        """Publish a request of rollouts, unless it was published before."""
        key = (event.mode, event.iteration)
        if key not in self.announced.requested:
            await self._publisher.fenced(event, fence=self.fence, id=f"{event.mode}:{event.iteration}")
            self.announced.add_request(event)

    async def announce_step(self, stepped: Stepped, values: dict[str, float], *, kind: str) -> None:
        """Announce the weights of a step, which itself is announced with the checkpoint that covers it.

        values: of the step; `seconds_publish` is added, from its last optimizer step until its weights are announced.
        """
        k = stepped.step
        if stepped.weights is not None:
            key = f"{self._prefix}/policy-{k}.safetensors"
            sha256 = stepped.weights_sha256
            ref = await self.blobs.put_file(key, Path(stepped.weights), move=True, sha256=sha256)
            event = PolicyPublished(
                version=k, attempt=self.fence.attempt, kind=kind, weights=ref, canary=stepped.canary
            )
            await self._publisher.fenced(event, fence=self.fence, id=f"{self.fence.attempt}:{k}")
            self.announced.weights[self.fence.attempt, k] = ref
            values["seconds_publish"] = time.time() - stepped.trained_at
        event = self._queue_step(k, values)
        if event is not None:
            self.provisional.add(k, event.values)
        async with self._step_published:
            self._published_step = k
            self._step_published.notify_all()

    async def announce_continued_policy(self, continues: Continuation, work_dir: Path) -> None:
        """Publish the policy of another job's checkpoint, which the engines of this job do not serve yet.

        Raises `JobFailure` if its weights no longer exist.
        """
        version, attempt = continues.version, self.fence.attempt
        if any(known >= version for _, known in self.announced.weights):
            return
        policy = await read_policy(self.bus, self.fence.org, continues)
        if policy is None:
            what = f"the weights that {continues.job} served after step {continues.step} have expired"
            fix = f"train from its checkpoint: [model] source = {continues.model!r}"
            raise JobFailure("not_continued", what, fix=fix)
        file = await self.blobs.fetch(policy.weights, work_dir / f"continued-{version}.safetensors")
        ref = await self.blobs.put_file(f"{self._prefix}/policy-{version}.safetensors", file)
        event = PolicyPublished(version=version, attempt=attempt, kind=policy.kind, weights=ref, canary=policy.canary)
        await self._publisher.fenced(event, fence=self.fence, id=f"{attempt}:{version}")
        self.announced.weights[attempt, version] = ref

    async def publish_model(self, ref: ModelRef, *, kind: str, step: int) -> None:
        """Publish the finished model."""
        event = ModelPublished(model=ref, kind=kind, step=step)
        await self._publisher.fenced(event, fence=self.fence, id="model")

    async def store_model(self, directory: Path) -> BlobRef:
        """Store the files of the finished model."""
        tree, _ = await self.blobs.put_tree(f"{self._prefix}/model", directory, move=True)
        return tree

    async def expire_weights(self, *, keep_versions: int, pinned: set[int]) -> None:
        """Delete weights that are older than the last `keep_versions`. pinned: versions that an evaluation reads."""
        newest = max((version for _, version in self.announced.weights), default=0)
        latest = {version: attempt for attempt, version in sorted(self.announced.weights)}
        old = [
            (attempt, version)
            for attempt, version in self.announced.weights
            if version not in pinned and (version <= newest - keep_versions or attempt < latest[version])
        ]
        await self._expire([self.announced.weights[key].uri for key in old])
        for key in old:
            del self.announced.weights[key]

    async def store_checkpoint(self, written: Saved, *, keep: KeepSteps) -> None:
        """Store and announce a checkpoint and every step that it covers; delete the checkpoints that it supersedes.

        It waits for the announcement of the step's weights: an attempt that resumes from a checkpoint publishes no
        weights of its step, so rollouts would wait for a version that is never published. keep: the steps whose
        checkpoints are kept.
        """
        async with self._step_published:
            await self._step_published.wait_for(lambda: self._published_step >= written.step)
        step, prefix = written.step, f"{self._prefix}/checkpoint-{written.step}"
        tree, manifest = await self.blobs.put_tree(prefix, Path(written.folder), move=True, sha256=written.sha256)
        saved = CheckpointSaved(
            step=step,
            version=step,
            attempt=self.fence.attempt,
            tree=tree,
            size=manifest.size,
            model=self.model_at(step, tree),
        )
        await self._publisher.fenced(saved, fence=self.fence, id=f"{self.fence.attempt}:{step}")
        self.announced.checkpoints.append(saved)
        await self._announce_queued_steps(up_to=step)
        await self._expire_checkpoints(keep)

    async def _expire_checkpoints(self, keep: KeepSteps) -> None:
        kept = keep([c.step for c in self.announced.checkpoints])
        old = [c for c in self.announced.checkpoints if c.step not in kept]
        leased = await self._leased([c.tree.uri for c in old])
        old = [c for c in old if c.tree.uri not in leased]
        uris: list[str] = []
        for checkpoint in old:
            # An earlier attempt announced that it expired, and may have died while it deleted it.
            with contextlib.suppress(BlobMissing, BlobCorrupt):
                manifest = await self.blobs.manifest(checkpoint.tree)
                uris += [ref.uri for ref in manifest.files.values()] + [checkpoint.tree.uri]
        expired = [c.tree.uri for c in old]
        await self._expire(uris, trees=expired)
        self.announced.checkpoints = [c for c in self.announced.checkpoints if c.tree.uri not in expired]

    async def _expire(self, uris: list[str], *, trees: Sequence[str] = ()) -> None:
        """Announce the blobs that expire. trees: the manifests among them."""
        if not uris:
            return
        # A resume deletes the blobs that the last of these events names again, so only one is published at a time.
        async with self._expiring:
            event = BlobExpired(uris=uris)
            await self._publisher.fenced(event, fence=self.fence, id=f"{self.fence.attempt}:{uris[0]}")
            await self._delete_but_leased(uris, trees=trees)

    async def _delete_but_leased(self, uris: list[str], *, trees: Sequence[str]) -> None:
        """Delete blobs that have expired, but for trees that were leased just before: who leased one has found it."""
        leased = await self._leased(trees)
        spared = leased | {uri for tree in leased for uri in await self.blobs.files_of_tree(tree)}
        await self.blobs.delete([uri for uri in uris if uri not in spared])

    async def _leased(self, trees: Sequence[str]) -> set[str]:
        """Return the trees that other jobs need, or all of them if the leases cannot be read, so that none expires."""
        if not trees:
            return set()
        try:
            return await leased_trees(self.bus, self.fence.org, self.fence.job_id, trees)
        except (SynthError, NatsError, OSError) as error:
            # The attempt continues: the next checkpoint deletes the trees that are kept now.
            log.warning("nothing expires, as leases cannot be read", job=self.fence.job_id, error=repr(error))
            return set(trees)

    def _queue_step(self, step: int, values: dict[str, float]) -> TrainStep | None:
        """Queue the event of a step until its checkpoint is saved. Returns None if the step is already in the log."""
        if step <= self.announced.last_step:
            return None
        # JSON has no NaN: a value that is not finite would make the whole event unreadable.
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        event = TrainStep(step=step, of=self.total, attempt=self.fence.attempt, values=finite)
        self._queued.append(event)
        if self.watch is not None:
            self.watch.add_step(event)
        return event

    async def _announce_queued_steps(self, *, up_to: int) -> None:
        covered = [event for event in self._queued if event.step <= up_to]
        for event in covered:
            await self._publisher.fenced(event, fence=self.fence, id=str(event.step))
            self.announced.last_step = event.step
            if self.watch is not None:
                await self.watch.announce(event.step)
        self._queued = [event for event in self._queued if event.step > up_to]
        self.provisional.clear(up_to=up_to)
