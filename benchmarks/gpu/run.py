"""What the algorithms cost on this device, without a service: training and sampling throughput of a random Qwen3.

    PYTHONPATH=shared:services python benchmarks/gpu/run.py

It needs torch, transformers, peft, msgspec and blake3. On a GPU the model has the shape of Qwen3-0.6B and computes in
bfloat16; on a CPU it is tiny, and only shows that the benchmark runs. Weights and batches are random: nothing is
downloaded, and throughput does not depend on either.

A row is the median of several steps after two that are not counted. Tokens of training are those of the whole
sequences, prompt included; tokens of sampling are the sampled ones. MFU counts the FLOPs that the model needs, not
those that are spent: 6 a parameter and token for full training, 4 for LoRA (a frozen weight has no gradient of its
own), 2 for sampling, and those of attention; computing activations or log π_old again, and prompts, are overhead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from synth.cli.make_model import make_tiny_qwen3
from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.trainer.packing import Sequences
from synth.trainer.policy import load_policy
from synth.trainer.recipe import Lora, RlRecipe, SftRecipe
from synth.trainer.rl import RlTrainer
from synth.trainer.run import peak_memory_bytes
from synth.trainer.sft import SftTrainer
from synth.trainer.sft_data import SftData
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta

Device = Literal["cpu", "cuda"]

#: Dense bfloat16 FLOP/s, from the vendor's data sheets, by a part of the device's name.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
_WARM_UP = 2
_NOTHING_CUT = {"truncated_rows": 0.0, "truncated_tokens": 0.0, "untrained_rows": 0.0}


@dataclass(frozen=True)
class Cost:
    """How many times a forward's FLOPs something takes, for the weights' matmuls and for attention's."""

    weights: int
    attention: int


FULL = Cost(weights=3, attention=3)
LORA = Cost(weights=2, attention=3)
FORWARD = Cost(weights=1, attention=1)


@dataclass(frozen=True)
class Shape:
    """A Qwen3, and how much is put through it. length: tokens a sequence, of which the first half is prompt."""

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    length: int
    sequences: int
    micro_batch_tokens: int
    rows: int

    def config(self) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate,
            max_position_embeddings=4 * self.length,
            tie_word_embeddings=True,
        )

    def flops(self, parameters: int, cost: Cost, *, context: float) -> float:
        """FLOPs of one token. context: the tokens that it attends to, on average."""
        attention = 4 * context * self.heads * self.head_dim * self.layers
        return cost.weights * 2 * parameters + cost.attention * attention


QWEN3_06B = Shape("Qwen3-0.6B", 151_936, 1024, 28, 16, 8, 128, 3072, 2048, 32, 32_768, 256)
TINY = Shape("tiny", 320, 64, 2, 4, 2, 16, 192, 64, 8, 256, 4)


@dataclass(frozen=True)
class Row:
    """One line of the table. mfu: None where the device's peak is not known."""

    what: str
    tokens_per_second: float
    seconds: float
    mfu: float | None
    peak_gib: float


@dataclass(frozen=True)
class Bench:
    """A model folder on a device. steps: how many are measured."""

    shape: Shape
    folder: Path
    device: Device
    steps: int
    parameters: int

    @classmethod
    def make(cls, folder: Path, shape: Shape, *, device: Device, steps: int) -> Bench:
        """Write a random model of this shape, with a tokenizer that loads."""
        made = make_tiny_qwen3(folder / "model")
        torch.manual_seed(0)
        with torch.device(device):
            model: Any = Qwen3ForCausalLM(shape.config())
        model.to(torch.bfloat16 if device == "cuda" else torch.float32).save_pretrained(made.path)
        return cls(shape, made.path, device, steps, sum(p.numel() for p in model.parameters()))

    @property
    def recipe(self) -> dict[str, object]:
        return {
            "lr": 1e-6,
            "dtype": "bf16" if self.device == "cuda" else "fp32",
            "device": self.device,
            "deterministic": False,
            "packing": "packed",
            "micro_batch_tokens": self.shape.micro_batch_tokens,
            "activation_checkpointing": self.device == "cuda",
        }

    def sft_full(self) -> Row:
        """Full fine-tuning on packed sequences, a loss on the second half of each."""
        shape = self.shape
        recipe = SftRecipe(batch_size=shape.sequences, sequence_length=shape.length, steps=99, **self.recipe)  # type: ignore[arg-type]
        tokens, mask = self._random_tokens(0)
        sequences = Sequences(tokens, mask.astype(np.float32), np.arange(shape.sequences + 1) * shape.length)
        trainer = SftTrainer(load_policy(self.folder, recipe), recipe, SftData(sequences, _NOTHING_CUT))
        return self._measure("SFT, full", trainer.step, FULL)

    def rl_lora(self) -> Row:
        """A GSPO iteration of four minibatches through a LoRA of rank 16."""
        recipe = RlRecipe(
            mode="lora",
            lora=Lora(r=16, alpha=32),
            steps=99,
            # Random log-probabilities of the sampling policy would be rejected as drift.
            gate_fresh=(0.0, 1e30),
            gate_stale=(0.0, 1e30),
            **self.recipe,  # type: ignore[arg-type]
        )
        trainer = RlTrainer(load_policy(self.folder, recipe, dropout=False), recipe)
        return self._measure("RL (GSPO), LoRA r16", lambda: trainer.step(self._batch(trainer.run.step + 1)), LORA)

    async def sampling(self) -> Row:
        """Continuous batching of `rows` requests, each with its own prompt of half a sequence."""
        shape, half = self.shape, self.shape.length // 2
        settings = EngineSettings(device=self.device, max_rows=shape.rows, seed=0)
        self._forget()
        engine = await TransformersEngine.load(self.folder, settings=settings)
        chance = np.random.default_rng(0)

        async def one(index: int, most: int) -> int:
            prompt = chance.integers(5, 300, half).tolist()
            params = SamplingParams(max_tokens=most)
            done = [d async for d in engine.generate(prompt, params, request_id=str(index), timeout=600)]
            return len(done[-1].token_ids)

        try:
            await asyncio.gather(*(one(i, 4) for i in range(shape.rows)))
            started = time.perf_counter()
            sampled = sum(await asyncio.gather(*(one(i, half) for i in range(shape.rows))))
            seconds = time.perf_counter() - started
        finally:
            await engine.close()
        return self._row("sampling, prompts included", sampled, seconds, FORWARD, context=1.5 * half)

    def _random_tokens(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 [T] of all sequences, and the mask bool [T] of what is trained: the second half of each."""
        shape = self.shape
        tokens = np.random.default_rng(seed).integers(5, 300, shape.sequences * shape.length).astype(np.int32)
        return tokens, np.tile(np.arange(shape.length) >= shape.length // 2, shape.sequences)

    def _batch(self, iteration: int) -> RolloutBatch:
        shape = self.shape
        tokens, mask = self._random_tokens(iteration)
        chance = np.random.default_rng(iteration)
        branches = [
            Branch(
                tokens=tokens[at : at + shape.length],
                loss_mask=mask[: shape.length],
                logprobs=np.where(mask[: shape.length], -10.0, 0.0).astype(np.float32),
                versions=np.where(mask[: shape.length], iteration - 1, -1).astype(np.int32),
            )
            for at in range(0, len(tokens), shape.length)
        ]
        rollouts = [RolloutMeta(rollout_id=f"r{i}", seed=i, group=i // 8, reward=0.0) for i in range(shape.sequences)]
        meta = BatchMeta(
            job_id="job_bench",
            iteration=iteration,
            temperature=1.0,
            rollouts=rollouts,
            groups_kept=shape.sequences // 8,
            groups_dropped=0,
        )
        advantages = [float(a) for a in chance.choice([-1.0, 1.0], shape.sequences)]
        return RolloutBatch.build(branches, advantages, list(range(shape.sequences)), meta)

    def _measure(self, what: str, step: Callable[[], object], cost: Cost) -> Row:
        for _ in range(_WARM_UP):
            step()
        self._forget()
        # A step ends with the gradient's norm on the CPU: it has waited for the device.
        seconds = statistics.median(_timed(step) for _ in range(self.steps))
        tokens = self.shape.sequences * self.shape.length
        return self._row(what, tokens, seconds, cost, context=self.shape.length / 2)

    def _row(self, what: str, tokens: int, seconds: float, cost: Cost, *, context: float) -> Row:
        rate = tokens / seconds
        peak = _peak_flops(self.device)
        return Row(
            what=what,
            tokens_per_second=rate,
            seconds=seconds,
            mfu=None if peak is None else rate * self.shape.flops(self.parameters, cost, context=context) / peak,
            peak_gib=peak_memory_bytes(torch.device(self.device)) / 2**30,
        )

    def _forget(self) -> None:
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


def measure(shape: Shape, *, device: Device, steps: int) -> list[Row]:
    """Every row of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench.make(Path(scratch), shape, device=device, steps=steps)
        return [bench.sft_full(), bench.rl_lora(), asyncio.run(bench.sampling())]


def main() -> int:
    """`python benchmarks/gpu/run.py`."""
    parser = argparse.ArgumentParser(description="Training and sampling throughput on this device.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=5, help="measured steps a row")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    shape = QWEN3_06B if options.device == "cuda" else TINY
    rows = measure(shape, device=options.device, steps=options.steps)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{shape.name} on {name}, torch {torch.__version__}: {shape.sequences} x {shape.length} tokens a step\n")
    print("| | tokens/s | seconds | MFU | peak memory |\n|---|---|---|---|---|")
    for row in rows:
        mfu = "-" if row.mfu is None else f"{row.mfu:.1%}"
        print(f"| {row.what} | {row.tokens_per_second:,.0f} | {row.seconds:.3f} | {mfu} | {row.peak_gib:.2f} GiB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
