"""What a job's file says is what the training process is told."""

from __future__ import annotations

from pathlib import Path

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.jobs.resolved import RlJob
from synth.models import Registry
from synth.trainer.config import RlTrainConfig
from synth.trainer.owner.learner_config import build_train_config
from synth.trainer.settings import TrainerSettings

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
