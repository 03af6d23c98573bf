"""The RL run as one plain process, timed: `examples/one_process.py` with the numbers of a resolved job.

`python -m benchmarks.one_process START_JSON`; prints one JSON line a step with the seconds of its parts.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path

import msgspec

from benchmarks.tax_app import question, reward_of
from examples.one_process import Task, sample
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.methods.job import job_from_data
from synth.methods.rl import RlJob
from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch
from synth.rollouts.collection.metrics import collection_metrics
from synth.trainer.learner import rng
from synth.trainer.learner.data.sft_dataset import load_tokenizer
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.owner.learner_config import machine_of
from synth.trainer.settings import TrainerSettings
from synth.trajectories import RolloutBatch

_TAX = Task(question=question, reward=lambda seed, reply: reward_of(reply))


class Start(msgspec.Struct):
    """The run. job: as the validator resolved it; threads: of the engine and of the trainer, which take turns."""

    job: dict[str, object]
    model_dir: str
    work_dir: str
    threads: int


class StepTimes(msgspec.Struct):
    """Seconds of one step by part, and in all. cpu: of all threads; it does not depend on what else runs here."""

    sample: float
    batch: float
    train: float
    weights: float
    total: float
    cpu: float


async def run(start: Start) -> None:
    """Sample, build a batch, train, swap the engine's weights; again."""
    job = job_from_data(start.job)
    assert isinstance(job, RlJob)
    machine = machine_of(job, TrainerSettings(threads=start.threads))
    model_dir = Path(start.model_dir)
    engine = await TransformersEngine.load(model_dir, settings=EngineSettings(threads=start.threads, seed=0))
    tokenizer = load_tokenizer(model_dir)
    rng.seed_everything(job.seed, deterministic=machine.deterministic)
    trainer = RlTrainer(load_policy(model_dir, job, machine, dropout=False), job)
    weights = Path(start.work_dir) / "policy.safetensors"
    for k in range(1, job.iterations + 1):
        marks, cpu = [time.perf_counter()], time.process_time()
        rollouts = await sample(
            engine,
            tokenizer,
            _TAX,
            job.seeds_of(k),
            group_size=job.group_size,
            max_tokens=job.rollout.sampling.max_tokens,
        )
        marks.append(time.perf_counter())
        batch = as_batch(rollouts, job, k)
        marks.append(time.perf_counter())
        trainer.step(batch)
        marks.append(time.perf_counter())
        trainer.policy.write_serving_weights(weights, version=k)
        await engine.update_weights(weights, k)
        marks.append(time.perf_counter())
        parts = [b - a for a, b in itertools.pairwise(marks)]
        times = StepTimes(*parts, total=marks[-1] - marks[0], cpu=time.process_time() - cpu)
        sys.stdout.write(msgspec.json.encode(times).decode() + "\n")
        sys.stdout.flush()
    await engine.close()


def as_batch(rollouts: list[ScoredRollout], job: RlJob, k: int) -> RolloutBatch:
    """Return the batch of iteration k, as the collector builds it."""
    return build_batch(
        rollouts,
        job_id="tax",
        iteration=k,
        temperature=job.rollout.sampling.temperature,
        groups=job.batch_size,
        group_size=job.group_size,
        credit=CreditRules(by_std=job.advantage_std),
        values=collection_metrics(rollouts, failed=0),
    )


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Start)))
