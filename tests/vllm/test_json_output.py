"""JSON output over vLLM: what is asked of the transformers engine, asked again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from tests.unit.inference.chat.test_json_output import *  # noqa: F403
from tests.unit.inference.memorised_replies import teach
from tests.unit.inference.tiny_model import save_tiny_model
from tests.vllm.conftest import SETTINGS


@pytest.fixture(scope="module")
def memorised_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memorised-qwen3")
    save_tiny_model(path, head_dim=32)
    teach(path)
    return path


@pytest.fixture(scope="module")
async def engine(memorised_dir: Path) -> AsyncIterator[VllmEngine]:
    host = await VllmHost.start(memorised_dir, SETTINGS, max_lora_rank=None)
    loaded = await VllmEngine.load(host)
    yield loaded
    await loaded.close()
    await host.close()
