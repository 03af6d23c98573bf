"""What the attempts at a training job have announced so far, read from the job's log."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.bus.connection import Connection
from synth.bus.replay import replay
from synth.events import (
    BlobExpired,
    BlobRef,
    CheckpointSaved,
    EvalCompleted,
    ModelPublished,
    PolicyPublished,
    RolloutBatched,
    RolloutRequested,
    TrainStep,
)

_FACTS = (
    "train.step",
    "checkpoint.saved",
    "policy.published",
    "rollout.requested",
    "rollout.batch",
    "eval.completed",
    "model.published",
    "blob.expired",
)


@dataclass
class AttemptHistory:
    """What was announced so far: by earlier attempts, and by the present one as it goes on."""

    last_step: int = 0
    checkpoint: CheckpointSaved | None = None
    checkpoints: list[CheckpointSaved] = field(default_factory=list)
    weights: dict[tuple[int, int], BlobRef] = field(default_factory=dict)
    """Weights files that have not expired, by attempt and version."""
    requested: set[tuple[str, int]] = field(default_factory=set)
    stages: dict[int, int] = field(default_factory=dict[int, int])
    """Of the curriculum, by iteration: where its seeds were drawn."""
    batches: dict[int, RolloutBatched] = field(default_factory=dict)
    evaluated: set[int] = field(default_factory=set)
    model: ModelPublished | None = None
    expired_last: list[str] = field(default_factory=list)
    seq: int = 0

    def add_request(self, event: RolloutRequested) -> None:
        """A request of rollouts that is in the log."""
        self.requested.add((event.mode, event.iteration))
        if event.mode == "train":
            self.stages[event.iteration] = event.stage


async def read_history(bus: Connection, org: str, job_id: str) -> AttemptHistory:
    """Read the log of a training job.

    To be called after this attempt's own `job.started`, when no earlier attempt can add to the log any more.
    """
    announced = AttemptHistory()
    expired: set[str] = set()
    for recorded in await replay(bus, [f"{fact}.{org}.{job_id}" for fact in _FACTS], whole=True):
        announced.seq = recorded.seq
        match recorded.event:
            case TrainStep(step=step):
                announced.last_step = max(announced.last_step, step)
            case CheckpointSaved() as event:
                announced.checkpoint = event
                announced.checkpoints.append(event)
            case PolicyPublished(version=version, attempt=attempt, weights=weights):
                announced.weights[attempt, version] = weights
            case RolloutRequested() as event:
                announced.add_request(event)
            case RolloutBatched() as event:
                announced.batches[event.iteration] = event
            case EvalCompleted(iteration=iteration):
                announced.evaluated.add(iteration)
            case ModelPublished() as event:
                announced.model = event
            case BlobExpired(uris=uris):
                expired.update(uris)
                announced.expired_last = uris
    announced.weights = {key: ref for key, ref in announced.weights.items() if ref.uri not in expired}
    announced.checkpoints = [c for c in announced.checkpoints if c.tree.uri not in expired]
    return announced
