"""The shapes of the hosted bases, by their ids."""

from __future__ import annotations

import re

import msgspec

from synth.models.shape import ModelShape
from synth.models.vision_shape import hosted_vision


def _dense(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        tied=tied,
        head_norms="each",
    )


def _moe(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, experts: int = 128) -> ModelShape:
    return ModelShape(
        layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=128,
        vocabulary=151936,
        tied=False,
        experts=experts,
        active_experts=8,
        head_norms="each",
    )


#: Of the hosted bases, by the size in their id, from their config.json on the hub.
_QWEN3 = {
    "0.6B": _dense(28, 1024, 3072, 16, tied=True),
    "1.7B": _dense(28, 2048, 6144, 16, tied=True),
    "4B": _dense(36, 2560, 9728, 32, tied=True),
    "8B": _dense(36, 4096, 12288, 32, tied=False),
    "14B": _dense(40, 5120, 17408, 40, tied=False),
    "32B": _dense(64, 5120, 25600, 64, tied=False),
    "30B-A3B": _moe(48, 2048, 768, 32, 4),
    "235B-A22B": _moe(94, 4096, 1536, 64, 4),
    "480B-A35B": _moe(62, 6144, 2560, 96, 8, experts=160),
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
