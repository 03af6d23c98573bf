"""What DeepSpeed's and FSDP's keys and a split of the GPUs come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.errors import UserError
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.base import Parallelism
from synth.methods.job import ResolvedJob
from synth.methods.rl import GpuTopology, RlJob
from synth.methods.sft import SftJob
from synth.models import Registry

RL = """\
[services]
task_url = "http://127.0.0.1:8001/"
[model]
base = "tiny-qwen3"
[training]
iterations_per_epoch = 3
"""
SFT = '[job]\nmodel = "tiny-qwen3"\ndata = "file_1"\n[hyperparameters]\nn_epochs = 1\n'


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


def resolved(text: str, registry: Registry) -> ResolvedJob:
    return resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry)


def sft(keys: str, registry: Registry) -> Parallelism:
    job = resolved(f"{SFT}[hyperparameters.parallelism]\n{keys}", registry).job
    assert isinstance(job, SftJob)
    return job.parallelism


@pytest.mark.parametrize(
    ("keys", "sharding"),
    [
        ("", "parameters"),
        ("fsdp = true", "parameters"),
        ("fsdp = false", "replicated"),
        ("use_deepspeed = true", "gradients"),
        ("use_deepspeed = true\ndeepspeed_stage = 0", "replicated"),
        ("use_deepspeed = true\ndeepspeed_stage = 1", "gradients"),
        ("deepspeed_stage = 2", "gradients"),
        ("deepspeed_stage = 3\nfsdp = true", "parameters"),
        ("use_deepspeed = true\ndeepspeed_stage = 3\nfsdp = false", "parameters"),
        ("use_deepspeed = false\ndeepspeed_stage = 0", "parameters"),
    ],
)
def test_deepspeeds_stages_are_shardings_of_fsdp(keys: str, sharding: str, registry: Registry) -> None:
    assert sft(keys, registry).sharding == sharding


def test_a_precision_that_is_asked_for_is_that_of_the_gpus(registry: Registry) -> None:
    written = {"bf16 = true": "bf16", "bf16 = false": "fp32", "": None, "fp16 = true": None}
    assert {keys: sft(keys, registry).dtype for keys in written} == written
    (warning,) = resolved(f"{SFT}[hyperparameters.parallelism]\nfp16 = true\n", registry).warnings
    assert "bf16 is what GPUs train in" in warning


@pytest.mark.parametrize(
    ("keys", "place", "fix"),
    [
        ("tensor_parallel_size = 2", "tensor_parallel_size", "fsdp = true"),
        ("pipeline_parallel_size = 4", "pipeline_parallel_size", "world_size = 4"),
        ("deepspeed_stage = 4", "deepspeed_stage", ""),
        ("fsdp = true\ndeepspeed_stage = 2", "fsdp", "deepspeed_stage = 3"),
    ],
)
def test_what_has_no_counterpart_is_refused(keys: str, place: str, fix: str, registry: Registry) -> None:
    with pytest.raises(UserError) as caught:
        sft(keys, registry)
    (problem,) = caught.value.problems
    assert f"[hyperparameters.parallelism].{place}" in problem.where
    assert fix in problem.fix


def test_a_world_size_is_the_jobs_own_and_says_where_it_holds(registry: Registry) -> None:
    found = resolved(f"{SFT}world_size = 4\n", registry)
    assert isinstance(found.job, SftJob)
    assert found.job.parallelism.world_size == 4
    assert found.origins["parallelism.world_size"] == "job.toml:6 [hyperparameters].world_size"
    (warning,) = found.warnings
    assert "on CPU it has no effect" in warning


def test_a_split_says_on_how_many_gpus_the_policy_is_trained(registry: Registry) -> None:
    split = "[compute]\ngpu_count = 8\n[topology]\ngpus_for_vllm = 4\ngpus_for_training = 3\n"
    found = resolved(f"{RL}{split}[compute.topology]\ngpus_for_training = 3\ngpus_for_ref = 1\n", registry)
    assert isinstance(found.job, RlJob)
    assert found.job.topology == GpuTopology(gpus_for_vllm=4, gpus_for_training=3, gpus_for_ref=1)
    assert found.job.parallelism == Parallelism(world_size=3, sharding="parameters", dtype=None)
    said = "\n".join(found.warnings)
    assert "[topology].gpus_for_training is a number of GPUs" in said
    assert "[topology].gpus_for_vllm has no effect: inference has the GPUs that the cluster's operator gives it" in said
