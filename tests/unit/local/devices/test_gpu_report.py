"""What `up`, `status` and `doctor` say of each GPU: who has it, whose turn it is, and its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from synth.cli.app import app
from synth.local.cluster.gpu_report import planned_gpus, report_gpus, turn_file
from synth.local.cluster.state import ClusterState, ProcessState, StateFile
from synth.local.devices import probe
from synth.local.devices.inventory import Gpu, GpuProcess, Inventory
from synth.local.devices.options import DeviceOptions
from synth.local.devices.plan import plan_devices
from synth.local.devices.probe import GpuList
from synth.runtime.device_turn import DeviceTurn
from tests.unit.local.devices.machines import h100, machine
from tests.unit.local.devices.nvidia_smi import H100S, HUNG, RTX_4090


@pytest.fixture
def engine() -> Iterator[subprocess.Popen[bytes]]:
    """A process that this one has started, as an inference process starts vLLM's."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def running(inventory: Inventory, options: DeviceOptions | None = None) -> ClusterState:
    """A cluster on this machine, whose one process is that of the test."""
    mine = ProcessState(name="inference", port=1, pid=os.getpid(), started=psutil.Process().create_time())
    return ClusterState(devices=plan_devices(inventory, options or DeviceOptions()), processes=[mine])


def holders(state: ClusterState | None, data: Path, inventory: Inventory) -> list[str]:
    return [report.holder for report in report_gpus(state, data, GpuList(inventory.gpus))]


def test_without_a_cluster_a_gpu_is_free_or_anothers(tmp_path: Path) -> None:
    other = h100(1, used=40.0, processes=(GpuProcess(pid=4711, name="python3"),))
    both = machine(h100(0), other)
    assert holders(None, tmp_path, both) == ["free", "pid 4711 python3"]
    stopped = running(both)
    stopped.processes = [ProcessState(name="inference", port=1)]
    assert holders(stopped, tmp_path, both) == ["free", "pid 4711 python3"]


def test_each_gpu_of_a_cluster_is_named_with_the_process_that_has_it(tmp_path: Path) -> None:
    eight = machine(*map(h100, range(8)))
    state = running(eight, DeviceOptions(gpus_for_vllm=2, gpus_for_training=4, gpus_for_ref=1))
    assert holders(state, tmp_path, eight) == [
        "inference",
        "inference-1",
        "reference",
        "free",
        "trainer",
        "trainer",
        "trainer",
        "trainer",
    ]


def test_what_the_clusters_own_processes_have_started_is_not_somebody_elses(
    tmp_path: Path, engine: subprocess.Popen[bytes]
) -> None:
    held = (GpuProcess(pid=engine.pid, name="VLLM::EngineCore"), GpuProcess(pid=4711, name="blender"))
    two = machine(h100(0, processes=held), h100(1))
    assert holders(running(two), tmp_path, two) == ["inference, pid 4711 blender", "trainer"]


@pytest.mark.parametrize(("who", "said"), [("trainer", "trainer"), ("inference-0", "inference")])
def test_a_shared_gpu_is_whoevers_turn_it_is(tmp_path: Path, who: str, said: str) -> None:
    one = machine(h100(0))
    turn = DeviceTurn(turn_file(tmp_path), who=who)
    assert holders(running(one), tmp_path, one) == ["shared: trainer, inference"]
    assert turn.try_take()
    assert holders(running(one), tmp_path, one) == [f"shared: {said}'s turn"]
    turn.release()
    assert holders(running(one), tmp_path, one) == ["shared: trainer, inference"]


def test_up_names_each_gpu_of_its_plan_once_and_leaves_the_others_out() -> None:
    four = machine(*map(h100, range(4)))
    given = planned_gpus(plan_devices(four, DeviceOptions(gpus_for_vllm=1, gpus_for_training=2)))
    assert [(gpu.id, gpu.holder) for gpu in given] == [("0", "inference"), ("2", "trainer"), ("3", "trainer")]
    (shared,) = planned_gpus(plan_devices(machine(h100(0)), DeviceOptions()))
    assert (shared.holder, shared.memory) == ("shared: trainer, inference", "0.4/79.6 GiB")


def test_memory_that_nobody_knows_is_a_question_mark() -> None:
    (report,) = report_gpus(None, Path("nowhere"), GpuList((Gpu(id="0"),)))
    assert (report.memory, report.holder) == ("?/? GiB", "free")


def test_status_shows_the_gpus_of_the_machine_and_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    RTX_4090.install(tmp_path / "bin", monkeypatch)
    run = CliRunner().invoke(app, ["status"])
    assert run.exit_code == 7  # no cluster runs here
    said = " ".join(run.stderr.split())
    assert "GPU 0 NVIDIA GeForce RTX 4090 0.5/24.0 GiB pid 1207 Xorg, pid 2301 [Not Found]" in said
    H100S.install(tmp_path / "bin", monkeypatch)
    StateFile(tmp_path / ".synth").path.parent.mkdir()
    StateFile(tmp_path / ".synth").write(running(machine(h100(0), h100(1))))
    report = json.loads(CliRunner().invoke(app, ["status", "-o", "json"]).stdout)
    assert [(gpu["id"], gpu["holder"]) for gpu in report["gpus"]] == [
        ("0", "inference"),
        ("1", "trainer, pid 4711 python3"),
    ]
    assert report["gpu_problem"] == ""


def test_status_says_that_the_gpus_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "_SMI_S", 0.5)
    HUNG.install(tmp_path / "bin", monkeypatch)
    run = CliRunner().invoke(app, ["status"])
    assert "nvidia-smi does not answer: nothing after 0.5 s" in " ".join(run.stderr.split())
