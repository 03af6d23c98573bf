"""The RL run as one plain process: the platform's own algorithms in a loop, without bus, HTTP, blobs or checkpoints.

`python -m benchmarks.one_process START_JSON`; prints one JSON line a step: where its seconds went.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.tax_app import question, reward_of
from synth.inference.chat.prompts import ChatFormat, Conversation, Message
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from synth.jobs.resolved import RlJob, job_from_data
from synth.rollouts.collection.batching import Collected, build_batch, collection_values
from synth.trainer.config import RlTrainConfig
from synth.trainer.learner.checkpoint import rng
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.owner.learner_config import build_train_config
from synth.trainer.settings import TrainerSettings
from synth.trajectories import CompletionRecord, RolloutBatch, branches_of


class Start(msgspec.Struct):
    """What to run. job: as the validator resolved it; threads: of the engine and of the trainer, which take turns."""

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
    """Sample, reward, batch, train, swap weights; again."""
    job = job_from_data(start.job)
    assert isinstance(job, RlJob)
    config = build_train_config(job, TrainerSettings(threads=start.threads))
    assert isinstance(config, RlTrainConfig)
    model_dir = Path(start.model_dir)
    engine = await TransformersEngine.load(model_dir, settings=EngineSettings(threads=start.threads, seed=0))
    chat = ChatFormat(load_tokenizer(model_dir))
    rng.seed_everything(config.seed, threads=config.threads, deterministic=config.deterministic)
    trainer = RlTrainer(load_policy(model_dir, config, dropout=False), config)
    weights = Path(start.work_dir) / "policy.safetensors"
    for k in range(1, job.iterations + 1):
        marks, cpu = [time.perf_counter()], time.process_time()
        rollouts = await collect(engine, chat, job, k)
        marks.append(time.perf_counter())
        batch = as_batch(rollouts, job, k)
        marks.append(time.perf_counter())
        trainer.step(batch)
        marks.append(time.perf_counter())
        trainer.policy.write_serving(weights, version=k)
        await engine.update_weights(weights, k)
        marks.append(time.perf_counter())
        parts = [b - a for a, b in itertools.pairwise(marks)]
        times = StepTimes(*parts, total=marks[-1] - marks[0], cpu=time.process_time() - cpu)
        sys.stdout.write(msgspec.json.encode(times).decode() + "\n")
        sys.stdout.flush()
    await engine.close()


async def collect(engine: TransformersEngine, chat: ChatFormat, job: RlJob, k: int) -> list[Collected]:
    """The rollouts of iteration k, all at once."""

    async def one(index: int, group: int, seed: int) -> Collected:
        started = time.perf_counter()
        prompt_ids = chat.prompt_ids(Conversation([Message(role="user", content=question(seed))]))
        params = SamplingParams(max_tokens=job.rollout.sampling.max_tokens)
        deltas = engine.generate(prompt_ids, params, request_id=f"{k}-{index}", timeout=600)
        whole = [delta async for delta in deltas][-1]
        record = CompletionRecord(
            prompt_ids=np.asarray(prompt_ids, np.int32),
            sampled_ids=np.asarray(whole.token_ids, np.int32),
            logprobs=np.asarray(whole.logprobs, np.float32),
            versions=np.asarray(whole.versions, np.int32),
            sampled=np.ones(len(whole.token_ids), np.bool_),
            finish_reason=whole.finish_reason or "abort",
        )
        return Collected(
            rollout_id=f"tax_{k}_{index}",
            group=group,
            seed=seed,
            reward=reward_of(chat.tokenizer.decode(whole.token_ids)),
            branches=branches_of([record]),
            seconds=time.perf_counter() - started,
            tries=1,
        )

    size = job.group_size
    return await asyncio.gather(
        *(one(g * size + i, g, seed) for g, seed in enumerate(job.seeds_of(k)) for i in range(size))
    )


def as_batch(rollouts: list[Collected], job: RlJob, k: int) -> RolloutBatch:
    """The batch of iteration k, as the collector builds it."""
    return build_batch(
        rollouts,
        job_id="tax",
        iteration=k,
        temperature=job.rollout.sampling.temperature,
        groups=job.batch_size,
        group_size=job.group_size,
        by_std=job.advantage_std,
        values=collection_values(rollouts, failed=0),
    )


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Start)))
