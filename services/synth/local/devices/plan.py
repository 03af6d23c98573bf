"""Decides which device each process computes on, from an inventory and the user's options alone: a pure function.

The rules, in order:

- Without a GPU that torch can use, everything computes on the CPU, in float32, deterministic, on the embedded engine.
- A GPU is left alone if other programs hold more than half of its memory.
- One GPU is shared by turns. Several are divided: half of them, rounded down, serve, one inference process each; the
  others train. The cards with the most memory train, and cards that train together are of one kind.
- Training computes in bfloat16 if every one of its GPUs has a capability of 8.0 or more, else in float32: float16
  would need a scaled loss. An engine does likewise on its own GPU: in float16, models that were trained in bfloat16
  overflow.
- Determinism costs speed on a GPU and is off there.
- vLLM serves if its build for CUDA is installed and has kernels for the GPU (7.5 or more), else the embedded engine.

A flag or a setting overrides the rule; if it cannot be followed, the error names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from synth.console.errors import CliError
from synth.local.devices.inventory import Gpu, Inventory
from synth.local.devices.options import DeviceOptions

EngineName = Literal["transformers", "vllm"]

_BUSY_SHARE = 0.5
_BF16_FROM = (8, 0)
_VLLM_FROM = (7, 5)


class TrainerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of the trainer. gpus: of its ranks. reference: the GPU of a dedicated reference model."""

    gpus: tuple[Gpu, ...] = ()
    reference: Gpu | None = None
    dtype: Literal["fp32", "bf16"] = "fp32"
    deterministic: bool = True


class InferencePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The device of one inference process. gpu: None for the CPU. dtype: "" leaves it to the engine."""

    gpu: Gpu | None = None
    dtype: Literal["", "fp32", "fp16", "bf16"] = ""


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of every process of a cluster.

    shared: trainer and inference take turns at one GPU. notes: sentences for the user.
    """

    trainer: TrainerPlan = TrainerPlan()
    inference: tuple[InferencePlan, ...] = (InferencePlan(),)
    engine: EngineName = "transformers"
    shared: bool = False
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self.trainer.gpus else "cpu"

    def processes(self, services: Sequence[str]) -> list[tuple[str, str]]:
        """Return the processes of these services: the name of each and its service."""
        more = [(f"inference-{i}", "inference") for i in range(1, len(self.inference))]
        return [p for service in services for p in ((service, service), *(more if service == "inference" else ()))]

    def environment(self, process: str) -> dict[str, str]:
        """Return the settings of devices in the environment of a process."""
        if process == "trainer":
            return self._trainer_environment()
        if process == "validator":
            return self._validator_environment()
        if process == "verifier" and len(self.inference) > 1:
            return {"SYNTH_SERVE_REPLICAS": str(len(self.inference))}
        name, _, number = process.partition("-")
        if name != "inference":
            return {}
        own = self.inference[int(number or 0)]
        env = {"SYNTH_ENGINE": self.engine, "SYNTH_DEVICE": "cpu" if own.gpu is None else "cuda:0"}
        if own.dtype:
            env["SYNTH_ENGINE_DTYPE"] = own.dtype
        return env | _visible([own.gpu] if own.gpu is not None else [])

    def _validator_environment(self) -> dict[str, str]:
        """Return the training devices, so that the validator refuses jobs that do not fit on the smallest GPU."""
        gpus = self.trainer.gpus
        sizes = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
        env = {"SYNTH_TRAINER_DEVICE": self.device, "SYNTH_TRAINER_DTYPE": self.trainer.dtype}
        if gpus:
            env["SYNTH_TRAINER_RANKS"] = str(len(gpus))
        if gpus and len(sizes) == len(gpus):
            env["SYNTH_TRAINER_MEMORY_BYTES"] = str(min(sizes))
        return env

    def _trainer_environment(self) -> dict[str, str]:
        own = self.trainer
        env = {
            "SYNTH_DEVICE": self.device,
            "SYNTH_DTYPE": own.dtype,
            "SYNTH_DETERMINISTIC": str(own.deterministic).lower(),
        }
        if own.reference is not None:
            env |= {"SYNTH_RANKS": str(len(own.gpus)), "SYNTH_REFERENCE_DEVICE": f"cuda:{len(own.gpus)}"}
        return env | _visible([*own.gpus, *([own.reference] if own.reference is not None else [])])


def plan_devices(inventory: Inventory, options: DeviceOptions) -> DevicePlan:
    """Return this machine's plan. Raises `CliError`, which names the flag or setting, for options it cannot meet."""
    gpus, why_none = _usable_gpus(inventory)
    if options.device == "cpu":
        if options.flags:
            raise _refusal(
                "SYNTH_DEVICE=cpu leaves no GPU to share out", "unset SYNTH_DEVICE, or leave the flags out", options
            )
        return _on_cpu(inventory, options, ["SYNTH_DEVICE=cpu: training and inference compute on the CPU"])
    if not gpus:
        if options.flags or options.device == "cuda":
            raise _refusal(why_none[0], why_none[1] or "leave it out: the cluster then computes on the CPU", options)
        note = f"{why_none[0]}: training and inference compute on {_cpus(inventory)}"
        return _on_cpu(inventory, options, [note, *([why_none[1]] if why_none[1] else [])])
    free = [gpu for gpu in gpus if not _is_busy(gpu)]
    if options.device == "cuda" and not free:
        free = gpus
    if not free:
        raise CliError(
            "; ".join(_busy(gpu) for gpu in gpus),
            expected="a GPU with at least half of its memory free",
            fix="end its programs; or SYNTH_DEVICE=cuda uses the memory that is free, SYNTH_DEVICE=cpu leaves it alone",
            where="up",
        )
    notes = [f"{_busy(gpu)}: left alone" for gpu in gpus if gpu not in free]
    serving, training, reference = _divide(free, options, notes)
    shared = serving == training
    if shared:
        notes.append(f"training and inference take turns at {serving[0].label}")
    unused = [gpu.id for gpu in free if gpu not in (*serving, *training, reference)]
    if unused:
        notes.append(f"GPU {', '.join(unused)} is not used: the flags say so")
    engine = _engine(inventory, options, serving, notes)
    return DevicePlan(
        trainer=TrainerPlan(
            gpus=tuple(training),
            reference=reference,
            dtype=_training_dtype(training, options),
            deterministic=bool(options.deterministic),
        ),
        inference=tuple(
            InferencePlan(gpu=gpu, dtype=options.engine_dtype or ("bf16" if _has_bf16(gpu) else "fp32"))
            for gpu in serving
        ),
        engine=engine,
        shared=shared,
        notes=tuple(notes),
    )


def _usable_gpus(inventory: Inventory) -> tuple[list[Gpu], tuple[str, str]]:
    """Return the GPUs that torch can use; if there are none, also why, and the fix."""
    gpus, torch = inventory.gpus, inventory.torch
    if not gpus:
        if inventory.hidden:
            return [], ("CUDA_VISIBLE_DEVICES hides every GPU", "unset it, or name a GPU in it")
        if inventory.problem:
            return [], (inventory.problem, "")
        return [], ("no GPU on this machine", "")
    here = gpus[0].label if len(gpus) == 1 else f"{len(gpus)} GPUs"
    if torch is None:
        return [], (f"{here}, and no torch", "install it: make install")
    if not torch.cuda:
        fix = "install torch's CUDA build beside synthctl (docs/gpu.md)"
        return [], (f"{here}, and torch {torch.version} is a build for CPUs", fix)
    if not torch.available:
        fix = f"update the driver ({gpus[0].driver or 'unknown'}) to one for CUDA {torch.cuda}; `nvidia-smi` shows it"
        return [], (f"{here}, and torch {torch.version} (CUDA {torch.cuda}) cannot use the driver", fix)
    oldest = min(torch.archs, default=(0, 0))
    usable = [gpu for gpu in gpus if gpu.capability is None or gpu.capability >= oldest]
    if not usable:
        needed = f"{oldest[0]}.{oldest[1]}"
        return [], (f"{here}, and torch {torch.version} has kernels for capability {needed} and above only", "")
    return usable, ("", "")


def _on_cpu(inventory: Inventory, options: DeviceOptions, notes: list[str]) -> DevicePlan:
    if options.engine == "vllm" and inventory.vllm == "cuda":
        raise CliError(
            "the vLLM of .venv-vllm is a build for CUDA, and the cluster computes on the CPU",
            expected="a build for CPUs",
            fix="leave --engine out; or install vLLM again: rm -r .venv-vllm && make install-vllm VLLM=cpu",
            where="--engine vllm",
        )
    if options.dtype == "bf16":
        # bfloat16 is slow on a CPU, but the user's setting overrides the plan.
        notes = [*notes, "SYNTH_DTYPE=bf16 on a CPU is slow"]
    return DevicePlan(
        trainer=TrainerPlan(dtype=options.dtype or "fp32", deterministic=options.deterministic is not False),
        inference=(InferencePlan(dtype=options.engine_dtype),),
        engine=options.engine or "transformers",
        notes=tuple(notes),
    )


def _divide(free: list[Gpu], options: DeviceOptions, notes: list[str]) -> tuple[list[Gpu], list[Gpu], Gpu | None]:
    """Divide the GPUs: for serving, for training, and for a reference model. Equal lists: one GPU, by turns."""
    have, vllm, training, ref = len(free), options.gpus_for_vllm, options.gpus_for_training, options.gpus_for_ref or 0
    if have == 1 and not ref and (vllm is None or training is None) and max(vllm or 1, training or 1) == 1:
        return free, free, None
    # The largest first; of equals the last, so that inference has the lower numbers.
    ranked = sorted(free, key=lambda gpu: (gpu.memory_bytes or 0, gpu.capability or (0, 0), free.index(gpu)))[::-1]
    if vllm is None and training is None:
        vllm = max((have - ref) // 2, 1)
        training = have - ref - vllm
        alike = sum(_kind(gpu) == _kind(ranked[0]) for gpu in ranked[:training])
        if 0 < alike < training:
            training, vllm = alike, vllm + training - alike
            notes.append("the GPUs are of several kinds: GPUs that train together must be of one kind")
    elif vllm is None:
        vllm = have - (training or 0) - ref
    elif training is None:
        training = have - vllm - ref
    assert training is not None
    if min(vllm, training) < 1 or vllm + training + ref > have:
        split = f"{max(vllm, 0)} for inference, {max(training, 0)} for training"
        split += f", {ref} for the reference" if ref else ""
        fix = (
            "leave the flags out: one GPU is shared by turns" if have == 1 else "ask for fewer, or leave the flags out"
        )
        raise CliError(
            f"{have} GPU{'s' if have > 1 else ''} cannot be divided into {split}",
            expected="at least one each for inference and training, and no more than there are",
            fix=fix,
            where=options.flags or "up",
        )
    trains = ranked[:training]
    if len({_kind(gpu) for gpu in trains}) > 1:
        notes.append("GPUs of several kinds train together: the smallest one sets the memory, the slowest the pace")
    rest = [gpu for gpu in free if gpu not in trains]
    return rest[:vllm], [gpu for gpu in free if gpu in trains], rest[vllm] if ref else None


def _engine(inventory: Inventory, options: DeviceOptions, serving: list[Gpu], notes: list[str]) -> EngineName:
    old = [gpu for gpu in serving if gpu.capability is not None and gpu.capability < _VLLM_FROM]
    if options.engine == "vllm":
        if inventory.vllm == "cpu":
            raise CliError(
                "the vLLM of .venv-vllm is a build for CPUs, and inference has a GPU",
                expected="a build for CUDA",
                fix="install it again: rm -r .venv-vllm && make install-vllm; or leave --engine out",
                where="--engine vllm",
            )
        if old:
            raise CliError(
                f"vLLM has no kernels for {old[0].label}, of capability {_version(old[0].capability)}",
                expected=f"{_version(_VLLM_FROM)} or more",
                fix="use --engine transformers",
                where="--engine vllm",
            )
        return "vllm"
    if options.engine:
        return options.engine
    if inventory.vllm == "cuda" and not old:
        return "vllm"
    if old:
        notes.append(f"the embedded engine serves: vLLM has no kernels for {old[0].label}")
    elif inventory.vllm == "cpu":
        notes.append(
            "the embedded engine serves: .venv-vllm holds vLLM for CPUs; rm -r .venv-vllm && make install-vllm"
        )
    else:
        notes.append("the embedded engine serves; `make install-vllm` installs vLLM, which is faster")
    return "transformers"


def _training_dtype(training: list[Gpu], options: DeviceOptions) -> Literal["fp32", "bf16"]:
    old = [gpu for gpu in training if not _has_bf16(gpu)]
    if options.dtype == "bf16" and old:
        raise CliError(
            f"{old[0].label} has no bfloat16: its capability is {_version(old[0].capability)}",
            expected=f"{_version(_BF16_FROM)} or more",
            fix="unset SYNTH_DTYPE, or set it to fp32",
            where="SYNTH_DTYPE",
        )
    return options.dtype or ("fp32" if old else "bf16")


def _has_bf16(gpu: Gpu) -> bool:
    # An unknown card counts as one without bfloat16.
    return gpu.capability is not None and gpu.capability >= _BF16_FROM


def _is_busy(gpu: Gpu) -> bool:
    return gpu.memory_bytes is not None and (gpu.used_bytes or 0) > _BUSY_SHARE * gpu.memory_bytes


def _busy(gpu: Gpu) -> str:
    holders = ", ".join(f"pid {p.pid}{f' ({p.name})' if p.name else ''}" for p in gpu.processes) or "another process"
    used, total = (gpu.used_bytes or 0) / 2**30, (gpu.memory_bytes or 0) / 2**30
    return f"{gpu.label} is used by {holders}, {used:.0f} of {total:.0f} GiB"


def _kind(gpu: Gpu) -> tuple[str, int | None]:
    return gpu.name, gpu.memory_bytes


def _visible(gpus: list[Gpu]) -> dict[str, str]:
    # Numbers count as nvidia-smi counts only in the order of the bus; CUDA's own puts the fastest first.
    ids = ",".join(gpu.id for gpu in gpus)
    return {"CUDA_VISIBLE_DEVICES": ids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if gpus else {}


def _cpus(inventory: Inventory) -> str:
    memory = f", {inventory.memory_bytes / 2**30:.0f} GiB" if inventory.memory_bytes else ""
    return f"the CPU ({inventory.cpus} core{'s' if inventory.cpus > 1 else ''}{memory})"


def _version(capability: tuple[int, int] | None) -> str:
    return "unknown" if capability is None else f"{capability[0]}.{capability[1]}"


def _refusal(what: str, fix: str, options: DeviceOptions) -> CliError:
    where = options.flags or "SYNTH_DEVICE=cuda"
    return CliError(what, expected="a GPU that torch can use", fix=fix, where=where)
