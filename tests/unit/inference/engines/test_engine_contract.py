"""The engine contract over the transformers engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from tests.unit.inference.engines.contract import *  # noqa: F403
from tests.unit.inference.engines.sleep_contract import *  # noqa: F403


@pytest.fixture(scope="session")
def tolerance() -> float:
    return 1e-5


@pytest.fixture
async def lora_engine(model_dir: Path) -> AsyncIterator[TransformersEngine]:
    loaded = await TransformersEngine.load(model_dir, settings=EngineSettings(device="cpu", seed=0))
    yield loaded
    await loaded.close()
