"""Jobs as the trainer gets them, with the settings that matter to a test."""

from __future__ import annotations

from typing import Any, TypeVar

from synth.methods.base import LoraSettings, Parallelism, TrainingJob, VisionSettings
from synth.methods.dpo import DpoJob, DpoSettings
from synth.methods.losses import CorrectionSettings
from synth.methods.rl import RlJob
from synth.methods.rollouts import EvaluationSettings
from synth.methods.sft import SftJob
from synth.trainer.machine import Machine

_JobT = TypeVar("_JobT", bound=TrainingJob)

# Random behaviour log-probabilities are far from any policy's; with these gates no sequence is rejected for it.
OPEN_GATES: dict[str, Any] = {"on_policy": (0.0, 1e30), "off_policy": (0.0, 1e30)}
_ROWS = {"training_file": "rows", "batch_size": 16, "sequence_length": 128, "micro_batch_tokens": 512}
_CONSTANT = {"schedule": "constant", "warmup_steps": 0}


def rl_job(**changes: Any) -> RlJob:
    """An RL job. on_policy and the like are of the correction."""
    names = set(CorrectionSettings.__struct_fields__) & changes.keys()
    correction = CorrectionSettings(**{name: changes.pop(name) for name in names})
    if every := changes.pop("evaluated_every", 0):
        changes["evaluation"] = EvaluationSettings(every_n_iters=every, seeds=[0])
    defaults = {"iterations": 20, "max_staleness": 8, "micro_batch_tokens": 256, "correction": correction}
    return _job(RlJob, {"lr": 1e-3, "warmup_steps": 0, **defaults, **changes})


def sft_job(**changes: Any) -> SftJob:
    return _job(SftJob, {"lr": 1e-3, **_CONSTANT, **_ROWS, **changes})


def dpo_job(**changes: Any) -> DpoJob:
    return _job(DpoJob, {"lr": 1e-3, **_CONSTANT, **_ROWS, "dpo": DpoSettings(), **changes})


def machine_in(changes: dict[str, Any]) -> Machine:
    """The machine of these changes; they keep those of the job."""
    names = set(Machine.__struct_fields__) & changes.keys()
    return Machine(**{name: changes.pop(name) for name in names})


def _job(kind: type[_JobT], fields: dict[str, Any]) -> _JobT:
    lora = fields.pop("lora", None) or LoraSettings()
    if fields.get("mode", "full") != "full":
        fields["lora"] = lora
    if (sharding := fields.pop("sharding", None)) is not None:
        fields["parallelism"] = Parallelism(sharding=sharding)
    if (frozen := fields.pop("freeze_vision_tower", None)) is not None:
        fields["vision"] = VisionSettings(max_images_per_message=1, processor_id="", freeze_vision_tower=frozen)
    return kind(model="tiny", base_model="tiny", **fields)
