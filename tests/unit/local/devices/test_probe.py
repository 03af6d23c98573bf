"""The probe asks a real program: a stand-in for `nvidia-smi` that answers as the real one does on several machines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from synth.cli.app import app
from synth.local.devices import probe
from synth.local.devices.inventory import Gpu
from synth.local.devices.options import DeviceOptions
from synth.local.devices.plan import plan_devices
from synth.local.devices.probe import GpuList, read_gpus, read_inventory
from tests.unit.local.devices.nvidia_smi import (
    A100_MIG,
    A100_WITHOUT_SLICES,
    H100S,
    HUNG,
    MISMATCH,
    NO_DEVICES,
    NO_DRIVER,
    OLD_DRIVER,
    OTHER_ANSWER,
    RTX_4090,
    UNIFIED,
    Smi,
    program,
)

_MIB = 1 << 20
_TORCH = {"version": "2.13.0", "cuda": "13.0", "available": True, "archs": ["sm_75", "sm_80", "sm_90a"], "gpus": []}


@dataclass(frozen=True)
class Machine:
    """A machine whose `nvidia-smi` is a stand-in."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def has(self, smi: Smi) -> Path:
        return smi.install(self.folder / "bin", self.monkeypatch)

    def read(self, smi: Smi) -> GpuList:
        self.has(smi)
        return read_gpus()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.chdir(tmp_path)
    return Machine(tmp_path, monkeypatch)


def test_two_cards_of_which_others_hold_one(machine: Machine) -> None:
    free, busy = machine.read(H100S).gpus
    assert (free.id, free.name, free.capability, free.driver) == ("0", "NVIDIA H100 80GB HBM3", (9, 0), "580.65.06")
    assert (free.memory_bytes, free.used_bytes, free.processes) == (81559 * _MIB, _MIB, ())
    (holder,) = busy.processes
    assert (holder.pid, holder.name, holder.used_bytes) == (4711, "python3", 71220 * _MIB)


def test_a_desktops_card_without_mig_and_holders_of_any_name(machine: Machine) -> None:
    (gpu,) = machine.read(RTX_4090).gpus
    assert (gpu.label, gpu.capability) == ("GPU 0 (NVIDIA GeForce RTX 4090)", (8, 9))
    assert [(p.pid, p.name, p.used_bytes) for p in gpu.processes] == [
        (1207, "Xorg", None),
        (2301, "[Not Found]", 300 * _MIB),
        (2302, "my app, the new one", 10 * _MIB),
    ]


def test_a_card_in_mig_mode_is_its_slices(machine: Machine) -> None:
    large, small, whole = machine.read(A100_MIG).gpus
    assert large.id == large.uuid == "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
    assert (large.memory_bytes, small.memory_bytes) == (40 << 30, 10 << 30)
    assert large.label == f"MIG slice {large.id} (NVIDIA A100-SXM4-80GB MIG 3g.40gb)"
    assert (whole.id, whole.memory_bytes) == ("1", 81920 * _MIB)


def test_memory_that_the_driver_does_not_tell_is_unknown(machine: Machine) -> None:
    assert machine.read(UNIFIED).gpus == (
        Gpu(
            id="0",
            uuid="GPU-77778888-aaaa-bbbb-cccc-ddddeeeeffff",
            name="NVIDIA GB10",
            capability=(12, 1),
            driver="580.95.05",
        ),
    )


@pytest.mark.parametrize(
    ("smi", "says"),
    [
        (NO_DRIVER, "nvidia-smi failed: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        (MISMATCH, "nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch; NVML library"),
        (OLD_DRIVER, 'nvidia-smi failed: Field "compute_cap" is not a valid field to query.'),
        (Smi(before="exit 15"), "nvidia-smi failed: status 15"),
        (OTHER_ANSWER, "nvidia-smi answers something else (NVIDIA H100, 81559 MiB)"),
        (A100_WITHOUT_SLICES, "every GPU is in MIG mode and has no slice; `nvidia-smi mig -cgi` makes them"),
    ],
    ids=["no driver", "another driver", "old driver", "silent", "another answer", "no slices"],
)
def test_a_machine_that_cannot_say_what_it_has_says_why(machine: Machine, smi: Smi, says: str) -> None:
    found = machine.read(smi)
    assert found.gpus == ()
    assert found.problem.startswith(says)


def test_a_driver_without_a_gpu_is_no_problem(machine: Machine) -> None:
    assert machine.read(NO_DEVICES) == GpuList(())


def test_a_tool_that_hangs_is_given_up_and_ended(machine: Machine) -> None:
    machine.monkeypatch.setattr(probe, "_SMI_S", 0.5)
    assert machine.read(HUNG).problem == "nvidia-smi does not answer: nothing after 0.5 s"
    left = [p for p in psutil.Process().children(recursive=True) if "sleep" in p.name() and p.status() != "zombie"]
    assert psutil.wait_procs(left, timeout=10)[1] == []


def test_a_tool_that_cannot_be_run_says_so(machine: Machine) -> None:
    machine.has(H100S)
    (machine.folder / "bin" / "nvidia-smi").write_text("#!/nowhere/sh\n")
    assert read_gpus().problem == "nvidia-smi cannot be run: No such file or directory"


def test_what_cuda_may_not_see_is_counted_and_left_out(machine: Machine) -> None:
    machine.has(H100S)
    machine.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = read_gpus()
    assert ([gpu.id for gpu in found.gpus], found.hidden) == (["1"], 1)


@pytest.mark.parametrize(
    ("smi", "vllm", "expected"),
    [
        (H100S, "cuda", ("cuda", "vllm", "bf16", True)),  # the other card is somebody else's
        (RTX_4090, "", ("cuda", "transformers", "bf16", True)),
        (A100_MIG, "cuda", ("cuda", "vllm", "bf16", False)),
        (HUNG, "cuda", ("cpu", "transformers", "fp32", False)),
    ],
    ids=["H100", "4090", "MIG", "hung"],
)
def test_what_the_probe_finds_is_what_the_plan_decides_on(
    machine: Machine, smi: Smi, vllm: str, expected: tuple[str, str, str, bool]
) -> None:
    """torch and vLLM are stand-ins too: programs that answer as builds for CUDA do."""
    machine.monkeypatch.setattr(probe, "_SMI_S", 5.0 if smi is not HUNG else 0.5)
    machine.has(smi)
    machine.monkeypatch.setattr(probe.sys, "executable", str(program(machine.folder / "python", json.dumps(_TORCH))))
    inventory = read_inventory(program(machine.folder / "vllm-python", vllm))
    plan = plan_devices(inventory, DeviceOptions())
    assert (plan.device, plan.engine, plan.trainer.dtype, plan.shared) == expected


def test_doctor_says_that_a_hung_tool_is_the_problem_and_asks_it_once(machine: Machine) -> None:
    calls = machine.has(HUNG)
    machine.monkeypatch.setattr(probe, "_SMI_S", 0.5)
    run = CliRunner().invoke(app, ["doctor", "-o", "json"])
    (found,) = [check for check in json.loads(run.stdout) if check["check"] == "GPUs"]
    assert found["result"] == "warn"
    assert found["found"].startswith("nvidia-smi does not answer: nothing after 0.5 s: training and inference compute")
    assert "run nvidia-smi by itself" in found["fix"]
    assert len(calls.read_text().splitlines()) == 1


def test_doctor_and_up_name_the_card_and_what_torch_lacks_to_use_it(machine: Machine) -> None:
    """The torch of these tests is the real one, a build for CPUs."""
    machine.has(H100S)
    run = CliRunner().invoke(app, ["doctor", "-o", "json"])
    (found,) = [check for check in json.loads(run.stdout) if check["check"] == "GPUs"]
    assert found["result"] == "warn"
    assert "0 NVIDIA H100 80GB HBM3, 0.0/79.6 GiB, free" in found["found"]
    assert "1 NVIDIA H100 80GB HBM3, 69.6/79.6 GiB, pid 4711 python3" in found["found"]
    assert "is a build for CPUs" in found["found"]
    refused = CliRunner().invoke(app, ["up", "--gpus-for-vllm", "1"])
    assert refused.exit_code == 1
    said = " ".join(str(refused.exception).split() if refused.exception else refused.stderr.split())
    assert "--gpus-for-vllm 1: 2 GPUs, and torch" in said
    assert "is a build for CPUs" in said
