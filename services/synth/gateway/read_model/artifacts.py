"""What jobs leave behind, as the API shows it: models, checkpoints and measurements, each from the event of it."""

from __future__ import annotations

import msgspec

from synth.api.schemas import Checkpoint, Model, Point
from synth.bus.recorded import Recorded
from synth.events import BlobRef, CheckpointSaved, EvalCompleted, ModelPublished, ModelRef, TrainStep, trees_of
from synth.models import parse_finetuned


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a job made, and the manifest of its files. trees: that manifest, and those of what it lies over."""

    model: Model
    tree: BlobRef | None
    trees: list[str]
    org: str
    created_seq: int


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, the model that it is, and the manifest of its files. trees: as of `ModelRow`."""

    checkpoint: Checkpoint
    model: Model
    tree: BlobRef
    trees: list[str]
    org: str


def project_model(recorded: Recorded) -> ModelRow | None:
    """The model that an event publishes, if it does."""
    event = recorded.event
    if not isinstance(event, ModelPublished):
        return None
    model = _model(event.model, event.kind, event.step, recorded)
    trees = trees_of(event.model)
    return ModelRow(model=model, tree=event.model.tree, trees=trees, org=recorded.org, created_seq=recorded.seq)


def project_checkpoint(recorded: Recorded) -> CheckpointRow | None:
    """The checkpoint that an event announces, if it does; its values are those of its step."""
    event = recorded.event
    if not isinstance(event, CheckpointSaved):
        return None
    checkpoint = Checkpoint(
        model=event.model.id,
        job_id=recorded.key,
        step=event.step,
        bytes=event.size,
        created_at=recorded.time,
    )
    model = _model(event.model, event.model.kind, event.step, recorded)
    trees = [event.tree.uri, *trees_of(event.model.base)]
    return CheckpointRow(checkpoint=checkpoint, model=model, tree=event.tree, trees=trees, org=recorded.org)


def project_points(recorded: Recorded) -> list[Point]:
    """The metrics that an event measures. Steps count from 1; an evaluation job's only evaluation is step 1."""
    event = recorded.event
    if isinstance(event, TrainStep):
        return [Point(name=n, step=event.step, value=v, time=recorded.time) for n, v in event.values.items()]
    if isinstance(event, EvalCompleted):
        step = max(event.iteration, 1) if event.step is None else event.step
        return [Point(name=f"eval.{n}", step=step, value=v, time=recorded.time) for n, v in event.values.items()]
    return []


def _model(ref: ModelRef, kind: str, step: int, recorded: Recorded) -> Model:
    # Every id bears its base; a reference names one only where an adapter must be laid over it.
    named = parse_finetuned(ref.id)
    return Model(
        id=ref.id,
        kind=kind,
        base=named.base if named else None,
        stand_in=ref.stand_in,
        job_id=recorded.key,
        step=step,
        created_at=recorded.time,
    )
