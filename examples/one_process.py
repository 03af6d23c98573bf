"""Supervised fine-tuning, then GSPO, in one process: the platform's algorithms from top to bottom, in plain order.

    python -m examples.one_process

A tiny Qwen3 with random weights learns to add two numbers (`synth.demo.math`). Fine-tuning teaches it two ways to
answer: the exact sum, worked out, and a quick estimate. The reward pays for the exact sum alone, and reinforcement
learning makes the model choose it. It takes half a minute on one core.

Every function that computes is the one that the services call. These parts are left out; the platform has them in the
named folders:

1. One process takes turns at sampling and training. The platform overlaps them, so that a batch may be some versions
   behind the policy, and drops or corrects tokens that are too old (`rollouts/concurrency`,
   `losses/importance_correction`).
2. The environment is a function call. There it is an HTTP server that talks to the model through an OpenAI API, any
   number of turns, and whose calls are recorded token by token (`inference/recording`, `taskapp`).
3. Nothing fails, so nothing is tried again and no group is dropped for a missing rollout (`rollouts/collection`).
4. Nothing is stored: no events, no checkpoints, no resume (`learner/checkpoint`).
5. One rank, float32, every weight trained: no sharding, no LoRA (`learner/distributed`, `learner/model`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from synth.chat.messages import TrainingRow
from synth.demo.math.dataset import rows
from synth.demo.math.problems import HELD_OUT_FROM, is_exact, operands, question
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.rollouts.collection.batching import CreditRules, ScoredRollout, build_batch
from synth.trainer.learner import rng
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import CompletionRecord, build_branches

SFT_STEPS = 500
RL_ITERATIONS = 20
GROUPS = 16
GROUP_SIZE = 8
MAX_TOKENS = 32
HELD_OUT = range(HELD_OUT_FROM, HELD_OUT_FROM + 256)


@dataclass(frozen=True)
class Task:
    """The task of a rollout, by its seed. question: the user's message. reward: of the reply."""

    question: Callable[[int], str]
    reward: Callable[[int, str], float]


@dataclass(frozen=True)
class Rewards:
    """The mean reward on held-out problems, sampled at temperature 1."""

    base: float
    sft: float
    rl: float


def exact_sum(seed: int, reply: str) -> float:
    """1 for a reply whose last number is the sum, else 0."""
    return float(is_exact(reply, *operands(seed)))


MATH = Task(question=lambda seed: question(*operands(seed)), reward=exact_sum)


async def run(work: Path, *, log: Callable[[str], None] = print) -> Rewards:
    """Run fine-tuning, then GSPO, in an empty folder."""
    base = make_tiny_qwen3(work / "base", context=128).path
    sft = fine_tune(base, work / "sft", log=log)
    engine = await TransformersEngine.load(base, settings=EngineSettings(seed=0))
    before = await evaluate(engine, base)
    await engine.close()
    engine = await TransformersEngine.load(sft, settings=EngineSettings(seed=0))
    tuned = await evaluate(engine, sft)
    log(f"reward on held-out problems: {before:.3f} before, {tuned:.3f} after fine-tuning")
    await reinforce(engine, sft, work / "policy.safetensors", log=log)
    rewards = Rewards(base=before, sft=tuned, rl=await evaluate(engine, sft))
    await engine.close()
    log(f"reward on held-out problems: {rewards.rl:.3f} after reinforcement learning")
    return rewards


def fine_tune(model_dir: Path, out: Path, *, log: Callable[[str], None]) -> Path:
    """Next-token prediction on the assistant's words, a cosine schedule, one pass and a bit over the rows."""
    job = SftJob(
        model="tiny",
        base_model="tiny",
        training_file="rows",
        lr=5e-3,
        schedule="cosine",
        min_lr_ratio=0.02,
        warmup_steps=20,
        batch_size=32,
        sequence_length=128,
        steps=SFT_STEPS,
        packing="padded",
    )
    rng.seed_everything(job.seed, deterministic=True)
    dataset = msgspec.convert(list(rows(12_000, seed=0)), list[TrainingRow])
    data = encode_rows(dataset, load_tokenizer(model_dir), sequence_length=job.sequence_length)
    policy = load_policy(model_dir, job)
    trainer = SftTrainer(policy, job, data)
    for _ in range(trainer.total):
        result = trainer.step()
        if result.step % 100 == 0:
            log(f"sft {result.step:4d}  loss {result.values['loss']:.3f}")
    policy.write_model(out)
    return out


async def reinforce(engine: TransformersEngine, model_dir: Path, weights: Path, *, log: Callable[[str], None]) -> None:
    """GSPO: sample groups, compare rewards within each, step, put the new weights into the engine; again."""
    job = RlJob(
        model="tiny",
        base_model="tiny",
        lr=2e-4,
        warmup_steps=0,
        iterations=RL_ITERATIONS,
        minibatches=2,
        packing="padded",
    )
    rng.seed_everything(job.seed, deterministic=True)
    tokenizer = load_tokenizer(model_dir)
    trainer = RlTrainer(load_policy(model_dir, job, dropout=False), job)
    for iteration in range(1, RL_ITERATIONS + 1):
        # The same question GROUP_SIZE times is a group: its mean reward is the baseline of each of its answers.
        seeds = range(iteration * GROUPS, (iteration + 1) * GROUPS)
        rollouts = await sample(engine, tokenizer, MATH, seeds, group_size=GROUP_SIZE, max_tokens=MAX_TOKENS)
        batch = build_batch(
            rollouts,
            job_id="example",
            iteration=iteration,
            temperature=1.0,
            groups=GROUPS,
            group_size=GROUP_SIZE,
            credit=CreditRules(),
            values={},
        )
        values = trainer.step(batch).values
        trainer.policy.write_serving_weights(weights, version=iteration)
        await engine.update_weights(weights, iteration)
        log(f"rl {iteration:3d}  reward {values['reward_mean']:.3f}  kl {values.get('ppo_kl', 0.0):.1e}")


async def evaluate(engine: TransformersEngine, model_dir: Path) -> float:
    """Return the mean reward on problems that no training has seen, one sample each."""
    tokenizer = load_tokenizer(model_dir)
    rollouts = await sample(engine, tokenizer, MATH, HELD_OUT, group_size=1, max_tokens=MAX_TOKENS)
    return float(np.mean([rollout.reward for rollout in rollouts]))


async def sample(
    engine: TransformersEngine, tokenizer: Any, task: Task, seeds: Iterable[int], *, group_size: int, max_tokens: int
) -> list[ScoredRollout]:
    """`group_size` rollouts of each seed, all at once: the engine batches them."""

    def prompt(seed: int) -> list[int]:
        messages = [{"role": "user", "content": task.question(seed)}]
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)

    async def rollout(index: int, group: int, seed: int, prompt_ids: list[int]) -> ScoredRollout:
        started = time.perf_counter()
        params = SamplingParams(max_tokens=max_tokens)
        within = SamplingTime(600)
        (reply,) = [d async for d in engine.generate(prompt_ids, params, request_id=f"{index}", time=within)]
        # Training needs of a call: the ids, and the log-probability of each under the policy that sampled it.
        record = CompletionRecord(
            prompt_ids=np.asarray(prompt_ids, np.int32),
            sampled_ids=np.asarray(reply.token_ids, np.int32),
            logprobs=np.asarray(reply.logprobs, np.float32),
            versions=np.asarray(reply.versions, np.int32),
            sampled=np.ones(len(reply.token_ids), np.bool_),
            finish_reason=reply.finish_reason or "abort",
        )
        text = tokenizer.decode(reply.token_ids, skip_special_tokens=True)
        reward = task.reward(seed, text)
        return ScoredRollout(
            rollout_id=f"rollout_{index}",
            group=group,
            seed=seed,
            reward=reward,
            turn_rewards=[reward],
            branches=build_branches([record]),
            seconds=time.perf_counter() - started,
            tries=1,
        )

    members = [group for group in enumerate(seeds) for _ in range(group_size)]
    prompts = {seed: prompt(seed) for _, seed in members}
    return await asyncio.gather(*(rollout(i, group, seed, prompts[seed]) for i, (group, seed) in enumerate(members)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="synth-one-process-") as scratch:
        asyncio.run(run(Path(scratch)))
