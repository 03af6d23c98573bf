"""The cost of saving for a step: weights first and the checkpoint beside training, or all of it between two steps.

`python -m benchmarks.saving [--hidden 1024] [--layers 8] [--tokens 4096] [--steps 4]`: one process trains a model of
random weights on random batches, in both orders, and stores its files in a blob store on this disk. Exit code 1:
saving beside training blocks more than 5 % of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from synth.blobs import BlobStore
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.methods.rl import CorrectionSettings, RlJob
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.background_writer import BackgroundWriter
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import BatchMeta, Branch, RolloutBatch, RolloutMeta
from synth.weights.tensor_file import FileDigest

console = Console(width=110)
#: The share of a step that saving may block.
_MOST = 0.05
_LENGTH = 256


@dataclass(frozen=True)
class Saved:
    """Seconds of one step. train: forward, backward, optimizer. published: from then until its weights are stored.

    blocked: until the next step can begin, `published` not included.
    """

    train: float
    published: float
    blocked: float

    @property
    def share(self) -> float:
        """The share of the step that saving blocked."""
        return self.blocked / (self.train + self.published + self.blocked)


class Run:
    """A policy that trains in a folder of its own."""

    def __init__(self, model: Path, folder: Path, *, tokens: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._tokens = tokens
        self._blobs = BlobStore.open(f"file:{folder / 'blobs'}")
        job = RlJob(
            model="model",
            base_model="model",
            lr=1e-6,
            iterations=100,
            minibatches=1,
            micro_batch_tokens=2 * _LENGTH,
            correction=CorrectionSettings(gates=False),
            checkpoint_every=1,
            seed=0,
        )
        rng.seed_everything(0, deterministic=True)
        self._trainer = RlTrainer(load_policy(model, job, dropout=False), job)
        self.state_bytes = self._trainer.state.size
        self.write_s: list[float] = []
        self._writer = BackgroundWriter(saved=self._store, failed=_fail, progress=lambda stage, done, of: None)
        self._begun = 0.0

    def save_between(self, k: int) -> Saved:
        """Checkpoint, weights and both their digests before anything is published, and once more as they are stored."""
        train_s, policy = self._train(k), self._folder / f"policy-{k}"
        started = time.perf_counter()
        self._trainer.policy.write_serving_weights(policy, version=k)
        folder = self._folder / f"checkpoint-{k}"
        write_checkpoint(folder, self._trainer.state.snapshot())
        asyncio.run(self._blobs.put_file(f"policy-{k}", policy, move=True))
        published = time.perf_counter()
        asyncio.run(self._blobs.put_tree(f"checkpoint-{k}", folder, move=True))
        return Saved(train_s, published - started, time.perf_counter() - published)

    def save_beside(self, k: int) -> Saved:
        """Weights first, and the checkpoint while the next step is trained, as the trainer does it."""
        train_s, policy = self._train(k), self._folder / f"policy-{k}"
        started = time.perf_counter()
        written = self._trainer.policy.write_serving_weights(policy, version=k)
        assert written is not None
        asyncio.run(self._blobs.put_file(f"policy-{k}", policy, move=True, sha256=written.file.sha256))
        published = time.perf_counter()
        self._writer.save(self._folder / f"checkpoint-{k}", self._trainer.state.snapshot)
        self._begun = time.perf_counter()
        return Saved(train_s, published - started, self._begun - published)

    def close(self) -> None:
        self._writer.wait()

    def _train(self, k: int) -> float:
        batch = _batch(k, self._tokens)
        started = time.perf_counter()
        self._trainer.step(batch)
        return time.perf_counter() - started

    def _store(self, step: int, folder: Path, files: dict[str, FileDigest]) -> None:
        known = {name: file.sha256 for name, file in files.items()}
        asyncio.run(self._blobs.put_tree(f"checkpoint-{step}", folder, move=True, sha256=known))
        self.write_s.append(time.perf_counter() - self._begun)


def _fail(error: Exception) -> None:
    console.print_exception()
    raise error


def _batch(k: int, tokens: int) -> RolloutBatch:
    """Return sequences of random tokens, half of each sampled."""
    generator, count = np.random.default_rng(k), tokens // _LENGTH
    mask = np.arange(_LENGTH) >= _LENGTH // 2
    branches = [
        Branch(
            tokens=generator.integers(5, 300, _LENGTH).astype(np.int32),
            loss_mask=mask,
            logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
            versions=np.where(mask, k - 1, -1).astype(np.int32),
            calls=np.where(mask, 0, -1).astype(np.int32),
        )
        for _ in range(count)
    ]
    meta = BatchMeta(
        job_id="saving",
        iteration=k,
        temperature=1.0,
        rollouts=[RolloutMeta(rollout_id=f"{k}-{n}", seed=n, group=0, reward=float(n % 2)) for n in range(count)],
        groups_kept=1,
        groups_dropped=0,
    )
    return RolloutBatch.build(branches, [n % 2 - 0.5 for n in range(count)], list(range(count)), meta)


def _measure(save: Callable[[int], Saved], steps: int) -> Saved:
    """Return the median of every figure over the steps after the first, which allocates."""
    saved = [save(k) for k in range(1, steps + 2)][1:]
    return Saved(*(median(getattr(one, name) for one in saved) for name in ("train", "published", "blocked")))


def main() -> int:
    """Measure both orders on one model, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        heads = arguments.hidden // 64
        make_tiny_qwen3(
            work / "model",
            hidden=arguments.hidden,
            layers=arguments.layers,
            heads=heads,
            kv_heads=heads // 2,
            context=512,
        )
        between = Run(work / "model", work / "between", tokens=arguments.tokens)
        before = _measure(between.save_between, arguments.steps)
        del between
        beside = Run(work / "model", work / "beside", tokens=arguments.tokens)
        after = _measure(beside.save_beside, arguments.steps)
        beside.close()
    table = Table(title=f"{beside.state_bytes / 1e9:.2f} GB of state, {arguments.tokens} tokens a step")
    for column in ("", "in between", "beside training", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for title, name in (
        ("a step's training, s", "train"),
        ("last gradient to stored weights, s", "published"),
        ("then blocked, s", "blocked"),
    ):
        old, new = getattr(before, name), getattr(after, name)
        table.add_row(title, f"{old:.2f}", f"{new:.2f}", f"{new / old:.2f}")
    table.add_row("share of a step that is blocked", f"{before.share:.1%}", f"{after.share:.1%}", "")
    table.add_row("a checkpoint is durable after, s", "", f"{median(beside.write_s):.2f}", "")
    console.print(table)
    return 0 if after.share <= _MOST else 1


if __name__ == "__main__":
    sys.exit(main())
