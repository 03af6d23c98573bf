"""One training run as state: what RL and SFT share, and how it is saved and taken up again."""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from synth.trainer.config import RlRecipe, recipe_as_json
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.checkpoint import rng
from synth.trainer.learner.checkpoint.checkpoint import (
    CheckpointState,
    check_same_loss,
    fingerprint,
    load_checkpoint,
    save_checkpoint,
)
from synth.trainer.learner.data.packing import Sequences, collate, plan
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.optim.adamw import Optimizer

# (stage, done, of): called at least once a micro-batch.
Progress = Callable[[str, int, int], None]

_OF_THE_MACHINE = frozenset(
    {"device", "dtype", "threads", "deterministic", "world_size", "sharding", "reference_device"}
)

# Sequences of the last batch that a checkpoint keeps, to prove itself with on resume.
_PROBE_ROWS = 8


@dataclass(frozen=True)
class StepResult:
    """One step of training. step counts from 1 and is the policy version after it."""

    step: int
    values: dict[str, float]


@dataclass(frozen=True)
class Resumed:
    """loss_then, loss_now: of the probe, when it was saved and now; None before anything was trained.

    same_fingerprint: False where the bytes of a straight run can no longer be expected.
    reports: of the steps that the checkpoint covers and the one before it does not.
    """

    loss_then: float | None
    loss_now: float | None
    same_fingerprint: bool
    best_file: Path | None
    reports: dict[int, dict[str, float]]


@dataclass
class Run:
    """Where a training run stands.

    step: steps done. reports: what each step since the last checkpoint reported, which the next one keeps.
    probe: a few sequences of the last batch, and the temperature at which they are scored.
    best: the best validation figure and its step. canary: the tokens of the job's canary.
    """

    policy: Policy
    step: int = 0
    reports: dict[int, dict[str, float]] = field(default_factory=dict)
    probe: Sequences | None = None
    temperature: float = 1.0
    best: tuple[float, int] | None = None
    canary: list[int] | None = None

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.policy.trainable(), self.policy.recipe, ranks=self.policy.ranks)

    def keep_probe(self, sequences: Sequences, rows: list[int], *, temperature: float = 1.0) -> None:
        """Remember the first few of these rows as what the next checkpoint proves itself with."""
        if rows:
            self.probe = sequences.select(rows[:_PROBE_ROWS])
            self.temperature = temperature

    def save(self, folder: Path, *, best_file: Path | None = None) -> None:
        """Write the resume checkpoint of the step that was just done. Every rank calls it; rank 0 writes."""
        recipe = self.policy.recipe
        optimizer = self.optimizer.state()
        state = CheckpointState(
            kind="rl" if isinstance(recipe, RlRecipe) else "sft",
            step=self.step,
            recipe=recipe_as_json(recipe),
            fingerprint=fingerprint(recipe),
            reports=self.reports,
            loss=self._probe_loss(),
            temperature=self.temperature,
            best=self.best,
            canary=self.canary,
        )
        if not self.policy.ranks.leads:
            self.policy.write_model(folder, exact=True)
            self.reports = {}
            return
        probe = (
            {}
            if self.probe is None
            else {
                "tokens": torch.from_numpy(self.probe.tokens),
                "weights": torch.from_numpy(self.probe.weights),
                "cu_seqlens": torch.from_numpy(self.probe.cu_seqlens.astype(np.int64)),
            }
        )
        save_checkpoint(
            folder,
            state,
            write_model=functools.partial(self.policy.write_model, exact=True),
            weights_file=self.policy.weights_file,
            optimizer=optimizer,
            probe=probe,
            best_file=best_file,
        )
        self.reports = {}

    def resume(self, folder: Path) -> Resumed:
        """Take a run up from a checkpoint, and prove that the policy is the one that was saved.

        Raises `TrainingFailed`: bad_checkpoint, or resume_mismatch when the stored loss does not come back.
        """
        found = load_checkpoint(folder)
        state = found.state
        if (
            _asked(state.recipe) != _asked(recipe_as_json(self.policy.recipe))
            or found.weights.keys() != self.policy.names()
        ):
            raise TrainingFailed(
                "bad_checkpoint",
                f"{folder.name} was saved by a run with another recipe or model; resume with the same, or start anew",
            )
        self.policy.load(found.weights)
        self.optimizer.load(found.optimizer)
        self.step, self.best = state.step, state.best
        self.temperature, self.canary = state.temperature, state.canary
        if found.probe:
            self.probe = Sequences(**{n: t.numpy() for n, t in found.probe.items()})
        now = self._probe_loss()
        here = fingerprint(self.policy.recipe)
        if now is not None and state.loss is not None:
            check_same_loss(state, now, here)
        rng.restore(found.rng)
        return Resumed(
            loss_then=state.loss,
            loss_now=now,
            same_fingerprint=state.fingerprint == here,
            best_file=found.best_file,
            reports=state.reports,
        )

    def _probe_loss(self) -> float | None:
        return None if self.probe is None else mean_nll(self.policy, self.probe, temperature=self.temperature)


def _asked(recipe: dict[str, Any]) -> dict[str, Any]:
    """What the job asks of a recipe; the rest is the machine's, which the fingerprint is for (decision 29)."""
    return {name: value for name, value in recipe.items() if name not in _OF_THE_MACHINE}


@torch.no_grad()
def mean_nll(
    policy: Policy,
    sequences: Sequences,
    *,
    temperature: float = 1.0,
    on_micro: Callable[[int, int], None] | None = None,
) -> float:
    """The weighted mean negative log-likelihood of the trained tokens, in nats; dropout off."""
    recipe, ranks = policy.recipe, policy.ranks
    groups = ranks.share(
        plan(
            sequences.lengths_of(list(range(len(sequences)))),
            budget=recipe.micro_batch_tokens,
            packing=recipe.packing,
            ranks=ranks.size,
        )
    )
    total = weight = 0.0
    policy.model.eval()
    try:
        for done, (rows, idle) in enumerate(groups, start=1):
            micro = collate(sequences, rows, packing=recipe.packing, device=policy.device, idle=idle)
            logp_N, _ = policy.logprobs(micro, temperature=temperature)
            if not micro.idle:
                weight_N = micro.gather(sequences.weights)
                total -= float((logp_N * weight_N).double().sum())
                weight += float(weight_N.double().sum())
            if on_micro is not None:
                on_micro(done, len(groups))
    finally:
        policy.model.train()
    sums = ranks.together({"total": total, "weight": weight})
    return sums["total"] / sums["weight"]


def peak_memory_bytes(device: torch.device) -> float:
    """Of the GPU's allocator, or this process's largest resident size."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
