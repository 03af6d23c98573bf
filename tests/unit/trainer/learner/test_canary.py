"""The canary: the same tokens all through a job, and the policy's own log-probabilities of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from synth.trainer.learner.canary import canary_tokens, score_canary
from synth.trainer.learner.checkpoint.checkpoint import write_checkpoint
from synth.trainer.learner.data.packing import Sequences
from synth.trainer.learner.model.policy import load_policy
from synth.trainer.learner.rl import RlTrainer
from synth.trajectories import RolloutBatch
from tests.unit.inference.tiny_model import plain_model
from tests.unit.trainer.batches import random_batch
from tests.unit.trainer.jobs import OPEN_GATES, rl_job


def sequences_of(batch: RolloutBatch) -> Sequences:
    return Sequences(batch.tokens, batch.loss_mask.astype(np.float32), batch.cu_seqlens)


def test_it_is_what_a_plain_forward_says_of_its_tokens(model_dir: Path) -> None:
    policy = load_policy(model_dir, rl_job(), dropout=False)
    ids = [5, 99, 7, 300, 1, 12]
    with torch.no_grad():
        logp = plain_model(model_dir)(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = logp[:-1].gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)
    canary = score_canary(policy, ids)
    assert (canary.token_ids, canary.dtype) == (ids, "fp32")
    assert canary.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


def test_its_tokens_stay_those_of_the_first_batch_and_come_back_with_a_checkpoint(
    model_dir: Path, tmp_path: Path
) -> None:
    job = rl_job(**OPEN_GATES)
    trainer = RlTrainer(load_policy(model_dir, job, dropout=False), job)
    trainer.step(random_batch(1))
    first = trainer.state.canary
    assert first == canary_tokens(sequences_of(random_batch(1)))
    before = score_canary(trainer.policy, first or [])
    trainer.step(random_batch(2))
    assert trainer.state.canary == first
    assert score_canary(trainer.policy, first or []).logprobs != before.logprobs
    write_checkpoint(tmp_path / "checkpoint", trainer.state.snapshot())
    resumed = RlTrainer(load_policy(model_dir, job, dropout=False), job)
    resumed.state.resume(tmp_path / "checkpoint")
    assert resumed.state.canary == first
    assert score_canary(resumed.policy, first or []) == score_canary(trainer.policy, first or [])


def test_it_is_the_end_of_a_long_sequence_and_waits_for_a_batch_that_has_one() -> None:
    assert canary_tokens(sequences_of(random_batch(1, sequences=0))) is None
    short = sequences_of(random_batch(1, sequences=1))
    long = Sequences(short.tokens.repeat(20), short.weights.repeat(20), short.cu_seqlens * 20)
    found = canary_tokens(long)
    assert found == long.tokens[-64:].tolist()
