"""The model registry: the ids that exist, the uses of each model, and the folders of local models.

Three kinds of id: a Qwen3 base (`Qwen/Qwen3-0.6B`), a directory below `models_dir` that holds a `config.json`
(`tiny-qwen3`, or `Qwen/Qwen3-0.6B`, which then gives that base its weights), and a fine-tuned id
(`rl:<base>:<job_id>[:<checkpoint>]`, decision 18). Only the log records which fine-tuned models exist; here their shape
and their base are checked. A Qwen3 base without weights may be run by a local model that stands in for it.
"""

from __future__ import annotations

from synth.models.finetuned import FineTunedId, checkpoint_name, format_finetuned, parse_finetuned
from synth.models.registry import Registry
from synth.models.table import LORA_TARGETS, QWEN3, ModelSpec, Vision

__all__ = [
    "LORA_TARGETS",
    "QWEN3",
    "FineTunedId",
    "ModelSpec",
    "Registry",
    "Vision",
    "checkpoint_name",
    "format_finetuned",
    "parse_finetuned",
]
