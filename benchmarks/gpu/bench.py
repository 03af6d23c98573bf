"""One row of the table: a random model of a shape, trained or sampled from for a few steps."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from benchmarks.gpu.shapes import FORWARD, FULL, LORA, Cost, Load, Shape
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.methods.base import LoraSettings
from synth.methods.rl import CorrectionSettings, RlJob
from synth.methods.sft import SftJob
from synth.trainer.learner.data.packing import Sequences
from synth.trainer.learner.data.sft_dataset import SftDataset
from synth.trainer.learner.memory import peak_memory_bytes
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import Policy, load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.machine import Machine
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta

Device = Literal["cpu", "cuda"]

#: Dense bfloat16 FLOP/s, from the vendor's data sheets, by a part of the device's name.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
_WARM_UP = 2
_NOTHING_CUT = {"truncated_rows": 0.0, "truncated_tokens": 0.0, "untrained_rows": 0.0}


@dataclass(frozen=True)
class Measured:
    """The figures of the median step. mfu: None if the device's peak is unknown. attention: its implementation."""

    tokens_per_second: float
    seconds: float
    mfu: float | None
    peak_gib: float
    attention: str


@dataclass(frozen=True)
class Bench:
    """A model folder on a device. steps: how many are measured. options: of the config, for this row alone."""

    shape: Shape
    load: Load
    folder: Path
    device: Device
    steps: int
    options: dict[str, Any]

    @classmethod
    def make(
        cls, folder: Path, shape: Shape, load: Load, *, device: Device, steps: int, options: dict[str, Any]
    ) -> Bench:
        """Write a random model of this shape, with a tokenizer that loads."""
        made = make_tiny_qwen3(folder / "model")
        torch.manual_seed(0)
        with torch.device(device):
            model: Any = Qwen3ForCausalLM(shape.config(context=4 * load.length))
        model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(made.path)
        return cls(shape, load, made.path, device, steps, options)

    @property
    def _machine(self) -> Machine:
        on_gpu = self.device == "cuda"
        return Machine(device="cuda" if on_gpu else "cpu", dtype="bf16" if on_gpu else "fp32", deterministic=False)

    @property
    def _job_options(self) -> dict[str, Any]:
        return {
            "model": "model",
            "base_model": "model",
            "lr": 1e-6,
            "packing": "packed",
            "micro_batch_tokens": self.load.micro_batch_tokens,
        } | {name: value for name, value in self.options.items() if name != "compiled"}

    def sft_full(self) -> Measured:
        """Full fine-tuning on packed sequences, a loss on the second half of each."""
        load = self.load
        job = SftJob(
            training_file="rows",
            batch_size=load.sequences,
            sequence_length=load.length,
            steps=99,
            schedule="constant",
            **self._job_options,
        )
        tokens, mask = self._random_tokens(0)
        sequences = Sequences(tokens, mask.astype(np.float32), np.arange(load.sequences + 1) * load.length)
        policy = self._compiled(load_policy(self.folder, job, self._machine))
        return self._train(SftTrainer(policy, job, SftDataset(sequences, _NOTHING_CUT)).step, policy, FULL)

    def rl_lora(self) -> Measured:
        """Measure a GSPO iteration through a LoRA of rank 16."""
        job = RlJob(
            mode="lora",
            lora=LoraSettings(r=16, alpha=32),
            iterations=99,
            # Random log-probabilities of the sampling policy would be rejected as drift.
            correction=CorrectionSettings(on_policy=(0.0, 1e30), off_policy=(0.0, 1e30)),
            **self._job_options,
        )
        policy = self._compiled(load_policy(self.folder, job, self._machine, dropout=False))
        trainer = RlTrainer(policy, job)
        return self._train(lambda: trainer.step(self._batch(trainer.state.step + 1)), policy, LORA)

    def sampling(self) -> Measured:
        """Continuous batching of `sequences` requests, each with its own prompt of half a sequence."""
        return asyncio.run(self._sampling())

    async def _sampling(self) -> Measured:
        rows, half = self.load.sequences, self.load.length // 2
        self._reset_peak_memory()
        settings = EngineSettings(device=self.device, max_num_seqs=rows, seed=0)
        engine = await TransformersEngine.load(self.folder, settings=settings)
        rng = np.random.default_rng(0)

        async def one(index: int, most: int) -> int:
            prompt = rng.integers(5, 300, half).tolist()
            params = SamplingParams(max_tokens=most)
            done = [d async for d in engine.generate(prompt, params, request_id=str(index), time=SamplingTime(600))]
            return len(done[-1].token_ids)

        try:
            await asyncio.gather(*(one(i, 4) for i in range(rows)))
            started = time.perf_counter()
            sampled = sum(await asyncio.gather(*(one(i, half) for i in range(rows))))
            seconds = time.perf_counter() - started
        finally:
            await engine.close()
        return self._measured(sampled, seconds, FORWARD, context=1.5 * half, attention="of the engine")

    def _compiled(self, policy: Policy) -> Policy:
        if self.options.get("compiled"):
            # A run on a CPU only tests the tracing, and saves the minutes of a C++ compiler.
            backend = "inductor" if self.device == "cuda" else "aot_eager"
            for block in policy.model.model.layers:
                block.compile(dynamic=False, backend=backend)
        return policy

    def _random_tokens(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens int32 [T] of all sequences, and the mask bool [T] of trained ones: the second half of each."""
        load = self.load
        tokens = np.random.default_rng(seed).integers(5, 300, load.tokens).astype(np.int32)
        return tokens, np.tile(np.arange(load.length) >= load.length // 2, load.sequences)

    def _batch(self, iteration: int) -> RolloutBatch:
        length, count = self.load.length, self.load.sequences
        tokens, mask = self._random_tokens(iteration)
        branches = [
            Branch(
                tokens=tokens[at : at + length],
                loss_mask=mask[:length],
                logprobs=np.where(mask[:length], -10.0, 0.0).astype(np.float32),
                versions=np.where(mask[:length], iteration - 1, -1).astype(np.int32),
                calls=np.where(mask[:length], 0, -1).astype(np.int32),
            )
            for at in range(0, len(tokens), length)
        ]
        meta = BatchMeta(
            job_id="job_bench",
            iteration=iteration,
            temperature=1.0,
            rollouts=[RolloutMeta(rollout_id=f"r{i}", seed=i, group=i // 4, reward=0.0) for i in range(count)],
            groups_kept=count // 4,
            groups_dropped=0,
        )
        advantages = [1.0 if i % 2 else -1.0 for i in range(count)]
        return RolloutBatch.build(branches, advantages, list(range(count)), meta)

    def _train(self, step: Callable[[], object], policy: Policy, cost: Cost) -> Measured:
        for _ in range(_WARM_UP):
            step()
        self._reset_peak_memory()
        # A step ends with the gradient's norm on the CPU: it has waited for the device.
        seconds = statistics.median(_timed(step) for _ in range(self.steps))
        attention = policy.model.config._attn_implementation
        return self._measured(self.load.tokens, seconds, cost, context=self.load.length / 2, attention=attention)

    def _measured(self, tokens: int, seconds: float, cost: Cost, *, context: float, attention: str) -> Measured:
        rate, peak = tokens / seconds, _peak_flops(self.device)
        return Measured(
            tokens_per_second=rate,
            seconds=seconds,
            mfu=None if peak is None else rate * self.shape.flops(cost, context=context) / peak,
            peak_gib=peak_memory_bytes(torch.device(self.device)) / 2**30,
            attention=attention,
        )

    def _reset_peak_memory(self) -> None:
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _timed(step: Callable[[], object]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def _peak_flops(device: Device) -> float | None:
    if device == "cpu":
        return None
    name = torch.cuda.get_device_name()
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
