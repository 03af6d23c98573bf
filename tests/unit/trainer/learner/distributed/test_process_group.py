"""How micro-batches are sharded over ranks, and how many ranks a job has: all that one process can show."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.jobs.resolved import SftJob
from synth.models import Registry
from synth.trainer.learner.data.packing import plan_micro_batches
from synth.trainer.learner.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from synth.trainer.owner.attempt import JobFailure
from synth.trainer.owner.learner_config import build_train_config
from synth.trainer.owner.training_run import check_world_size
from synth.trainer.settings import TrainerSettings


@given(
    lengths=st.lists(st.integers(1, 40), max_size=30),
    size=st.integers(1, 5),
    packing=st.sampled_from(["packed", "padded"]),
)
def test_every_row_is_trained_once_and_every_rank_is_as_busy(lengths: list[int], size: int, packing) -> None:
    groups = plan_micro_batches(dict(enumerate(lengths)), budget=64, packing=packing, num_ranks=size)
    shares = [ProcessGroup(rank, size).shard_micro_batches(groups) for rank in range(size)]
    trained = sorted(row for share in shares for group, dummy in share if not dummy for row in group)
    assert trained == list(range(len(lengths)))
    assert len({len(share) for share in shares}) == 1
    assert not any(dummy for _, dummy in shares[0])
    if any(dummy for share in shares for _, dummy in share):
        assert all(len(group) == 1 for group in groups)  # nothing is left to divide


def test_a_rank_alone_has_the_plan_as_it_is() -> None:
    lengths = {i: 1 + i % 7 for i in range(20)}
    groups = plan_micro_batches(lengths, budget=16, packing="packed")
    assert SINGLE_PROCESS.shard_micro_batches(groups) == [
        (group, False) for group in plan_micro_batches(lengths, budget=16, packing="packed", num_ranks=1)
    ]
    assert SINGLE_PROCESS.reduce_metrics({"a": 1.0, "b/max": 2.0}) == {"a": 1.0, "b/max": 2.0}
    assert SINGLE_PROCESS.broadcast(False) is False


@pytest.fixture
def job_of(tmp_path: Path):
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')

    def resolve(keys: str) -> SftJob:
        text = f'[job]\nmodel = "tiny-qwen3"\ndata = "file_1"\n[hyperparameters]\n{keys}\n'
        job = resolve_job(read_toml(text, name="j"), overrides=Overrides(), registry=Registry(tmp_path)).job
        assert isinstance(job, SftJob)
        return job

    return resolve


@pytest.mark.parametrize(
    ("settings", "asked", "size", "dtype"),
    [
        ({}, "", 1, "fp32"),
        ({"ranks": 2}, "world_size = 8\nparallelism.bf16 = true", 2, "fp32"),
        ({"device": "cuda"}, "", 3, "fp32"),
        ({"device": "cuda", "ranks": 2}, "", 2, "fp32"),
        ({"device": "cuda"}, "world_size = 2\nparallelism.bf16 = true", 2, "bf16"),
        ({"device": "cuda", "dtype": "bf16"}, "parallelism.bf16 = false", 3, "fp32"),
    ],
)
def test_a_job_has_the_gpus_that_it_asks_for_else_all(
    settings: dict[str, object], asked: str, size: int, dtype: str, job_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    here, job = TrainerSettings.model_validate(settings), job_of(asked)
    check_world_size(job, here, where="")
    config = build_train_config(job, here)
    assert (config.world_size, config.dtype) == (size, dtype)


def test_a_job_that_asks_for_more_gpus_than_there_are_fails(job_of) -> None:
    here = TrainerSettings(device="cuda", ranks=2)
    with pytest.raises(JobFailure, match="asks for 4 GPUs that train, and the trainer has 2") as caught:
        check_world_size(job_of("world_size = 4"), here, where="j:5 [hyperparameters].world_size")
    assert caught.value.code == "too_few_gpus"
    assert caught.value.problem.where == "j:5 [hyperparameters].world_size"
