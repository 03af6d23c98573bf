"""What each process of the cluster is told of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.events.catalogue import SERVICES
from synth.inference.settings import InferenceSettings
from synth.local.cluster.plan import choose_ports, make_plan
from synth.local.cluster.state import ClusterState
from synth.local.devices.inventory import Inventory
from synth.local.devices.options import DeviceOptions
from synth.local.devices.plan import plan_devices
from synth.runtime.gpus import visible_gpus
from synth.trainer.settings import TrainerSettings
from synth.validator.settings import ValidatorSettings
from tests.unit.local.devices.machines import h100, machine


def environments(data: Path, inventory: Inventory, options: DeviceOptions | None = None) -> dict[str, dict[str, str]]:
    state = ClusterState(devices=plan_devices(inventory, options or DeviceOptions()))
    choose_ports(state, SERVICES, port=0)
    specs = make_plan(state, data, SERVICES).services
    assert len({spec.port for spec in specs if spec.name != "gateway"}) == len(specs) - 1
    return {spec.name: spec.env for spec in specs}


def test_what_is_visible_is_what_cuda_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for written, expected in (("2,0", ["2", "0"]), ("", []), ("1,-1,3", ["1"]), ("GPU-8a3f", ["GPU-8a3f"])):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", written)
        assert visible_gpus() == expected


def test_each_gpu_for_inference_has_a_process_of_its_own(tmp_path: Path) -> None:
    given = environments(tmp_path, machine(*map(h100, range(4))))
    assert [given[name]["CUDA_VISIBLE_DEVICES"] for name in ("inference", "inference-1", "trainer")] == [
        "0",
        "1",
        "2,3",
    ]
    replicas = [given[name]["SYNTH_REPLICA"] for name in ("inference", "inference-1")]
    assert replicas == ["inference-0", "inference-1"]
    assert given["inference-1"]["SYNTH_NATS_USER"] == "inference"
    assert given["verifier"]["SYNTH_SERVE_REPLICAS"] == "2"
    assert "SYNTH_TURN_FILE" not in given["trainer"]
    assert given["rollouts"].get("CUDA_VISIBLE_DEVICES") is None


def test_one_gpu_is_shared_by_a_turn_that_both_know(tmp_path: Path) -> None:
    given = environments(tmp_path, machine(h100()))
    assert given["inference"]["SYNTH_TURN_FILE"] == given["trainer"]["SYNTH_TURN_FILE"]
    assert (given["inference"]["SYNTH_DEVICE"], given["trainer"]["SYNTH_DEVICE"]) == ("cuda:0", "cuda")
    assert (given["inference"]["SYNTH_ENGINE"], given["trainer"]["SYNTH_DTYPE"]) == ("vllm", "bf16")


def test_the_settings_of_the_services_take_what_the_plan_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environments(tmp_path, machine(h100()))["trainer"].items():
        monkeypatch.setenv(name, value)
    trainer = TrainerSettings()
    assert (trainer.device, trainer.dtype, trainer.computes_deterministically) == ("cuda", "bf16", False)
    assert trainer.max_world_size == 1
    for name, value in environments(tmp_path, machine(h100()))["inference"].items():
        monkeypatch.setenv(name, value)
    inference = InferenceSettings()
    assert (inference.device, inference.engine_dtype, inference.engine) == ("cuda:0", "bf16", "vllm")
    assert inference.turn_file == trainer.turn_file


def test_a_reference_model_has_the_last_gpu_of_the_trainer(tmp_path: Path) -> None:
    options = DeviceOptions(gpus_for_training=2, gpus_for_ref=1)
    trainer = environments(tmp_path, machine(*map(h100, range(4))), options)["trainer"]
    assert trainer["CUDA_VISIBLE_DEVICES"] == "2,3,1"
    assert (trainer["SYNTH_RANKS"], trainer["SYNTH_REFERENCE_DEVICE"]) == ("2", "cuda:2")


def test_what_the_user_says_of_a_setting_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNTH_RANKS", "1")
    options = DeviceOptions(gpus_for_training=2, gpus_for_ref=1)
    assert environments(tmp_path, machine(*map(h100, range(4))), options)["trainer"]["SYNTH_RANKS"] == "1"


def test_a_machine_without_a_gpu_computes_as_the_services_do_by_themselves(tmp_path: Path) -> None:
    given = environments(tmp_path, Inventory())
    assert set(given) == set(SERVICES)
    assert given["trainer"]["SYNTH_DEVICE"] == given["inference"]["SYNTH_DEVICE"] == "cpu"
    assert (given["trainer"]["SYNTH_DTYPE"], given["trainer"]["SYNTH_DETERMINISTIC"]) == ("fp32", "true")


def test_the_validator_knows_what_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = environments(tmp_path, Inventory())["validator"]
    assert (on_cpu["SYNTH_TRAINER_DEVICE"], on_cpu["SYNTH_TRAINER_DTYPE"]) == ("cpu", "fp32")
    for name, value in environments(tmp_path, machine(*map(h100, range(4))))["validator"].items():
        monkeypatch.setenv(name, value)
    found = ValidatorSettings().trainer
    assert (found.device, found.dtype, found.ranks, found.memory) == ("cuda", "bf16", 2, h100().memory_bytes)
    monkeypatch.setenv("SYNTH_RANKS", "1")
    monkeypatch.delenv("SYNTH_TRAINER_RANKS")
    assert environments(tmp_path, machine(*map(h100, range(4))))["validator"]["SYNTH_TRAINER_RANKS"] == "1"
