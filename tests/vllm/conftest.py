"""One vLLM host of each kind for the session: starting one costs seconds. Run with .venv-vllm/bin/python -m pytest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from synth.inference.engines.protocol import Engine
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from tests.unit.inference.tiny_model import plain_model, save_tiny_model

SETTINGS = EngineSettings(kv_budget_bytes=64 << 20, max_adapters=12, max_batch_adapters=4, seed=0)
_figures: list[str] = []


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3 whose heads are as wide as vLLM wants them on a CPU."""
    path = tmp_path_factory.mktemp("tiny-qwen3")
    save_tiny_model(path, head_dim=32)
    return path


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Any:
    return plain_model(model_dir)


@pytest.fixture(scope="session")
def tolerance() -> float:
    return 1e-4


@pytest.fixture(scope="session")
async def full_host(model_dir: Path) -> AsyncIterator[VllmHost]:
    host = await VllmHost.start(model_dir, SETTINGS, max_lora_rank=None)
    yield host
    await host.close()


@pytest.fixture(scope="session")
async def lora_host(model_dir: Path) -> AsyncIterator[VllmHost]:
    host = await VllmHost.start(model_dir, SETTINGS, max_lora_rank=8)
    yield host
    await host.close()


@pytest.fixture
async def full(full_host: VllmHost) -> AsyncIterator[VllmEngine]:
    """A policy whose full weights are swapped, version 0."""
    engine = await VllmEngine.load(full_host)
    yield engine
    await engine.close()


@pytest.fixture
async def lora(lora_host: VllmHost) -> AsyncIterator[VllmEngine]:
    """The base, version 0, on a host of adapters."""
    engine = await VllmEngine.load(lora_host)
    yield engine
    await engine.close()


@pytest.fixture
async def transformers(model_dir: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0))
    yield loaded
    await loaded.close()


@pytest.fixture(params=["full", "transformers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["lora", "transformers"])
def lora_engine(request: pytest.FixtureRequest) -> Engine:
    return request.getfixturevalue(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Importing vLLM takes 15 s of CPU, which a busy machine makes minutes of; it counts for the first test."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def report() -> Callable[[str], None]:
    """Says a figure at the end of the test run."""
    return _figures.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _figures:
        terminalreporter.write_line(line)
