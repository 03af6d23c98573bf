"""The output of jobs in the API's shape: models, checkpoints and measurements, each from its event."""

from __future__ import annotations

import msgspec

from synth.api.schemas import Checkpoint, Model, Point
from synth.bus.recorded import Recorded
from synth.events import BlobRef, CheckpointSaved, EvalCompleted, ModelPublished, ModelRef, TrainStep, trees_of
from synth.models import parse_finetuned


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a job made, and the manifest of its files. trees: that manifest, and the manifests of its bases."""

    model: Model
    tree: BlobRef | None
    trees: list[str]
    org: str
    created_seq: int


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, its model, and the manifest of its files. trees: as in `ModelRow`."""

    checkpoint: Checkpoint
    model: Model
    tree: BlobRef
    trees: list[str]
    org: str


def project_model(recorded: Recorded) -> ModelRow | None:
    """Return the model that an event publishes, if any."""
    event = recorded.event
    if not isinstance(event, ModelPublished):
        return None
    model = _model(event.model, event.kind, event.step, recorded)
    trees = trees_of(event.model)
    return ModelRow(model=model, tree=event.model.tree, trees=trees, org=recorded.org, created_seq=recorded.seq)


def project_checkpoint(recorded: Recorded) -> CheckpointRow | None:
    """Return the checkpoint that an event announces, if any; its values are its step's."""
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
    """Return the metrics of an event. Steps count from 1; an evaluation job's only evaluation is step 1."""
    event = recorded.event
    if isinstance(event, TrainStep):
        return [Point(name=n, step=event.step, value=v, time=recorded.time) for n, v in event.values.items()]
    if isinstance(event, EvalCompleted):
        step = max(event.iteration, 1) if event.step is None else event.step
        return [Point(name=f"eval.{n}", step=step, value=v, time=recorded.time) for n, v in event.values.items()]
    return []


def _model(ref: ModelRef, kind: str, step: int, recorded: Recorded) -> Model:
    # Every id contains its base; a reference names a base only if the model is an adapter on it.
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
