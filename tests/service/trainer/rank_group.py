"""Training runs, and two real processes that train them together over gloo."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from synth.trainer.config import Lora, Recipe, RlRecipe, SftRecipe
from synth.trainer.learner.checkpoint import rng
from synth.trainer.learner.data.sft_dataset import encode_rows, load_tokenizer
from synth.trainer.learner.distributed.process_group import ALONE, Ranks, join, listen
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trainer.learner.sft import SftTrainer
from tests.unit.trainer.batches import OPEN_GATES, random_batch, rl_recipe
from tests.unit.trainer.sft_rows import sft_recipe, sums, training_rows

STEPS, HALF, SIZE = 10, 5, 2
_DEADLINE_S = 280

_SFT = {"steps": STEPS, "micro_batch_tokens": 256, "validation_every": 5}
_RL = {"minibatches": 2, **OPEN_GATES}
RECIPES: dict[str, Recipe] = {
    "sft full": sft_recipe(**_SFT, sharding="parameters"),
    "sft lora": sft_recipe(**_SFT, mode="lora", sharding="replicated"),
    # The reference is a frozen copy, spread over the ranks as the policy is.
    "rl full": rl_recipe(**_RL, sharding="gradients", activation_checkpointing=True, reference="shared", kl_beta=0.1),
    # The reference is the adapter switched off: what FSDP gathers then must not stay switched off.
    "rl lora": rl_recipe(**_RL, mode="lora", sharding="parameters", loss="grpo", reference="shared", kl_beta=0.1),
    # What is dropped depends on how many they are: it has no equal on one rank.
    "sft dropout": sft_recipe(**_SFT, mode="lora", lora=Lora(dropout=0.1)),
}


@dataclass(frozen=True)
class Trained:
    """What one run reported, by step, and a resume checkpoint from the middle of it."""

    values: dict[int, dict[str, float]]
    loss_then: float | None
    loss_now: float | None


def train(name: str, model_dir: Path, folder: Path, *, ranks: Ranks = ALONE, resume: Path | None = None) -> Trained:
    """Train one of `RECIPES` to its end. The checkpoint of the middle, the model and what is served are in `folder`."""
    recipe = RECIPES[name]
    changed: Any = {field: getattr(recipe, field) for field in recipe.__struct_fields__} | {"world_size": ranks.size}
    recipe = type(recipe)(**changed)
    rng.seed_everything(recipe.seed, threads=1, deterministic=True)
    policy = load_policy(model_dir, recipe, dropout=isinstance(recipe, SftRecipe))
    if isinstance(recipe, RlRecipe):
        reference = load_reference(policy, recipe, ranks=ranks)
        policy.spread(ranks)
        trainer: Any = RlTrainer(policy, recipe, reference=reference)
    else:
        assert isinstance(recipe, SftRecipe)
        policy.spread(ranks)
        tokenizer = load_tokenizer(model_dir)
        data, validation = (encode_rows(training_rows(sums(n)), tokenizer, sequence_length=128) for n in (100, 10))
        trainer = SftTrainer(policy, recipe, data, validation=validation)
    resumed = trainer.run.resume(resume) if resume else None
    values: dict[int, dict[str, float]] = {}
    for step in range(trainer.run.step + 1, STEPS + 1):
        # One sequence alone in step 7: a rank has nothing to do. Nothing at all to learn from in step 8.
        batch = random_batch(step, version=max(0, step - 2), zero={7: 15, 8: 16}.get(step, 2))
        result = trainer.step(batch) if isinstance(recipe, RlRecipe) else trainer.step()
        values[step] = result.values
        if step == HALF:
            trainer.run.save(folder / "checkpoint")
    policy.write_model(folder / "model")
    policy.write_serving(folder / "policy.safetensors", version=STEPS)
    return Trained(values, resumed.loss_then if resumed else None, resumed.loss_now if resumed else None)


def train_together(model_dir: Path, folder: Path, resumes: dict[str, Path]) -> None:
    """Two processes that train each of `RECIPES`, and go on from the checkpoints of `resumes`; see `read_trained`.

    resumes: the folders of checkpoints, by recipe; those that the processes have written themselves by then included.
    """
    spawn = multiprocessing.get_context("spawn")
    with listen() as listening:
        port: int = listening.getsockname()[1]
    processes = [
        spawn.Process(target=_rank, args=(rank, port, model_dir, folder, resumes), daemon=True) for rank in range(SIZE)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(_DEADLINE_S)
        assert process.exitcode == 0


def read_trained(folder: Path) -> Trained:
    """What the two processes reported of a run."""
    found = json.loads((folder / "trained.json").read_text())
    return Trained({int(k): v for k, v in found["values"].items()}, found["loss_then"], found["loss_now"])


def _rank(rank: int, port: int, model_dir: Path, folder: Path, resumes: dict[str, Path]) -> None:
    torch.set_num_threads(1)
    listening = listen(port) if rank == 0 else None
    ranks = join(rank, SIZE, device="cpu", port=port, listening=listening)
    runs = [(name, "straight", None) for name in RECIPES] + [(name, "resumed", path) for name, path in resumes.items()]
    for name, run, resume in runs:
        here = folder / name / run
        here.mkdir(parents=True, exist_ok=True)
        trained = train(name, model_dir, here, ranks=ranks, resume=resume)
        if ranks.leads:
            (here / "trained.json").write_text(json.dumps(vars(trained)))
    ranks.meet()
