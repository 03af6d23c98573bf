"""Trains what a job's log says again, in one go: the model that the job would have made undisturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from synth.blobs import BlobStore
from synth.bus.recorded import Recorded
from synth.events import JobValidated, JobVerified, ModelPublished, RolloutBatched
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.trainer.learner import rng
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.owner.learner_config import machine_of
from synth.trainer.settings import TrainerSettings
from synth.trajectories import RolloutBatch
from synth.weights.local_model import training_source


async def replay_training(facts: Sequence[Recorded], blobs: BlobStore, work: Path) -> Path:
    """Train an RL job's source model on the job's batches; returns the folder of the model. facts: the job's log."""
    validated = next(fact.event for fact in facts if isinstance(fact.event, JobValidated))
    verified = next(fact.event for fact in facts if isinstance(fact.event, JobVerified))
    job = job_from_data(validated.job)
    assert isinstance(job, RlJob)
    machine = machine_of(job, TrainerSettings())
    source = await training_source(verified.source, None, blobs, work / "models", hub=False)
    rng.seed_everything(job.seed, deterministic=machine.deterministic)
    trainer = RlTrainer(load_policy(source.model, job, machine, dropout=False), job)
    for batched in (fact.event for fact in facts if isinstance(fact.event, RolloutBatched)):
        batch = RolloutBatch.from_bytes(await blobs.get_bytes(batched.batch))
        await asyncio.to_thread(trainer.step, batch)
    trainer.policy.write_model(work / "replayed")
    return work / "replayed"


async def differing_files(facts: Sequence[Recorded], blobs: BlobStore, work: Path) -> list[str]:
    """The files of an RL job's published model that differ from the replay of its log; none where it is exact."""
    replayed = await replay_training(facts, blobs, work)
    published = [fact.event for fact in facts if isinstance(fact.event, ModelPublished)][-1]
    assert published.model.tree is not None
    model = await blobs.fetch_tree(published.model.tree, work / "published")
    return [f.name for f in sorted(replayed.iterdir()) if (model / f.name).read_bytes() != f.read_bytes()]
