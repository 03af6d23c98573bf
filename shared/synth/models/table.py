"""What is known of the Qwen3 bases: the 36 hosted ids, their sizes, and what may be done with each."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Prefix = Literal["ft", "fft", "peft", "qft", "rl"]

_ATTENTION_AND_MLP = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
#: From the features of the vision tower to the embeddings of the language model.
PROJECTOR = r".*visual\.(merger|deepstack_merger_list\.\d+)\.linear_fc[12]"
#: What a list of a LoRA's targets may call it, by the name that other vision models give it.
MM_PROJECTOR = "mm_projector"
LORA_TARGETS: dict[str, str] = {
    "qwen3": "all-linear",
    # `all-linear` would adapt the whole vision tower.
    "qwen3-vl": f"({_ATTENTION_AND_MLP}|{PROJECTOR})",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)B(?:-A(\d+)B)?")


class Vision(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that sees needs.

    max_images_per_message: more are dropped. processor_id: the model whose image processor prepares them.
    per_device_batch: rows of a forward pass.
    """

    processor_id: str
    max_images_per_message: int = 1
    per_device_batch: int = 1


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one model id.

    base: the id of the base that it was made from; its own id when it is a base.
    parameters, active_parameters: in billions; None where the id does not say.
    rl, sft: what it may be trained with. experimental: only on request. vision: None for a text model.
    thinking: it thinks before each answer, asked to or not. can_think: it may be asked to.
    path: the local directory of the base's weights, None when they are not on this machine.
    stand_in: the local model whose directory `path` is, when the base's own weights are not here.
    prefix, job_id, checkpoint: of a fine-tuned id, else None.
    lora_targets: the modules that a LoRA adapts when the job does not say: "all-linear", or a regex.
    experts: whether its layers have experts, which no LoRA reaches.
    context: tokens of a prompt and its reply together, as the folder at `path` says; None where it says none.
    assumed: nothing is known of the model here, and the rest is a guess: who has it decides what it can do.
    """

    id: str
    base: str
    family: str
    rl: bool
    sft: bool
    parameters: float | None = None
    active_parameters: float | None = None
    experimental: bool = False
    thinking: bool = False
    can_think: bool = True
    vision: Vision | None = None
    path: str | None = None
    stand_in: str | None = None
    prefix: Prefix | None = None
    job_id: str | None = None
    checkpoint: str | None = None
    lora_targets: str
    experts: bool = False
    context: int | None = None
    assumed: bool = False

    @property
    def modes(self) -> list[str]:
        """What it may be trained with, in words."""
        return [mode for mode, allowed in (("sft", self.sft), ("rl", self.rl)) if allowed]


def _table() -> dict[str, ModelSpec]:
    # names, rl, experimental, thinking, as the published clients have them
    rows: list[tuple[str, bool, bool, bool]] = [
        ("0.6B 1.7B 4B 8B 14B 30B-A3B 4B-2507", True, False, False),
        ("32B", False, False, False),
        ("4B-Instruct-2507 4B-Instruct-2507-FP8", True, False, False),
        ("30B-A3B-Instruct-2507 30B-A3B-Instruct-2507-FP8", True, False, False),
        ("235B-A22B-Instruct-2507 235B-A22B-Instruct-2507-FP8", False, True, False),
        ("4B-Thinking-2507 4B-Thinking-2507-FP8", True, True, True),
        ("30B-A3B-Thinking-2507 30B-A3B-Thinking-2507-FP8", True, True, True),
        ("235B-A22B-Thinking-2507 235B-A22B-Thinking-2507-FP8", False, True, True),
        ("Coder-30B-A3B-Instruct Coder-30B-A3B-Instruct-FP8", True, False, False),
        ("Coder-480B-A35B-Instruct Coder-480B-A35B-Instruct-FP8", False, True, False),
        # The clients refuse RL of the larger ones themselves; here the memory plan decides.
        ("VL-2B-Instruct VL-4B-Instruct VL-8B-Instruct", True, False, False),
        ("VL-2B-Thinking VL-4B-Thinking VL-8B-Thinking", True, False, True),
        ("VL-30B-A3B-Instruct VL-32B-Instruct VL-235B-A22B-Instruct", True, False, False),
        ("VL-30B-A3B-Thinking VL-32B-Thinking VL-235B-A22B-Thinking", True, False, True),
    ]
    specs: dict[str, ModelSpec] = {}
    for names, rl, experimental, thinking in rows:
        for name in names.split():
            id = f"Qwen/Qwen3-{name}"
            sees = name.startswith("VL-")
            family = "qwen3-vl" if sees else "qwen3"
            total, active = _sizes(name)
            specs[id] = ModelSpec(
                id=id,
                base=id,
                family=family,
                rl=rl,
                sft=True,
                parameters=total,
                active_parameters=active,
                experimental=experimental,
                thinking=thinking,
                can_think="Instruct" not in name,
                vision=Vision(processor_id=id) if sees else None,
                lora_targets=LORA_TARGETS[family],
                experts=active < total,
            )
    return specs


def _sizes(name: str) -> tuple[float, float]:
    found = _SIZE.search(name)
    assert found is not None
    return float(found[1]), float(found[2] or found[1])


QWEN3 = _table()
_BY_LOWER = {id.lower(): id for id in QWEN3}


def canonical(base: str) -> str | None:
    """A base id of the table in its own spelling, whatever the case of `base`; None when it is not one."""
    return _BY_LOWER.get(base.lower())
