"""The state of a training run, which RL and SFT share: how it is saved, and how a run resumes from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.checkpoint import load_checkpoint
from synth.trainer.learner.checkpoint.fingerprint import check_same_loss, fingerprint
from synth.trainer.learner.checkpoint.host_copies import HostCopies, assign_to_ranks
from synth.trainer.learner.checkpoint.snapshot import (
    BEST,
    IMAGES,
    OPTIMIZER,
    PROBE,
    REFERENCE,
    RNG,
    CheckpointState,
    Snapshot,
    shard_name,
)
from synth.trainer.learner.data.packing import (
    Sequences,
    SequenceSource,
    sequences_from_tensors,
    sequences_to_tensors,
)
from synth.trainer.learner.model.mean_nll import mean_nll
from synth.trainer.learner.model.policy import Policy
from synth.trainer.learner.optim.adamw import Optimizer
from synth.trainer.machine import recipe, same_recipe

# A checkpoint keeps a part of the last batch: a resumed policy has to give it the same loss. Training waits for that
# loss, which is a forward of these tokens, compared with a forward and a backward of the whole batch: about 1 % of a
# step.
_PROBE_SEQUENCES = 8
_PROBE_SHARE = 1 / 32


@dataclass(frozen=True)
class Resumed:
    """The result of `TrainingState.resume`.

    loss_then, loss_now: the loss of the probe when it was saved, and now; None before anything was trained.
    same_fingerprint: whether this machine and its settings give the bytes that the saving machine gave. best_file: the
    best weights so far, in the checkpoint. reports: the metrics of the steps since the checkpoint before this one.
    """

    loss_then: float | None
    loss_now: float | None
    same_fingerprint: bool
    best_file: Path | None
    reports: dict[int, dict[str, float]]


@dataclass
class TrainingState:
    """The progress of a training run, beside the policy itself.

    step: steps done. reports: the metrics of each step that no checkpoint stores yet. probe: some sequences of the last
    batch, whose loss a resumed run must reproduce. probe_temperature: the temperature of that loss. best: the lowest
    validation loss and its step. canary: the canary's token ids. reference: by name, the values that a job compares its
    policy with: the source's log-probabilities of DPO's pairs, and the validation losses of each row.
    """

    policy: Policy
    step: int = 0
    reports: dict[int, dict[str, float]] = field(default_factory=dict)
    probe: Sequences | None = None
    probe_temperature: float = 1.0
    best: tuple[float, int] | None = None
    canary: list[int] | None = None
    reference: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        self._host_copies = HostCopies()
        self.optimizer = Optimizer(
            self.policy.trainable_parameters(), self.policy.job, process_group=self.policy.process_group
        )

    def set_probe(self, sequences: SequenceSource, indices: list[int], *, temperature: float = 1.0) -> None:
        """Keep the first few of these sequences; the next checkpoint stores them and their loss for `resume`.

        One at least, and no more than have a small share of all tokens.
        """
        if indices:
            lengths = sequences.lengths(indices)
            ends = itertools.accumulate(lengths[i] for i in indices[:_PROBE_SEQUENCES])
            within = sum(end <= _PROBE_SHARE * sum(lengths.values()) for end in ends)
            self.probe = sequences.select(indices[: max(1, within)])
            self.probe_temperature = temperature
            self._keep_images()

    @property
    def size(self) -> int:
        """Return the largest size of a checkpoint in bytes: float32 weights, and two moments of each trained one."""
        trained = sum(p.numel() for p in self.policy.trainable_parameters().values())
        return sum(self.policy.model_sizes().values()) + 8 * trained

    def snapshot(self, *, best_file: Path | None = None) -> Snapshot:
        """Take the content of the resume checkpoint of the last step. Every rank calls this.

        It is valid until the next one is taken. best_file: the best weights so far.
        """
        policy, group = self.policy, self.policy.process_group
        # An adapter is small, and its readers expect one file.
        ranks = group.size if policy.kind == "full" else 1
        model_ranks = assign_to_ranks(policy.model_sizes(), ranks)
        moment_ranks = assign_to_ranks(self.optimizer.sizes(), ranks)
        weights = [shard_name(policy.weights_file, rank, ranks) for rank in range(ranks)]
        optimizer = [shard_name(OPTIMIZER, rank, ranks) for rank in range(ranks)]
        masters = self._host_copies.copy(policy.gathered(), model_ranks, group.rank, dtype=torch.float32)
        moments = self._host_copies.copy(self.optimizer.gathered(), moment_ranks, group.rank)
        tensors: dict[str, Mapping[str, Tensor]] = {}
        if group.rank < ranks:
            tensors = {weights[group.rank]: policy.published(masters), optimizer[group.rank]: moments}
        state = CheckpointState(
            kind=policy.job.kind,
            step=self.step,
            config=recipe(policy.job, policy.machine),
            fingerprint=fingerprint(policy.job, policy.machine),
            reports=self.reports,
            probe_loss=self._probe_loss(),
            probe_temperature=self.probe_temperature,
            best=self.best,
            canary=self.canary,
        )
        self.reports = {}
        snapshot = Snapshot(state, group.rank, group.size, weights, optimizer, tensors, bodies={}, copies={})
        if group.is_main:
            self._add_small_files(snapshot, {n: weights[rank] for n, rank in model_ranks.items()}, best_file)
        return snapshot

    def _add_small_files(self, snapshot: Snapshot, file_of: dict[str, str], best_file: Path | None) -> None:
        """Add what rank 0 alone writes. file_of: the file of each tensor of the model."""
        name, config = self.policy.config_file()
        snapshot.bodies[name] = config
        if len(snapshot.weights) > 1:
            names = {published: file for n, file in file_of.items() for published in self.policy.published_names(n)}
            snapshot.bodies[f"{self.policy.weights_file}.index.json"] = msgspec.json.encode(
                {"metadata": {}, "weight_map": names}
            )
        snapshot.bodies[RNG] = msgspec.json.encode(rng.capture())
        # Read now: the files of images may be deleted before they are written.
        snapshot.bodies.update({f"{IMAGES}/{image.name}": image.read_bytes() for image in self._probe_images()})
        snapshot.tensors[PROBE] = {} if self.probe is None else sequences_to_tensors(self.probe)
        if self.reference:
            snapshot.tensors[REFERENCE] = dict(self.reference)
        snapshot.copies.update({source.name: source.open("rb") for source in self.policy.copied_files()})
        if best_file is not None:
            snapshot.copies[BEST] = best_file.open("rb")

    def resume(self, folder: Path) -> Resumed:
        """Load a checkpoint, and check that the policy is the one that was saved.

        Raises `TrainingFailed`: bad_checkpoint, or resume_mismatch when the policy does not reproduce the stored loss.
        """
        checkpoint = load_checkpoint(folder)
        state = checkpoint.state
        same = same_recipe(state.config, self.policy.job, self.policy.machine)
        if not same or set(checkpoint.weights) != self.policy.model_names():
            raise TrainingFailed(
                "bad_checkpoint",
                f"{folder.name} was saved by a run with another config or model; resume with the same, or start again",
            )
        self.policy.load_trainable_state_dict(checkpoint.weights)
        self.optimizer.load_tensors(checkpoint.optimizer)
        self.step, self.best = state.step, state.best
        self.probe_temperature, self.canary = state.probe_temperature, state.canary
        self.reference = checkpoint.reference
        if checkpoint.probe:
            self.probe = sequences_from_tensors(checkpoint.probe)
            self._take_images(checkpoint.images)
        now = self._probe_loss()
        here = fingerprint(self.policy.job, self.policy.machine)
        if now is not None and state.probe_loss is not None:
            check_same_loss(state.probe_loss, now, saved=state.fingerprint, here=here, step=state.step)
        rng.restore(checkpoint.rng)
        return Resumed(
            loss_then=state.probe_loss,
            loss_now=now,
            same_fingerprint=state.fingerprint == here,
            best_file=checkpoint.best_file,
            reports=state.reports,
        )

    def _probe_loss(self) -> float | None:
        return None if self.probe is None else mean_nll(self.policy, self.probe, temperature=self.probe_temperature)

    def _keep_images(self) -> None:
        if self.probe is not None and self.policy.images is not None:
            self.policy.images.keep(image for images in self.probe.images for image in images)

    def _probe_images(self) -> list[Path]:
        loader = self.policy.images
        if self.probe is None or loader is None:
            return []
        return list(dict.fromkeys(loader.kept(image) for images in self.probe.images for image in images))

    def _take_images(self, files: list[Path]) -> None:
        # The ranks share one folder.
        with self.policy.process_group.main_process_first():
            for file in files:
                assert self.policy.images is not None
                self.policy.images.add(file)
        self._keep_images()
