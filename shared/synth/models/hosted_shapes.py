"""The shapes of the hosted bases, by their ids."""

from __future__ import annotations

import re

import msgspec

from synth.models.shape import ModelShape
from synth.models.vision_shape import hosted_vision


def _qwen3(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    *,
    kv_heads: int = 8,
    tied: bool = False,
    experts: int = 0,
) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocabulary=151936,
        tied=tied,
        experts=experts,
        active_experts=8 if experts else 0,
        head_norms="each",
    )


#: Of the hosted bases, by the size in their id, from their config.json on the hub.
_QWEN3 = {
    "0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "8B": _qwen3(36, 4096, 12288, 32),
    "14B": _qwen3(40, 5120, 17408, 40),
    "32B": _qwen3(64, 5120, 25600, 64),
    "30B-A3B": _qwen3(48, 2048, 768, 32, kv_heads=4, experts=128),
    "235B-A22B": _qwen3(94, 4096, 1536, 64, kv_heads=4, experts=128),
    "480B-A35B": _qwen3(62, 6144, 2560, 96, experts=160),
}
#: The text base whose language model each hosted vision base has.
_QWEN3_VL = {"2B": "1.7B", "4B": "4B", "8B": "8B", "32B": "32B", "30B-A3B": "30B-A3B", "235B-A22B": "235B-A22B"}
_SMALL_TOWER = ("2B", "4B")
_HOSTED = re.compile(
    r"Qwen/Qwen3-(?P<kind>VL-|Coder-)?(?P<size>\d+(?:\.\d+)?B(?:-A\d+B)?)"
    r"(?:-(?:Base|(?:(?:Instruct|Thinking)(?:-2507)?|2507)(?:-FP8)?))?"
)


def known_shape(model_id: str) -> ModelShape | None:
    """Return the shape of a hosted base by its id; None for any other id."""
    match = _HOSTED.fullmatch(model_id)
    if match is None:
        return None
    size = match["size"]
    if match["kind"] != "VL-":
        return _QWEN3.get(size)
    if size not in _QWEN3_VL:
        return None
    language = _QWEN3[_QWEN3_VL[size]]
    tower = hosted_vision(language.hidden, small=size in _SMALL_TOWER)
    return msgspec.structs.replace(language, vision=tower)
