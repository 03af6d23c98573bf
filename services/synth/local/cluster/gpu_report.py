"""The GPUs of this machine as `up`, `status` and `doctor` show them: their holders and their memory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from synth.local.cluster.state import ClusterState
from synth.local.devices.inventory import Gpu
from synth.local.devices.plan import DevicePlan
from synth.local.devices.probe import GpuList
from synth.local.processes.running import is_alive
from synth.runtime.device_turn import read_holder


class GpuReport(msgspec.Struct, kw_only=True):
    """A GPU. holder: the processes of the cluster that use it, others that hold its memory, or "free".

    used_bytes, memory_bytes: None if the driver does not report them.
    """

    id: str
    name: str
    uuid: str
    holder: str
    used_bytes: int | None
    memory_bytes: int | None

    @property
    def memory(self) -> str:
        """Used and total, in GiB."""
        used = "?" if self.used_bytes is None else f"{self.used_bytes / 2**30:.1f}"
        total = "?" if self.memory_bytes is None else f"{self.memory_bytes / 2**30:.1f}"
        return f"{used}/{total} GiB"


def report_gpus(state: ClusterState | None, data: Path, listed: GpuList) -> list[GpuReport]:
    """Return every listed GPU. state: of the cluster of this data folder; None without one."""
    if not listed.gpus:
        return []
    plan = running_plan(state)
    ours = set[int]() if state is None or plan is None else _own_pids(state)
    turn = read_holder(turn_file(data)) if plan is not None and plan.shared else None
    return [_report(gpu, plan or DevicePlan(), ours, turn.who if turn is not None else "") for gpu in listed.gpus]


def running_plan(state: ClusterState | None) -> DevicePlan | None:
    """Return the device plan of a cluster; None if none of its processes runs."""
    if state is None or not any(is_alive(p.pid, p.started) for p in state.processes):
        return None
    return state.devices


def planned_gpus(plan: DevicePlan) -> list[GpuReport]:
    """Return the GPUs that a plan gives to processes, each once, as they were when it was made."""
    reference = [plan.trainer.reference] if plan.trainer.reference is not None else []
    gpus = [*(own.gpu for own in plan.inference if own.gpu is not None), *plan.trainer.gpus, *reference]
    return [_report(gpu, plan, set(), "") for gpu in {gpu.id: gpu for gpu in gpus}.values()]


def turn_file(data: Path) -> Path:
    """Return the file of the turn at the GPU that trainer and inference of this data folder share."""
    return data / "work" / "turn"


def describe_device(plan: DevicePlan) -> str:
    """Return a sentence on a plan's device, for a machine without a GPU."""
    return plan.notes[0] if plan.device == "cpu" and plan.notes else ""


def _report(gpu: Gpu, plan: DevicePlan, ours: set[int], turn: str) -> GpuReport:
    holders = assigned(gpu, plan)
    if plan.shared and holders:
        holders = [f"shared: {turn.rpartition('-')[0] or turn}'s turn" if turn else "shared: trainer, inference"]
    holders += [f"pid {p.pid} {p.name}".strip() for p in gpu.processes if p.pid not in ours]
    return GpuReport(
        id=gpu.id,
        name=gpu.name,
        uuid=gpu.uuid,
        holder=", ".join(holders) or "free",
        used_bytes=gpu.used_bytes,
        memory_bytes=gpu.memory_bytes,
    )


def assigned(gpu: Gpu, plan: DevicePlan) -> list[str]:
    """Return the processes of a plan that a GPU was given to."""
    names = [
        "inference" if not i else f"inference-{i}"
        for i, own in enumerate(plan.inference)
        if own.gpu is not None and own.gpu.id == gpu.id
    ]
    names += ["trainer"] if gpu.id in {own.id for own in plan.trainer.gpus} else []
    reference = plan.trainer.reference
    return [*names, *(["reference"] if reference is not None and reference.id == gpu.id else [])]


def _own_pids(state: ClusterState) -> set[int]:
    """Return the pids of the cluster's processes and of their descendants."""
    import psutil

    pids: set[int] = set()
    for p in state.processes:
        if p.pid is None or not is_alive(p.pid, p.started):
            continue
        try:
            pids |= {p.pid, *(child.pid for child in psutil.Process(p.pid).children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    return pids
