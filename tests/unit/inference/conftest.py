from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.local.tiny_models.qwen3_vl import make_tiny_qwen3_vl
from tests.unit.inference.memorised_replies import teach
from tests.unit.inference.tiny_model import plain_model, save_tiny_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-qwen3")
    save_tiny_model(path)
    return path


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Any:
    return plain_model(model_dir)


@pytest.fixture(scope="session")
def memorised_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    # The folder of a worker of xdist is beside the others'.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = shared / "memorised-qwen3"
    with open(shared / "memorised-qwen3.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = tmp_path_factory.mktemp("partial") / path.name
            save_tiny_model(partial)
            teach(partial)
            partial.rename(path)
    return path


@pytest.fixture(scope="session")
def vision_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Qwen3-VL."""
    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("vl") / "tiny-qwen3-vl").path


@pytest.fixture
async def engine(model_dir: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0))
    yield loaded
    await loaded.close()
