"""What each process computes on, over a table of machines."""

from __future__ import annotations

from typing import Any

import pytest

from synth.console.errors import CliError, UsageProblem
from synth.local.devices.inventory import Gpu, Inventory
from synth.local.devices.options import DeviceOptions, read_device_options
from synth.local.devices.plan import DevicePlan, plan_devices
from tests.unit.local.devices.machines import (
    CPU_TORCH,
    CUDA,
    CUDA12,
    busy_h100,
    h100,
    l4,
    machine,
    mig_slice,
    t4,
    v100,
)

LAPTOP = Inventory(cpus=8, memory_bytes=16 << 30)


def summary(plan: DevicePlan) -> str:
    """A plan in a line: trainer | inference | engine."""
    trainer = plan.trainer
    gpus = ",".join(gpu.id for gpu in trainer.gpus) or "cpu"
    reference = f" ref {trainer.reference.id}" if trainer.reference is not None else ""
    serving = " ".join(f"{p.gpu.id if p.gpu else 'cpu'}:{p.dtype or 'auto'}" for p in plan.inference)
    how = " exact" if trainer.deterministic else ""
    return f"{gpus} {trainer.dtype}{how}{reference} | {serving} | {plan.engine}{' by turns' if plan.shared else ''}"


TABLE: list[tuple[str, Inventory, dict[str, Any], str]] = [
    ("a laptop without a GPU", LAPTOP, {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("a laptop with vLLM for CPUs", machine(vllm="cpu", torch=None), {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("vLLM asked for on a CPU", machine(vllm="cpu"), {"engine": "vllm"}, "cpu fp32 exact | cpu:auto | vllm"),
    ("one of 24 GB", machine(l4()), {}, "0 bf16 | 0:bf16 | vllm by turns"),
    ("one of 80 GB", machine(h100()), {}, "0 bf16 | 0:bf16 | vllm by turns"),
    ("one, asked for as one", machine(h100()), {"gpus_for_vllm": 1}, "0 bf16 | 0:bf16 | vllm by turns"),
    ("one, to the byte", machine(h100()), {"deterministic": True}, "0 bf16 exact | 0:bf16 | vllm by turns"),
    ("one, left alone", machine(h100()), {"device": "cpu"}, "cpu fp32 exact | cpu:auto | transformers"),
    ("two of 80 GB", machine(h100(0), h100(1)), {}, "1 bf16 | 0:bf16 | vllm"),
    ("two, embedded", machine(h100(0), h100(1)), {"engine": "transformers"}, "1 bf16 | 0:bf16 | transformers"),
    ("three", machine(*map(h100, range(3))), {}, "1,2 bf16 | 0:bf16 | vllm"),
    ("four", machine(*map(l4, range(4))), {}, "2,3 bf16 | 0:bf16 1:bf16 | vllm"),
    ("eight", machine(*map(h100, range(8))), {}, "4,5,6,7 bf16 | 0:bf16 1:bf16 2:bf16 3:bf16 | vllm"),
    (
        "eight, one of them for the reference",
        machine(*map(h100, range(8))),
        {"gpus_for_vllm": 2, "gpus_for_training": 4, "gpus_for_ref": 1},
        "4,5,6,7 bf16 ref 2 | 0:bf16 1:bf16 | vllm",
    ),
    ("four, the rest trains", machine(*map(l4, range(4))), {"gpus_for_vllm": 1}, "1,2,3 bf16 | 0:bf16 | vllm"),
    (
        "two slices of a card in MIG mode",
        machine(mig_slice(1), mig_slice(2)),
        {},
        "MIG-00000002 bf16 | MIG-00000001:bf16 | vllm",
    ),
    ("Volta, which has no bfloat16", machine(v100(), torch=CUDA12), {}, "0 fp32 | 0:fp32 | transformers by turns"),
    ("Volta, and a torch without its kernels", machine(v100()), {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("Turing", machine(t4()), {}, "0 fp32 | 0:fp32 | vllm by turns"),
    ("mixed cards", machine(t4(0), h100(1)), {}, "1 bf16 | 0:fp32 | vllm"),
    ("a pair and a small one", machine(h100(0), h100(1), t4(2)), {}, "0,1 bf16 | 2:fp32 | vllm"),
    ("a large one and two small", machine(l4(0), h100(1), l4(2)), {}, "1 bf16 | 0:bf16 2:bf16 | vllm"),
    ("torch for CPUs", machine(h100(), torch=CPU_TORCH), {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("no torch", machine(h100(), torch=None), {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("vLLM for CPUs beside a GPU", machine(h100(), vllm="cpu"), {}, "0 bf16 | 0:bf16 | transformers by turns"),
    ("no vLLM", machine(h100(), vllm=""), {}, "0 bf16 | 0:bf16 | transformers by turns"),
    ("one of two busy", machine(busy_h100(0), h100(1)), {}, "1 bf16 | 1:bf16 | vllm by turns"),
    ("busy, and wanted all the same", machine(busy_h100()), {"device": "cuda"}, "0 bf16 | 0:bf16 | vllm by turns"),
    ("one of eight visible", machine(h100(5), hidden=7), {}, "5 bf16 | 5:bf16 | vllm by turns"),
    ("none of eight visible", machine(hidden=8), {}, "cpu fp32 exact | cpu:auto | transformers"),
    ("a card that nothing is known of", machine(Gpu(id="0")), {}, "0 fp32 | 0:fp32 | vllm by turns"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("inventory", "options", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_a_machine_has_its_plan(inventory: Inventory, options: dict[str, Any], expected: str) -> None:
    assert summary(plan_devices(inventory, DeviceOptions(**options))) == expected


REFUSALS: list[tuple[str, Inventory, dict[str, Any], str, str]] = [
    ("no GPU", LAPTOP, {"gpus_for_vllm": 1}, "--gpus-for-vllm 1: no GPU on this machine", "leave it out"),
    ("no GPU for CUDA", LAPTOP, {"device": "cuda"}, "SYNTH_DEVICE=cuda: no GPU", "leave it out"),
    (
        "one, and two asked for",
        machine(h100()),
        {"gpus_for_vllm": 1, "gpus_for_training": 1},
        "--gpus-for-vllm 1, --gpus-for-training 1: 1 GPU cannot be divided into 1 for inference, 1 for training",
        "one GPU is shared by turns",
    ),
    (
        "two, and a reference",
        machine(h100(0), h100(1)),
        {"gpus_for_vllm": 1, "gpus_for_training": 1, "gpus_for_ref": 1},
        "--gpus-for-ref 1: 2 GPUs cannot be divided into 1 for inference, 1 for training, 1 for the reference",
        "ask for fewer",
    ),
    ("all for vLLM", machine(h100(0), h100(1)), {"gpus_for_vllm": 2}, "--gpus-for-vllm 2", "ask for fewer"),
    ("all busy", machine(busy_h100()), {}, "GPU 0 (NVIDIA H100 80GB HBM3) is used by pid 4711 (python)", "end"),
    ("a CPU with flags", machine(h100()), {"device": "cpu", "gpus_for_vllm": 1}, "SYNTH_DEVICE=cpu", "unset"),
    ("torch for CPUs", machine(h100(), torch=CPU_TORCH), {"gpus_for_training": 1}, "a build for CPUs", "docs/gpu.md"),
    ("bf16 on Turing", machine(t4()), {"dtype": "bf16"}, "SYNTH_DTYPE: GPU 0 (Tesla T4) has no bfloat16", "fp32"),
    ("vLLM on Volta", machine(v100(), torch=CUDA12), {"engine": "vllm"}, "--engine vllm: vLLM has no kernels", "use"),
    ("vLLM for CPUs", machine(h100(), vllm="cpu"), {"engine": "vllm"}, "--engine vllm", "make install-vllm"),
    ("vLLM for CUDA on a CPU", machine(), {"engine": "vllm"}, "--engine vllm", "leave --engine out"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("inventory", "options", "says", "fix"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_what_cannot_be_is_refused_by_its_flag(
    inventory: Inventory, options: dict[str, Any], says: str, fix: str
) -> None:
    with pytest.raises(CliError) as caught:
        plan_devices(inventory, DeviceOptions(**options))
    assert says in str(caught.value)
    assert fix in caught.value.problems[0].fix


@pytest.mark.parametrize(
    ("inventory", "note"),
    [
        (LAPTOP, "no GPU on this machine: training and inference compute on the CPU (8 cores, 16 GiB)"),
        (machine(h100(), torch=CPU_TORCH), "GPU 0 (NVIDIA H100 80GB HBM3), and torch 2.13.0+cpu is a build for CPUs"),
        (machine(hidden=8), "CUDA_VISIBLE_DEVICES hides every GPU"),
        (machine(problem="nvidia-smi does not answer: nothing after 60 s"), "nvidia-smi does not answer"),
        (machine(h100()), "training and inference take turns at GPU 0"),
        (machine(busy_h100(0), h100(1)), "is used by pid 4711 (python), 70 of 80 GiB: left alone"),
        (machine(h100(), vllm=""), "`make install-vllm` installs vLLM"),
        (machine(t4(0), t4(1), h100(2)), "GPUs that train together must be of one kind"),
    ],
)
def test_a_plan_says_what_the_user_should_know(inventory: Inventory, note: str) -> None:
    assert note in "\n".join(plan_devices(inventory, DeviceOptions()).notes)


def test_a_driver_that_torch_cannot_use_is_named() -> None:
    broken = CUDA.__class__(version="2.13.0", cuda="13.0", available=False)
    notes = plan_devices(machine(h100(), torch=broken), DeviceOptions()).notes
    assert "update the driver (580.65.06) to one for CUDA 13.0" in notes[1]


def test_settings_of_the_environment_are_wishes() -> None:
    environment = {"SYNTH_DEVICE": "cuda:0", "SYNTH_DETERMINISTIC": "TRUE", "SYNTH_DTYPE": "fp32"}
    assert read_device_options(environment) == DeviceOptions(device="cuda", deterministic=True, dtype="fp32")
    with pytest.raises(UsageProblem, match=r"SYNTH_DTYPE: SYNTH_DTYPE is 'fp8'.*fp32, bf16"):
        read_device_options({"SYNTH_DTYPE": "fp8"})
