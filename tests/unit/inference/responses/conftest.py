from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from synth.inference.chat.prompts import ChatFormat
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.tokenizers import load_tokenizer
from tests.unit.inference.api.test_openai_sdk import listening
from tests.unit.inference.one_model_service import KEY, Served


@pytest.fixture(scope="module")
async def taught(memorised_dir: Path) -> AsyncIterator[tuple[TransformersEngine, Path]]:
    engine = await TransformersEngine.load(memorised_dir, settings=EngineSettings(device="cpu", seed=0))
    yield engine, memorised_dir
    await engine.close()


@pytest.fixture
def served(taught: tuple[TransformersEngine, Path]) -> Served:
    engine, path = taught
    return Served(engine, ChatFormat(load_tokenizer(path)))


@pytest.fixture
async def client(taught: tuple[TransformersEngine, Path]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(*taught) as (url, _),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, _strict_response_validation=True) as made,
    ):
        yield made
