"""What a job's file says is what the training process is told, and how many ranks it has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from synth.events import LoraShape, ModelRef
from synth.jobs.memory import training_memory
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.rl import RlJob
from synth.methods.sft import SftJob
from synth.models import Registry
from synth.models.config_shape import read_shape
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.memory import check_device_memory
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.learner_config import check_memory, check_world_size, machine_of, threads_of
from synth.trainer.protocol import Start
from synth.trainer.settings import TrainerSettings
from synth.weights.local_model import adapter_base

_JOB = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "tiny-qwen3"
[reference]
placement = "dedicated"
[training]
iterations_per_epoch = 3
loss = "dppo"
clip_high = 0.1
kl_beta = 0.02
loss_reduction = "prompt"
[training.correction]
on_policy = [0.9, 1.2]
gate_tokens = 8
rejected = "leave"
"""


def test_the_loss_its_clip_and_the_reference_of_a_file_are_in_the_recipe_of_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    job = resolve_job(read_toml(_JOB, name="j"), overrides=Overrides(), registry=Registry(tmp_path)).job
    assert isinstance(job, RlJob)
    assert machine_of(job, TrainerSettings(reference_device="cpu")).reference_device == "cpu"
    recipe = job.recipe
    assert (recipe["loss"], recipe["clip_low"], recipe["clip_high"]) == ("dppo", 0.2, 0.1)
    assert (recipe["kl_beta"], recipe["reference"], recipe["token_truncation"]) == (0.02, "dedicated", 20.0)
    assert (recipe["loss_reduction"], recipe["rejected"], recipe["gates"]) == ("prompt", "leave", True)
    assert (recipe["gate_fresh"], recipe["gate_stale"], recipe["gate_tokens"]) == ((0.9, 1.2), (0.5, 2.0), 8)


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
    machine = machine_of(job, here)
    assert (machine.world_size, machine.dtype) == (size, dtype)


def test_a_job_that_asks_for_more_gpus_than_there_are_fails(job_of) -> None:
    here = TrainerSettings(device="cuda", ranks=2)
    with pytest.raises(JobFailure, match="requests 4 GPUs for training, and the trainer has 2") as caught:
        check_world_size(job_of("world_size = 4"), here, where="j:5 [hyperparameters].world_size")
    assert caught.value.code == "too_few_gpus"
    assert caught.value.problem.where == "j:5 [hyperparameters].world_size"


def test_a_job_that_the_devices_cannot_hold_fails_before_anything_is_loaded(job_of, model_dir: Path) -> None:
    here = TrainerSettings(trainer_memory_bytes=1 << 20)
    with pytest.raises(JobFailure, match=r"takes .* on one device, which has 1.0 MiB: activations") as caught:
        check_memory(job_of(""), model_dir, here, where="j:2 [job].model")
    assert caught.value.code == "does_not_fit"
    assert caught.value.problem.where == "j:2 [job].model"
    check_memory(job_of(""), model_dir, TrainerSettings(), where="")
    check_memory(job_of(""), model_dir, TrainerSettings(trainer_memory_bytes=1 << 30), where="")


def test_as_many_threads_compute_as_the_memory_can_hold(job_of, model_dir: Path) -> None:
    job, shape = job_of(""), read_shape(model_dir)
    assert shape is not None
    needed = [training_memory(job, shape, dtype="fp32", device="cpu", threads=n).total for n in (1, 2, 3, 4)]
    for memory, threads in ((needed[0], 1), (needed[1], 2), (needed[3] - 1, 3), (needed[3], 4)):
        assert threads_of(job, model_dir, TrainerSettings(threads=4, trainer_memory_bytes=memory)) == threads
    assert threads_of(job, model_dir, TrainerSettings(threads=3)) == 3
    # A thread has a forward and a gradient of its own, and the sum of the gradients is one more.
    one, two = (training_memory(job, shape, dtype="fp32", device="cpu", threads=n) for n in (1, 2))
    assert (two.activations, two.logits, two.gradients) == (2 * one.activations, 2 * one.logits, 3 * one.gradients)


def test_a_gpu_that_cannot_hold_a_job_is_asked_before_its_model_is_loaded(
    job_of, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("")
    machine = machine_of(job, TrainerSettings(device="cuda", ranks=1))
    start = Start(job={}, machine={}, model_dir=str(model_dir), work_dir="", check_memory=True, where="j:2 [job].model")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1 << 20))
    with pytest.raises(TrainingFailed, match=r"j:2 \[job\].model: training .* has 1.0 MiB") as caught:
        check_device_memory(start, job, machine)
    assert caught.value.code == "does_not_fit"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1 << 30))
    check_device_memory(start, job, machine)
    # A CPU says nothing, and nobody asks it.
    monkeypatch.delattr(torch.cuda, "mem_get_info")
    check_device_memory(start, job, machine_of(job, TrainerSettings()))


BASE = ModelRef(id="Qwen/Qwen3-0.6B", path="Qwen/Qwen3-0.6B")
SHAPE = LoraShape(r=16, alpha=32, targets="all-linear")
TUNED = ModelRef(id="fft:Qwen/Qwen3-0.6B:job_1")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (BASE, BASE),
        (TUNED, TUNED),
        (ModelRef(id="peft:x:job_2", kind="lora", base=BASE, lora=SHAPE), BASE),
        (ModelRef(id="peft:x:job_3", kind="lora", base=TUNED, lora=SHAPE), TUNED),
    ],
)
def test_an_adapter_lies_over_its_source_or_over_the_base_of_the_adapter_that_it_continues(
    source: ModelRef, expected: ModelRef
) -> None:
    assert adapter_base(source, SHAPE) == expected


def test_an_adapter_lies_over_an_adapter_of_another_shape() -> None:
    source = ModelRef(id="peft:x:job_2", kind="lora", base=BASE, lora=SHAPE)
    assert adapter_base(source, LoraShape(r=8, alpha=32, targets="all-linear")) == source
