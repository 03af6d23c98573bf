"""The user's settings of devices, from flags of `synthctl up` and from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from synth.console.errors import UsageProblem

_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_Dtype = Literal["", "fp32", "bf16"]
_EngineDtype = Literal["", "fp32", "fp16", "bf16"]


class DeviceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's settings of devices; None or "" if not set."""

    device: Literal["", "cpu", "cuda"] = ""
    engine: Literal["", "transformers", "vllm"] = ""
    dtype: _Dtype = ""
    engine_dtype: _EngineDtype = ""
    deterministic: bool | None = None
    gpus_for_vllm: int | None = None
    gpus_for_training: int | None = None
    gpus_for_ref: int | None = None

    @property
    def flags(self) -> str:
        """The GPU flags that were given, with their numbers; "" for none."""
        counts = (("vllm", self.gpus_for_vllm), ("training", self.gpus_for_training), ("ref", self.gpus_for_ref))
        return ", ".join(f"--gpus-for-{name} {count}" for name, count in counts if count is not None)


def read_device_options(
    environment: Mapping[str, str],
    *,
    engine: Literal["", "transformers", "vllm"] = "",
    gpus_for_vllm: int | None = None,
    gpus_for_training: int | None = None,
    gpus_for_ref: int | None = None,
) -> DeviceOptions:
    """Read the options from `up`'s flags and its environment. Raises `UsageProblem` for a value no setting takes."""
    device = environment.get("SYNTH_DEVICE", "").lower().partition(":")[0]
    dtype = environment.get("SYNTH_DTYPE", "").lower()
    engine_dtype = environment.get("SYNTH_ENGINE_DTYPE", "").lower()
    deterministic = environment.get("SYNTH_DETERMINISTIC", "").lower()
    for name, value, allowed in (
        ("SYNTH_DEVICE", device, ("", "cpu", "cuda")),
        ("SYNTH_DTYPE", dtype, get_args(_Dtype)),
        ("SYNTH_ENGINE_DTYPE", engine_dtype, get_args(_EngineDtype)),
        ("SYNTH_DETERMINISTIC", deterministic, ("", *_BOOLEANS)),
    ):
        if value not in allowed:
            expected = ", ".join(word for word in allowed if word)
            raise UsageProblem(f"{name} is {environment[name]!r}", expected=expected, where=name)
    return msgspec.convert(
        {
            "device": device,
            "engine": engine,
            "dtype": dtype,
            "engine_dtype": engine_dtype,
            "deterministic": _BOOLEANS.get(deterministic),
            "gpus_for_vllm": gpus_for_vllm,
            "gpus_for_training": gpus_for_training,
            "gpus_for_ref": gpus_for_ref,
        },
        DeviceOptions,
    )
