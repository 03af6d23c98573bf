"""Training runs, and two real processes that train them together over gloo."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any

import torch

from synth.methods.base import LoraSettings, TrainingJob
from synth.methods.dpo import DpoSettings
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.trainer.learner import rng
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.pair_dataset import encode_pairs
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup, bind_store, init_process_group
from synth.trainer.learner.methods.dpo import DpoTrainer
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.machine import Machine
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, dpo_job, rl_job, sft_job
from tests.unit.trainer.pair_rows import pair_rows, preference_pairs
from tests.unit.trainer.sft_rows import addition_rows, training_rows
from tests.unit.trainer.vision import square_rows, vision_batch

STEPS, MIDDLE, WORLD_SIZE = 4, 2, 2
_DEADLINE_S = 280

_SFT = {"steps": STEPS, "micro_batch_tokens": 256, "validation_every": MIDDLE}
_SFT_ROWS = _SFT | {"batch_size": 4, "micro_batch_tokens": 64}
_RL = {"minibatches": 2, **OPEN_GATES}
# Gates that reject about half of the random sequences, on either rank.
_HALF_OPEN: dict[str, Any] = {"on_policy": (0.0, 1.0), "off_policy": (0.0, 1.0)}
JOBS: dict[str, TrainingJob] = {
    "sft full": sft_job(**_SFT, sharding="parameters"),
    "sft lora": sft_job(**_SFT, mode="lora", sharding="replicated"),
    # Sides of a pair are trained together; what the reference says of them is computed by both ranks.
    "dpo full": dpo_job(**_SFT, sharding="parameters", dpo=DpoSettings()),
    "dpo lora": dpo_job(**_SFT, mode="lora", sharding="replicated", dpo=DpoSettings(label_smoothing=0.1)),
    # The reference is a frozen copy, sharded over the ranks as the policy is.
    "rl full": rl_job(**_RL, sharding="gradients", activation_checkpointing=True, reference="shared", kl_beta=0.1),
    # The reference is the policy with its adapter off; what FSDP gathers then must have gradients afterwards.
    "rl lora": rl_job(**_RL, mode="lora", sharding="parameters", loss="grpo", reference="shared", kl_beta=0.1),
    # Three sequences a rollout, which weigh as one wherever the micro-batches and the ranks part them.
    "rl branches": rl_job(
        minibatches=2, sharding="gradients", micro_batch_tokens=64, rejected="leave", gate_tokens=0, **_HALF_OPEN
    ),
    "rl prompts": rl_job(**_RL, sharding="replicated", micro_batch_tokens=64, loss="grpo", loss_reduction="prompt"),
    # Dropout masks depend on the number of ranks: one rank trains other weights.
    "sft dropout": sft_job(**_SFT, mode="lora", lora=LoraSettings(dropout=0.1)),
    "sft offload": sft_job(**_SFT, sharding="gradients", optimizer_offload=True),
    # A number that falls on the other side of a boundary has another code: close, and not within the others' tolerance.
    "sft 8 bits": sft_job(**_SFT, sharding="parameters", optimizer="adamw_8bit", optimizer_offload=True),
    # Of a model that sees: a rank may have a micro-batch without an image, and both may.
    "vision full": rl_job(**_RL, sharding="parameters", reference="shared", kl_beta=0.1),
    "vision gradients": rl_job(**_RL, sharding="gradients", freeze_vision_tower=False, activation_checkpointing=True),
    "vision lora": rl_job(**_RL, mode="lora", sharding="replicated"),
    # A step has four rows, of which one in three has an image.
    "vision sft full": sft_job(**_SFT_ROWS, sharding="parameters", freeze_vision_tower=False),
    "vision sft lora": sft_job(**_SFT_ROWS, mode="lora", sharding="replicated"),
}
#: Of a batch of `vision_batch`, the sequences that have something to learn: all, those of text, an image and a text.
_TRAINED = {2: [2, 5, 8], 3: [0, 2], 4: [1]}


@dataclass(frozen=True)
class TrainedRun:
    """The metrics of a run by step, and the losses of the probe if it was resumed."""

    values: dict[int, dict[str, float]]
    loss_then: float | None
    loss_now: float | None


@dataclass(frozen=True)
class Models:
    """The models that are trained: one of text, and one that sees the images of a folder."""

    text: Path
    vision: Path
    images: Path


def train(
    name: str,
    models: Models,
    folder: Path,
    *,
    process_group: ProcessGroup = SINGLE_PROCESS,
    resume: Path | None = None,
) -> TrainedRun:
    """Train one of `JOBS` to its end. `folder` gets the checkpoint of the middle, the model and the serving file."""
    job, machine = JOBS[name], Machine(world_size=process_group.size)
    rng.seed_everything(job.seed, deterministic=True)
    loader = ImageLoader.load(models.vision, models.images) if name.startswith("vision") else None
    model_dir = models.text if loader is None else models.vision
    policy = load_policy(model_dir, job, machine, images=loader, dropout=not job.without_dropout)
    if isinstance(job, RlJob):
        reference = load_reference(policy, job, process_group=process_group)
        policy.shard(process_group)
        trainer: Any = RlTrainer(policy, job, reference=reference)
    else:
        policy.shard(process_group)
        tokenizer = load_tokenizer(model_dir)
        images = None if loader is None else SftImages(loader, 1)
        data, validation = (
            encode_rows(training_rows(_rows(n, loader)), tokenizer, sequence_length=128, images=images)
            if isinstance(job, SftJob)
            else encode_pairs(pair_rows(preference_pairs(n)), tokenizer, sequence_length=128)
            for n in (100, 10)
        )
        make: Any = SftTrainer if isinstance(job, SftJob) else DpoTrainer
        trainer = make(policy, job, data, validation=validation)
    resumed = trainer.state.resume(resume) if resume else None
    values: dict[int, dict[str, float]] = {}
    for step in range(trainer.state.step + 1, STEPS + 1):
        # Step 3 has one sequence, so that one rank runs a dummy; step 4 has nothing to learn from.
        if loader is not None:
            batch = vision_batch(loader, step, only=_TRAINED.get(step))
        else:
            branches = 3 if name in ("rl branches", "rl prompts") else 1
            zero = {3: 15, 4: 16}.get(step, 2)
            batch = random_batch(step, version=max(0, step - 2), zero=zero, branches_each=branches)
        result = trainer.step(batch) if isinstance(job, RlJob) else trainer.step()
        values[step] = result.values
        if step == MIDDLE:
            write_checkpoint(folder / "checkpoint", trainer.state.snapshot())
    policy.write_model(folder / "model")
    policy.write_serving_weights(folder / "policy.safetensors", version=STEPS)
    return TrainedRun(values, resumed.loss_then if resumed else None, resumed.loss_now if resumed else None)


def _rows(count: int, loader: ImageLoader | None) -> list[dict[str, Any]]:
    """Additions; for a model that sees each third is a square and its colour."""
    rows = addition_rows(count)
    if loader is not None:
        rows[::3] = square_rows(loader.folder, len(rows[::3]))
    return rows


def train_on_two_ranks(models: Models, folder: Path, resumes: dict[str, Path]) -> None:
    """Two processes train each of `JOBS`, and resume from the checkpoints of `resumes`; see `read_trained`.

    resumes: the folders of checkpoints, by config; those that the processes have written themselves by then included.
    """
    spawn = multiprocessing.get_context("spawn")
    # Rank 0 is given the socket itself: by its number alone, another process could have taken the port by then.
    with bind_store() as store_socket:
        port: int = store_socket.getsockname()[1]
        processes = [
            spawn.Process(
                target=_rank, args=(rank, port, None if rank else store_socket, models, folder, resumes), daemon=True
            )
            for rank in range(WORLD_SIZE)
        ]
        for process in processes:
            process.start()
    for process in processes:
        process.join(_DEADLINE_S)
        assert process.exitcode == 0, f"a rank ended with {process.exitcode}"


def read_trained(folder: Path) -> TrainedRun:
    """The run that two processes trained into this folder."""
    found = json.loads((folder / "trained.json").read_text())
    return TrainedRun({int(k): v for k, v in found["values"].items()}, found["loss_then"], found["loss_now"])


def _rank(
    rank: int, port: int, store_socket: socket | None, models: Models, folder: Path, resumes: dict[str, Path]
) -> None:
    torch.set_num_threads(1)
    process_group = init_process_group(rank, WORLD_SIZE, device="cpu", port=port, store_socket=store_socket)
    runs = [(name, "straight", None) for name in JOBS] + [(name, "resumed", path) for name, path in resumes.items()]
    for name, run, resume in runs:
        here = folder / name / run
        here.mkdir(parents=True, exist_ok=True)
        trained = train(name, models, here, process_group=process_group, resume=resume)
        if process_group.is_main:
            (here / "trained.json").write_text(json.dumps(vars(trained)))
    process_group.barrier()
    # As the training process ends: a thread of torch that ends while the interpreter is taken down aborts the process.
    os._exit(0)
