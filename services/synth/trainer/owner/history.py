"""The events that the attempts at a training job have announced so far, read from the job's log."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.bus.connection import Connection
from synth.bus.replay import replay
from synth.events import (
    BlobExpired,
    BlobRef,
    CheckpointSaved,
    Continuation,
    EvalCompleted,
    ModelPublished,
    ModelRef,
    PolicyPublished,
    RolloutBatched,
    RolloutRequested,
    TrainStep,
)
from synth.trainer.collapse.learning_signal import STAGE

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
    """The events announced so far: by earlier attempts, and by the present one as it runs."""

    last_step: int = 0
    checkpoint: CheckpointSaved | None = None
    checkpoints: list[CheckpointSaved] = field(default_factory=list)
    weights: dict[tuple[int, int], BlobRef] = field(default_factory=dict)
    """Weights files that have not expired, by attempt and version."""
    requested: set[tuple[str, int]] = field(default_factory=set)
    stages: dict[int, int] = field(default_factory=dict[int, int])
    """The curriculum stage from which the seeds of each iteration were drawn."""
    batches: dict[int, RolloutBatched] = field(default_factory=dict)
    evaluated: set[int] = field(default_factory=set)
    model: ModelPublished | None = None
    expired_last: list[str] = field(default_factory=list)
    continues: Continuation | None = None
    """The checkpoint of another job that this one begins behind."""
    seq: int = 0

    def continued_checkpoint(self) -> list[CheckpointSaved]:
        """Return the checkpoint of the other job that this one begins behind, if there is one."""
        return [] if self.continues is None else [_checkpoint_of(self.continues)]

    def go_on_from(self, saved: CheckpointSaved) -> None:
        """Take a checkpoint for the last one: those after it are damaged, and are saved again."""
        if self.checkpoint is not None and saved.tree.uri != self.checkpoint.tree.uri:
            self.checkpoint = saved
            self.checkpoints = [c for c in self.checkpoints if c.step <= saved.step]

    def add_request(self, event: RolloutRequested) -> None:
        """Add a request of rollouts that is in the log."""
        self.requested.add((event.mode, event.iteration))
        if event.mode == "train":
            self.stages[event.iteration] = event.stage

    def batch_values(self, step: int) -> dict[str, float]:
        """Return the collector's metrics of a step's batch and the stage of its seeds; none for SFT."""
        if step not in self.batches:
            return {}
        return self.batches[step].values | {STAGE: float(self.stages.get(step, 0))}


async def read_history(
    bus: Connection, org: str, job_id: str, *, continues: Continuation | None = None
) -> AttemptHistory:
    """Read the log of a training job. continues: the checkpoint that the job starts from; None for its source model.

    Call it after this attempt's own `job.started`, when no earlier attempt can add to the log any more.
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
    if continues is not None:
        announced.continues = continues
        announced.last_step = max(announced.last_step, continues.step)
        announced.checkpoint = announced.checkpoint or _checkpoint_of(continues)
    return announced


async def read_policy(bus: Connection, org: str, continues: Continuation) -> PolicyPublished | None:
    """Return the weights that the other job published of its checkpoint; None if they have expired."""
    facts = [f"{fact}.{org}.{continues.job}" for fact in ("policy.published", "blob.expired")]
    published: dict[str, PolicyPublished] = {}
    for recorded in await replay(bus, facts, whole=True):
        match recorded.event:
            case PolicyPublished(version=continues.version) as event:
                published[event.weights.uri] = event
            case BlobExpired(uris=uris):
                for uri in uris:
                    published.pop(uri, None)
            case _:
                continue
    return next(reversed(published.values()), None)


def _checkpoint_of(continues: Continuation) -> CheckpointSaved:
    """Return the checkpoint as one of the job's own. The job may not delete it."""
    return CheckpointSaved(
        step=continues.step,
        version=continues.version,
        attempt=0,
        tree=continues.tree,
        size=continues.tree.size,
        model=ModelRef(id=continues.model),
    )
