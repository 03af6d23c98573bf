"""What a job's file says is what the training process is told, and how many ranks it has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from synth.events import LoraShape, ModelRef
from synth.jobs.job_data import job_to_data
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.jobs.resolved import RlJob, SftJob
from synth.models import Registry
from synth.trainer.config import RlTrainConfig
from synth.trainer.errors import TrainingFailed
from synth.trainer.learner.memory import check_device_memory
from synth.trainer.owner.errors import JobFailure
from synth.trainer.owner.learner_config import build_train_config, check_memory, check_world_size
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


def test_the_loss_its_clip_and_the_reference_of_a_file_reach_the_training_process(tmp_path: Path) -> None:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    job = resolve_job(read_toml(_JOB, name="j"), overrides=Overrides(), registry=Registry(tmp_path)).job
    assert isinstance(job, RlJob)
    config = build_train_config(job, TrainerSettings(reference_device="cpu"))
    assert isinstance(config, RlTrainConfig)
    assert (config.loss, config.clip_low, config.clip_high, config.token_truncation) == ("dppo", 0.2, 0.1, 20.0)
    assert (config.kl_beta, config.reference, config.reference_device) == (0.02, "dedicated", "cpu")
    assert (config.loss_reduction, config.rejected, config.gates) == ("prompt", "leave", True)
    assert (config.gate_on_policy, config.gate_off_policy, config.gate_tokens) == ((0.9, 1.2), (0.5, 2.0), 8)


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
    with pytest.raises(JobFailure, match="requests 4 GPUs for training, and the trainer has 2") as caught:
        check_world_size(job_of("world_size = 4"), here, where="j:5 [hyperparameters].world_size")
    assert caught.value.code == "too_few_gpus"
    assert caught.value.problem.where == "j:5 [hyperparameters].world_size"


def test_what_a_file_says_of_the_optimizer_reaches_the_training_process(job_of) -> None:
    config = build_train_config(job_of('optimizer = "adamw_8bit"\noptimizer_offload = true'), TrainerSettings())
    assert (config.optimizer, config.optimizer_offload) == ("adamw_8bit", True)
    config = build_train_config(job_of(""), TrainerSettings())
    assert (config.optimizer, config.optimizer_offload) == ("adamw", False)


def test_a_job_that_the_devices_cannot_hold_fails_before_anything_is_loaded(job_of, model_dir: Path) -> None:
    here = TrainerSettings(trainer_memory_bytes=1 << 20)
    with pytest.raises(JobFailure, match=r"takes .* on one device, which has 1.0 MiB: activations") as caught:
        check_memory(job_of(""), model_dir, here, where="j:2 [job].model")
    assert caught.value.code == "does_not_fit"
    assert caught.value.problem.where == "j:2 [job].model"
    check_memory(job_of(""), model_dir, TrainerSettings(), where="")
    check_memory(job_of(""), model_dir, TrainerSettings(trainer_memory_bytes=1 << 30), where="")


def test_a_gpu_that_cannot_hold_a_job_is_asked_before_its_model_is_loaded(
    job_of, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("")
    config = build_train_config(job, TrainerSettings(device="cuda", ranks=1))
    start = Start(
        kind="sft", config={}, model_dir=str(model_dir), work_dir="", job=job_to_data(job), where="j:2 [job].model"
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1 << 20))
    with pytest.raises(TrainingFailed, match=r"j:2 \[job\].model: training .* has 1.0 MiB") as caught:
        check_device_memory(start, config)
    assert caught.value.code == "does_not_fit"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1 << 30))
    check_device_memory(start, config)
    # A CPU says nothing, and nobody asks it.
    monkeypatch.delattr(torch.cuda, "mem_get_info")
    check_device_memory(start, build_train_config(job, TrainerSettings()))


def test_what_a_file_says_of_images_reaches_the_training_process(tmp_path: Path) -> None:
    (tmp_path / "sees").mkdir()
    (tmp_path / "sees" / "config.json").write_text('{"model_type": "qwen3_vl"}')
    said = "[model]\nmax_images_per_message = 3\nfreeze_vision_tower = false\n"
    sft = f'[job]\nmodel = "sees"\ndata = "file_1"\n{said}[hyperparameters]\nn_epochs = 1\n'
    rl = _JOB.replace('[model]\nbase = "tiny-qwen3"\n', f'{said}base = "sees"\n')
    for text, cap in ((sft, 3), (rl, None)):
        job = resolve_job(read_toml(text, name="j"), overrides=Overrides(), registry=Registry(tmp_path)).job
        assert isinstance(job, SftJob | RlJob)
        config = build_train_config(job, TrainerSettings())
        assert config.freeze_vision_tower is False
        assert getattr(config, "max_images_per_message", None) == cap


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
