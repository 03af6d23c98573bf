"""Machines as `synth.local.devices.probe` would find them."""

from __future__ import annotations

from typing import Any

from synth.local.devices.inventory import Gpu, GpuProcess, Inventory, TorchBuild

CUDA = TorchBuild(
    version="2.13.0", cuda="13.0", available=True, archs=((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
)
#: A build for CUDA 12, which still has kernels for Volta.
CUDA12 = TorchBuild(version="2.13.0+cu126", cuda="12.6", available=True, archs=((7, 0), (7, 5), (8, 0), (9, 0)))
CPU_TORCH = TorchBuild(version="2.13.0+cpu")


def card(number: int, name: str, gib: float, capability: tuple[int, int], *, used: float = 0.4, **rest: Any) -> Gpu:
    """A GPU of so many GiB."""
    return Gpu(
        id=str(number),
        uuid=f"GPU-{number:08x}",
        name=name,
        memory_bytes=int(gib * 2**30),
        used_bytes=int(used * 2**30),
        capability=capability,
        driver="580.65.06",
        **rest,
    )


def l4(number: int = 0) -> Gpu:
    return card(number, "NVIDIA L4", 22.5, (8, 9))


def h100(number: int = 0, **rest: Any) -> Gpu:
    return card(number, "NVIDIA H100 80GB HBM3", 79.6, (9, 0), **rest)


def busy_h100(number: int = 0) -> Gpu:
    return h100(number, used=70.0, processes=(GpuProcess(pid=4711, name="python", used_bytes=int(69.6 * 2**30)),))


def v100(number: int = 0) -> Gpu:
    return card(number, "Tesla V100-SXM2-16GB", 16, (7, 0))


def t4(number: int = 0) -> Gpu:
    return card(number, "Tesla T4", 15, (7, 5))


def mig_slice(number: int) -> Gpu:
    uuid = f"MIG-{number:08x}"
    return Gpu(id=uuid, uuid=uuid, name="NVIDIA A100-SXM4-80GB MIG 3g.40gb", memory_bytes=40 << 30, capability=(8, 0))


def machine(*gpus: Gpu, **rest: Any) -> Inventory:
    """A machine with CUDA's torch and vLLM, unless `rest` says otherwise."""
    return Inventory(**({"gpus": gpus, "torch": CUDA, "vllm": "cuda", "cpus": 16, "memory_bytes": 128 << 30} | rest))
