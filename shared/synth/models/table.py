"""The table of the Qwen3 bases: the 36 hosted ids, their sizes, and their uses."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Prefix = Literal["ft", "fft", "peft", "qft", "rl"]

_ATTENTION_AND_MLP = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
#: The projector maps the features of the vision tower to the embeddings of the language model.
PROJECTOR = r".*visual\.(merger|deepstack_merger_list\.\d+)\.linear_fc[12]"
#: Its name in a list of a LoRA's targets, which is other vision models' name for it.
MM_PROJECTOR = "mm_projector"
LORA_TARGETS: dict[str, str] = {
    "qwen3": "all-linear",
    # `all-linear` would adapt the whole vision tower.
    "qwen3-vl": f"({_ATTENTION_AND_MLP}|{PROJECTOR})",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)B(?:-A(\d+)B)?")


class Vision(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a vision model.

    max_images_per_message: more are dropped. processor_id: the model whose image processor prepares them.
    per_device_batch: rows of a forward pass.
    """

    processor_id: str
    max_images_per_message: int = 1
    per_device_batch: int = 1


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of one model id.

    base: the id of the base that it was made from; its own id when it is a base.
    parameters, active_parameters: in billions; None if the id does not contain them.
    rl, sft: the modes that may train it. experimental: only on request. vision: None for a text model.
    thinking: whether it always thinks before an answer. can_think: whether a request may have it think.
    path: the local directory of the base's weights, None when they are not on this machine.
    stand_in: the local model whose directory `path` is, when the base's own weights are not here.
    prefix, job_id, checkpoint: of a fine-tuned id, else None.
    lora_targets: the modules that a LoRA adapts by default: "all-linear", or a regex.
    experts: whether its layers have experts, which no LoRA reaches.
    context: tokens of a prompt and its reply together, from the folder at `path`; None if it has none.
    assumed: nothing is known of the model here, and the rest is a guess: the service that has its files decides.
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
        """The modes that may train it, in words."""
        return [mode for mode, allowed in (("sft", self.sft), ("rl", self.rl)) if allowed]


def _table() -> dict[str, ModelSpec]:
    # names, rl, experimental, thinking, as in the published clients
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
    match = _SIZE.search(name)
    assert match is not None
    return float(match[1]), float(match[2] or match[1])


QWEN3 = _table()
_BY_LOWER = {id.lower(): id for id in QWEN3}


def canonical(base: str) -> str | None:
    """Return a base id of the table in its own spelling, for any case of `base`; None if it is not one."""
    return _BY_LOWER.get(base.lower())
