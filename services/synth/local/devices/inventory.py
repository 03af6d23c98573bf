"""The devices of a machine: its GPUs, the builds of torch and vLLM, its CPUs. Data only; `probe` reads it."""

from __future__ import annotations

from typing import Literal

import msgspec


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds memory of a GPU. used_bytes: None if the driver does not report it, as in a container."""

    pid: int
    name: str = ""
    used_bytes: int | None = None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or a MIG slice of one, that a process started here may use.

    id: as `CUDA_VISIBLE_DEVICES` names it in the order of the PCI bus: a number, or the uuid of a slice.
    memory_bytes, used_bytes, capability: None if unknown. capability: CUDA's, as (8, 0).
    """

    id: str
    uuid: str = ""
    name: str = "GPU"
    memory_bytes: int | None = None
    used_bytes: int | None = None
    capability: tuple[int, int] | None = None
    driver: str = ""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def label(self) -> str:
        """The GPU in a sentence: `GPU 0 (NVIDIA L4)`."""
        return f"{'MIG slice' if self.id.startswith('MIG') else 'GPU'} {self.id} ({self.name})"


class TorchBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The torch that trains and that the embedded engine runs on.

    cuda: the CUDA that it was built for, "" for a build for CPUs. available: whether it can use a GPU here.
    archs: the capabilities that it has kernels for, as (8, 0).
    """

    version: str
    cuda: str = ""
    available: bool = False
    archs: tuple[tuple[int, int], ...] = ()


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of this machine.

    gpus: usable by a process started here. hidden: how many more `CUDA_VISIBLE_DEVICES` leaves out.
    problem: why the GPUs could not be read, "" if they could. torch: None if it is not installed, or was not probed
    because there is no GPU. vllm: the build in vLLM's environment, "" for none.
    memory_bytes: of the CPUs.
    """

    gpus: tuple[Gpu, ...] = ()
    hidden: int = 0
    problem: str = ""
    torch: TorchBuild | None = None
    vllm: Literal["", "cpu", "cuda"] = ""
    cpus: int = 1
    memory_bytes: int = 0
