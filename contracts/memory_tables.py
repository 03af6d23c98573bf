"""The tables of docs/gpu.md: what training and serving hold on a GPU, by the functions that `config explain` calls."""

from __future__ import annotations

import re
from pathlib import Path

from synth.errors import Permanent
from synth.jobs.memory import TrainingMemory, training_memory
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.rl import RlJob
from synth.models import Registry
from synth.models.hosted_shapes import known_shape
from synth.models.memory import GIB, engine_memory
from synth.models.shape import ModelShape

PAGE = Path(__file__).parents[1] / "docs" / "gpu.md"
#: GiB that CUDA leaves of cards sold as 16, 24, 48 and 80 GB, and the share of it that the arithmetic may take: CUDA's
#: own memory and the allocator's losses are not in it.
CARDS = {"16": 15.0, "24": 22.5, "48": 44.5, "80": 79.2}
SHARE = 0.9
MODELS = ("0.6B", "1.7B", "4B", "8B", "30B-A3B")
SEEING = ("VL-2B-Instruct", "VL-4B-Instruct", "VL-8B-Instruct")
SERVED = (*MODELS, *SEEING, "VL-30B-A3B-Instruct")

_JOB = """\
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "Qwen/Qwen3-{model}"
trainer_mode = "{mode}"
{more}
[training]
iterations_per_epoch = 1
activation_checkpointing = {checkpointing}
"""


def gpu_page() -> str:
    """docs/gpu.md with its tables as they are computed now: each stands between a comment that names it and `end`."""
    page = PAGE.read_text()
    tables = {"training": training_table(), "vision": vision_table(), "serving": serving_table()}
    for name, lines in tables.items():
        table = "\n".join(["", *lines, ""])
        place = rf"(<!-- table: {name} -->).*?(<!-- end -->)"
        page, found = re.subn(place, rf"\1\n{table}\n\2", page, flags=re.DOTALL)
        assert found == 1, f"docs/gpu.md has {found} tables {name}"
    return page


def training_table() -> list[str]:
    """Return rows of models and training modes, with an RL job's defaults, activations kept and checkpointed."""
    lines = [
        "| model | trained | weights | gradients, moments | logits | activations | in all | card "
        "| checkpointed | in all | card |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for model in MODELS:
        for mode in ("full", "lora", "qlora"):
            kept, again = (_training(model, mode, checkpointing) for checkpointing in (False, True))
            cells = [
                f"Qwen3-{model}",
                {"full": "all", "lora": "LoRA", "qlora": "QLoRA"}[mode],
                _gib(kept.weights + kept.casts),
                _gib(kept.gradients + kept.moments),
                _gib(kept.logits),
                *(_gib(kept.activations), _gib(kept.total), _card(kept.total)),
                *(_gib(again.activations), _gib(again.total), _card(again.total)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def vision_table() -> list[str]:
    """Return rows of models that see and training modes, with an RL job's defaults and checkpointing."""
    lines = [
        "| model | trained | weights | gradients, moments | logits | activations | of images | in all | card |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for model in SEEING:
        for mode, tower in (("full", "true"), ("full", "false"), ("lora", "true"), ("qlora", "true")):
            plan = _training(model, mode, checkpointing=True, more=f"freeze_vision_tower = {tower}")
            trained = {"full": "all but the tower" if tower == "true" else "all", "lora": "LoRA", "qlora": "QLoRA"}
            sizes = (plan.weights + plan.casts, plan.gradients + plan.moments, plan.logits)
            parts = map(_gib, (*sizes, plan.activations, plan.image_activations, plan.total))
            lines.append(f"| Qwen3-{model} | {trained[mode]} | {' | '.join(parts)} | {_card(plan.total)} |")
    return lines


def serving_table() -> list[str]:
    """Return rows of a model on a card that has nothing else, with the defaults of an inference process."""
    lines = ["| model | card | weights | logits | KV cache | tokens |", "|---|--:|--:|--:|--:|--:|"]
    for model in SERVED:
        for card, gib in CARDS.items():
            try:
                plan = engine_memory(_shape(model), int(gib * GIB), kv_share=0.5, max_num_seqs=256)
            except Permanent:
                continue  # it does not fit
            cells = [f"Qwen3-{model}", card, _gib(plan.weights), _gib(plan.logits), _gib(plan.kv_cache)]
            lines.append(f"| {' | '.join([*cells, f'{plan.kv_tokens:,}'])} |")
    return lines


def _training(model: str, mode: str, checkpointing: bool, more: str = "") -> TrainingMemory:
    text = _JOB.format(model=model, mode=mode, checkpointing=str(checkpointing).lower(), more=more)
    job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry()).job
    assert isinstance(job, RlJob)
    return training_memory(job, _shape(model))


def _shape(model: str) -> ModelShape:
    shape = known_shape(f"Qwen/Qwen3-{model}")
    assert shape is not None
    return shape


def _card(total: int) -> str:
    return next((name for name, gib in CARDS.items() if total <= SHARE * gib * GIB), "-")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
