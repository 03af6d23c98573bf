"""One attempt at a training job: what its log says was done, and how the next things are announced.

The order in which things are announced is the resume guarantee: weights, then the checkpoint that covers the step,
then the step itself. A successor therefore finds either all of a step or nothing of it that it could not do again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from synth.blobs import BlobMissing, BlobStore
from synth.bus.connection import Connection
from synth.bus.publish import Fence, Publisher
from synth.bus.replay import replay
from synth.events import (
    BlobExpired,
    BlobRef,
    CheckpointSaved,
    EvalCompleted,
    ModelPublished,
    ModelRef,
    PolicyPublished,
    RolloutBatched,
    RolloutRequested,
    TrainHandedBack,
    TrainResumed,
    TrainStep,
)
from synth.runtime import logs
from synth.trainer.owner.collapse_watch import Watching
from synth.trainer.protocol import Paused, Ready, Stepped

log = logs.get("attempt")

#: Of the steps that have a checkpoint, those whose checkpoint stays.
Kept = Callable[[list[int]], set[int]]

_FACTS = (
    "train.step",
    "checkpoint.saved",
    "policy.published",
    "rollout.requested",
    "rollout.batch",
    "eval.completed",
    "model.published",
    "blob.expired",
    "train.handed_back",
)


@dataclass
class Past:
    """What earlier attempts announced."""

    last_step: int = 0
    checkpoint: CheckpointSaved | None = None
    checkpoints: list[CheckpointSaved] = field(default_factory=list)
    weights: dict[tuple[int, int], BlobRef] = field(default_factory=dict)
    """Live weights files, by attempt and version."""
    requested: set[tuple[str, int]] = field(default_factory=set)
    batches: dict[int, RolloutBatched] = field(default_factory=dict)
    evaluated: set[int] = field(default_factory=set)
    model: ModelPublished | None = None
    expired_last: list[str] = field(default_factory=list)
    seq: int = 0
    handed_back: set[int] = field(default_factory=set)


async def read_past(bus: Connection, org: str, job_id: str) -> Past:
    """Read a training job's log. After our own `job.started`: no earlier attempt can add to it any more."""
    past = Past()
    expired: set[str] = set()
    for recorded in await replay(bus.nc, [f"{fact}.{org}.{job_id}" for fact in _FACTS]):
        past.seq = recorded.seq
        match recorded.event:
            case TrainStep(step=step):
                past.last_step = max(past.last_step, step)
            case CheckpointSaved() as event:
                past.checkpoint = event
                past.checkpoints.append(event)
            case PolicyPublished(version=version, attempt=attempt, weights=weights):
                past.weights[attempt, version] = weights
            case RolloutRequested(mode=mode, iteration=iteration):
                past.requested.add((mode, iteration))
            case RolloutBatched() as event:
                past.batches[event.iteration] = event
            case EvalCompleted(iteration=iteration):
                past.evaluated.add(iteration)
            case ModelPublished() as event:
                past.model = event
            case TrainHandedBack(attempt=attempt):
                past.handed_back.add(attempt)
            case BlobExpired(uris=uris):
                expired.update(uris)
                past.expired_last = uris
    past.weights = {key: ref for key, ref in past.weights.items() if ref.uri not in expired}
    past.checkpoints = [c for c in past.checkpoints if c.tree.uri not in expired]
    return past


class Announcer:
    """Publishes an attempt's facts, blobs first."""

    def __init__(
        self,
        bus: Connection,
        blobs: BlobStore,
        fence: Fence,
        past: Past,
        *,
        total: int,
        model_at: Callable[[int, BlobRef], ModelRef],
        watching: Watching | None,
    ) -> None:
        """model_at: how the model of a step is served, from the tree of its checkpoint. watching: None is nobody."""
        self._model_at = model_at
        self._publisher = Publisher(bus)
        self._blobs = blobs
        self._fence = fence
        self._past = past
        self._total = total
        self._watching = watching
        self._waiting: list[TrainStep] = []
        self._prefix = f"jobs/{fence.job_id}/attempt-{fence.attempt}"

    async def resumed(self, ready: Ready, reports: dict[int, dict[str, float]]) -> None:
        """Say that this attempt goes on from a checkpoint, with the proof; then the steps that were never announced."""
        event = TrainResumed(
            step=ready.step,
            attempt=self._fence.attempt,
            loss_then=ready.loss_then,
            loss_now=ready.loss_now,
            same_fingerprint=ready.same_fingerprint,
        )
        await self._publisher.fenced(event, fence=self._fence, id=str(self._fence.attempt))
        for step, values in sorted(reports.items()):
            await self._step(step, values)
        await self._flush()

    async def expired_again(self) -> None:
        """Delete what a predecessor said has expired: it may have died before it had deleted it."""
        await self._blobs.delete(self._past.expired_last)

    async def requested(self, event: RolloutRequested) -> None:
        """Ask for rollouts, once."""
        key = (event.mode, event.iteration)
        if key not in self._past.requested:
            await self._publisher.fenced(event, fence=self._fence, id=f"{event.mode}:{event.iteration}")
            self._past.requested.add(key)

    async def stepped(self, stepped: Stepped, values: dict[str, float], *, kind: str) -> None:
        """Announce what a step made: weights to serve, a checkpoint, and every step that the checkpoint covers."""
        k = stepped.step
        if stepped.weights is not None:
            ref = await self._blobs.put_file(f"{self._prefix}/policy-{k}.safetensors", Path(stepped.weights), move=True)
            event = PolicyPublished(
                version=k, attempt=self._fence.attempt, kind=kind, weights=ref, canary=stepped.canary
            )
            await self._publisher.fenced(event, fence=self._fence, id=f"{self._fence.attempt}:{k}")
            self._past.weights[self._fence.attempt, k] = ref
        await self._step(k, values)
        if stepped.checkpoint is not None:
            await self._checkpoint(k, Path(stepped.checkpoint))

    async def paused(self, paused: Paused) -> None:
        """Announce what a pause saved: the steps that no checkpoint covered before."""
        if paused.checkpoint is not None:
            await self._checkpoint(paused.step, Path(paused.checkpoint))

    async def model(self, ref: ModelRef, *, kind: str, step: int) -> None:
        """Publish the finished model."""
        event = ModelPublished(model=ref, kind=kind, step=step)
        await self._publisher.fenced(event, fence=self._fence, id="model")

    async def put_model(self, directory: Path) -> BlobRef:
        """Keep the finished model's files."""
        tree, _ = await self._blobs.put_tree(f"{self._prefix}/model", directory, move=True)
        return tree

    async def expire(self, *, keep_versions: int, pinned: set[int], kept: Kept) -> None:
        """Let go of what nobody needs any more: superseded checkpoints, and weights older than `keep_versions`.

        pinned: versions that an evaluation still reads. kept: which steps' checkpoints stay.
        """
        newest = max((version for _, version in self._past.weights), default=0)
        latest = {version: attempt for attempt, version in sorted(self._past.weights)}
        old = [
            (attempt, version)
            for attempt, version in self._past.weights
            if version not in pinned and (version <= newest - keep_versions or attempt < latest[version])
        ]
        stays = kept([c.step for c in self._past.checkpoints])
        checkpoints = [c for c in self._past.checkpoints if c.step not in stays]
        uris = [self._past.weights[key].uri for key in old]
        for checkpoint in checkpoints:
            # A predecessor said that it expired, and may have died in the middle of deleting it.
            with contextlib.suppress(BlobMissing):
                manifest = await self._blobs.manifest(checkpoint.tree)
                uris += [ref.uri for ref in manifest.files.values()] + [checkpoint.tree.uri]
        if not uris:
            return
        event = BlobExpired(uris=uris)
        await self._publisher.fenced(event, fence=self._fence, id=f"{self._fence.attempt}:{uris[0]}")
        await self._blobs.delete(uris)
        for key in old:
            del self._past.weights[key]
        self._past.checkpoints = [c for c in self._past.checkpoints if c.step in stays]

    async def _checkpoint(self, step: int, folder: Path) -> None:
        tree, manifest = await self._blobs.put_tree(f"{self._prefix}/checkpoint-{step}", folder, move=True)
        saved = CheckpointSaved(
            step=step,
            version=step,
            attempt=self._fence.attempt,
            tree=tree,
            size=manifest.size,
            model=self._model_at(step, tree),
        )
        await self._publisher.fenced(saved, fence=self._fence, id=f"{self._fence.attempt}:{step}")
        self._past.checkpoints.append(saved)
        await self._flush()

    async def _step(self, step: int, values: dict[str, float]) -> None:
        if step > self._past.last_step:
            # JSON has no NaN: a figure that is none says nothing, and would make the whole event unreadable.
            finite = {name: value for name, value in values.items() if math.isfinite(value)}
            event = TrainStep(step=step, of=self._total, attempt=self._fence.attempt, values=finite)
            self._waiting.append(event)
            if self._watching is not None:
                self._watching.look(event)

    async def _flush(self) -> None:
        for event in self._waiting:
            await self._publisher.fenced(event, fence=self._fence, id=str(event.step))
            self._past.last_step = event.step
            if self._watching is not None:
                await self._watching.announce(event.step)
        self._waiting.clear()
