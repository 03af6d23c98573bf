"""SFT and RL of a model that sees."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.canary import canary_tokens, score_canary
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.images import ImageLoader
from synth.trainer.learner.data.sft_dataset import SftDataset, encode_rows, load_tokenizer
from synth.trainer.learner.data.sft_images import SftImages
from synth.trainer.learner.methods.sft import SftTrainer
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.model.reference import load_reference
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import RolloutBatch
from synth.weights.policy_file import read_policy
from synth.weights.tensor_file import load_tensors
from tests.unit.trainer.batches import LOSSES
from tests.unit.trainer.jobs import OPEN_GATES, rl_job, sft_job
from tests.unit.trainer.sft_rows import training_rows
from tests.unit.trainer.vision import as_sequences, question, square_rows, vision_batch


def squares(vision_dir: Path, loader: ImageLoader, *, blank: bool = False) -> SftDataset:
    rows = training_rows(square_rows(loader.folder, blank=blank))
    return encode_rows(rows, load_tokenizer(vision_dir), sequence_length=128, images=SftImages(loader, 1))


def rl_trainer(vision_dir: Path, loader: ImageLoader, **changes: Any) -> RlTrainer:
    job = rl_job(**{"minibatches": 1, **OPEN_GATES, **changes})
    policy = load_policy(vision_dir, job, images=loader, dropout=False)
    return RlTrainer(policy, job, reference=load_reference(policy, job))


@pytest.mark.long
def test_a_colour_is_learnt_from_the_image_alone(vision_dir: Path, loader: ImageLoader) -> None:
    losses: list[float] = []
    for blank in (False, True):
        data = squares(vision_dir, loader, blank=blank)
        job = sft_job(steps=40, lr=5e-3, batch_size=32, micro_batch_tokens=2048, clip_norm=1.0)
        trainer = SftTrainer(load_policy(vision_dir, job, images=loader), job, data)
        losses.append([trainer.step().values["loss"] for _ in range(trainer.total)][-1])
    seen, blind = losses
    assert seen < 0.1
    # Four colours and the end of the turn: blind, the loss of a row is at least log 4, over its tokens.
    assert blind > 0.3


def test_the_counts_of_images_are_reported(vision_dir: Path, loader: ImageLoader) -> None:
    rows = square_rows(loader.folder, 4)
    uris = [row["messages"][0]["content"][0]["image"] for row in rows]
    data = encode_rows(
        training_rows([question("What?", *uris, answer="squares")]),
        load_tokenizer(vision_dir),
        sequence_length=128,
        images=SftImages(loader, 3),
    )
    job = sft_job(batch_size=1)
    values = SftTrainer(load_policy(vision_dir, job, images=loader), job, data).step().values
    assert (values["images_trimmed"], values["images_truncated"]) == (1, 0)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss["loss"])
@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_ratio_of_the_first_minibatch_is_exactly_one(
    mode: str, loss: dict[str, Any], vision_dir: Path, loader: ImageLoader
) -> None:
    trainer = rl_trainer(vision_dir, loader, mode=mode, minibatches=2, **loss)
    values = trainer.step(vision_batch(loader, 1)).values
    assert values["ppo_kl_first"] == 0
    assert values["clipped_first"] == 0
    assert values["ppo_kl"] > 0
    assert values["grad_norm"] > 0


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_policy_that_has_not_changed_is_at_no_distance_from_its_reference(
    mode: str, vision_dir: Path, loader: ImageLoader
) -> None:
    trainer = rl_trainer(vision_dir, loader, mode=mode, reference="shared", kl_beta=0.1)
    assert trainer.step(vision_batch(loader, 1)).values["ref_kl"] == 0
    assert trainer.step(vision_batch(loader, 2)).values["ref_kl"] > 0


def test_rl_leaves_the_tower_as_it_was(vision_dir: Path, loader: ImageLoader, tmp_path: Path) -> None:
    trainer = rl_trainer(vision_dir, loader)
    trainer.step(vision_batch(loader, 1))
    trainer.policy.write_serving_weights(tmp_path / "p", version=1)
    served = read_policy(tmp_path / "p").tensors
    source, _ = load_tensors(vision_dir / "model.safetensors")
    assert served.keys() == source.keys()
    changed = {name for name, tensor in served.items() if not torch.equal(tensor, source[name])}
    frozen = {n for n in source if n.startswith("model.visual.") and "merger" not in n}
    assert changed == source.keys() - frozen


def test_images_that_were_processed_otherwise_are_refused(vision_dir: Path, loader: ImageLoader) -> None:
    batch = dataclasses.replace(vision_batch(loader, 1), processor="0123456789abcdef")
    with pytest.raises(TrainingFailed, match=f"0123456789abcdef.*{loader.fingerprint}") as failed:
        rl_trainer(vision_dir, loader).step(batch)
    assert failed.value.code == "processor_differs"


def test_a_sampled_image_token_is_refused(vision_dir: Path, loader: ImageLoader) -> None:
    batch = vision_batch(loader, 1)
    batch.tokens[np.flatnonzero(batch.loss_mask)[0]] = loader.image_token
    with pytest.raises(TrainingFailed, match="media") as failed:
        rl_trainer(vision_dir, loader).step(batch)
    assert failed.value.code == "bad_batch"


def test_images_that_are_not_those_of_the_tokens_are_refused(vision_dir: Path, loader: ImageLoader) -> None:
    batch = vision_batch(loader, 1)
    batch = dataclasses.replace(batch, images=(batch.images[0][:1], *batch.images[1:]))
    with pytest.raises(TrainingFailed, match="image tokens") as failed:
        rl_trainer(vision_dir, loader).step(batch)
    assert failed.value.code == "bad_image"


def test_a_text_model_refuses_images(model_dir: Path, loader: ImageLoader) -> None:
    trainer = RlTrainer(load_policy(model_dir, rl_job(), dropout=False), rl_job())
    with pytest.raises(TrainingFailed, match="sees none"):
        trainer.step(vision_batch(loader, 1))


def test_a_canary_is_text_and_bans_nothing(vision_dir: Path, loader: ImageLoader) -> None:
    trainer = rl_trainer(vision_dir, loader)
    batch = vision_batch(loader, 1)
    tokens = canary_tokens(as_sequences(batch, loader))
    assert tokens is not None
    assert len(tokens) > 1
    assert not set(tokens) & set(loader.banned)
    assert batch.tokens[: batch.cu_seqlens[1]].tolist()[-len(tokens) :] == tokens
    trainer.step(batch)
    assert trainer.state.canary == tokens
    canary = score_canary(trainer.policy, tokens)
    with torch.no_grad():
        out = trainer.policy.model(
            input_ids=torch.tensor([tokens]), mm_token_type_ids=torch.zeros(1, len(tokens)).int()
        )
    expected = out.logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(tokens)[1:, None])[:, 0]
    assert canary.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_canary_passes_over_a_sequence_that_ends_with_an_image(loader: ImageLoader) -> None:
    sequences = as_sequences(vision_batch(loader, 1), loader)
    sequences.tokens[sequences.cu_seqlens[1] - 2] = loader.image_token
    tokens = canary_tokens(sequences)
    assert tokens is not None
    assert sequences.tokens[: sequences.cu_seqlens[2]].tolist()[-len(tokens) :] == tokens


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_a_run_that_resumes_elsewhere_goes_on_to_the_byte(
    mode: str, vision_dir: Path, loader: ImageLoader, tmp_path: Path
) -> None:
    batches = [vision_batch(loader, k) for k in (1, 2, 3)]
    straight = rl_trainer(vision_dir, loader, mode=mode)
    for batch in batches:
        straight.step(batch)
        if straight.state.step == 2:
            write_checkpoint(tmp_path / "checkpoint", straight.state.snapshot())
            # The owner removes the images of a batch that was trained.
            assert {file.name for file in (loader.folder / "kept").iterdir()} <= _digests(batch)
    # Another machine has the images of the batches that it trains, not those of the probe.
    elsewhere = ImageLoader.load(vision_dir, tmp_path / "images")
    resumed = rl_trainer(vision_dir, elsewhere, mode=mode)
    found = resumed.state.resume(tmp_path / "checkpoint")
    assert found.loss_now == found.loss_then is not None
    for images in batches[2].images:
        for image in images:
            elsewhere.add(loader.folder / image.sha256)
    resumed.step(batches[2])
    for name, trainer in (("a", straight), ("b", resumed)):
        trainer.policy.write_serving_weights(tmp_path / name, version=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_checkpoint_is_saved_when_the_images_of_its_batch_are_gone(
    vision_dir: Path, loader: ImageLoader, tmp_path: Path
) -> None:
    own = ImageLoader.load(vision_dir, tmp_path / "images")
    batch = vision_batch(own, 1)
    trainer = rl_trainer(vision_dir, own)
    trainer.step(batch)
    for name in _digests(batch):
        (own.folder / name).unlink()
    own = trainer.policy.images = ImageLoader.load(vision_dir, tmp_path / "images")  # reads every file anew
    write_checkpoint(tmp_path / "checkpoint", trainer.state.snapshot())
    found = rl_trainer(vision_dir, loader).state.resume(tmp_path / "checkpoint")
    assert found.loss_now == found.loss_then is not None


def _digests(batch: RolloutBatch) -> set[str]:
    return {image.sha256 for images in batch.images for image in images}
