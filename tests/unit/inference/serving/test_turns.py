"""Requests at a device that is shared by turns, with a real engine and the lock of a real turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.serving.turns import SharedDevice, TurnTakingEngine
from synth.runtime.device_turn import DeviceTurn

REQUEST = "req"


class LateAbortDevice(SharedDevice):
    """A device at which an abort comes when the request has its turn, and the engine does not know it yet."""

    engine: TurnTakingEngine | None = None

    @asynccontextmanager
    async def use(self, *, pausable: bool = False) -> AsyncGenerator[None]:
        if pausable and self.engine is not None:
            self.engine.abort(REQUEST)
        async with super().use(pausable=pausable):
            yield


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "turn"


@pytest.fixture
async def device(file: Path) -> AsyncIterator[LateAbortDevice]:
    made = LateAbortDevice(file, who="inference", turn_s=0.0, wait_s=20.0)
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def engine(device: LateAbortDevice, model_dir: Path) -> AsyncIterator[TurnTakingEngine]:
    settings = EngineSettings(device="cpu", kv_budget_bytes=1 << 20)
    async with device.use():
        loaded = await TransformersEngine.load(model_dir, version=0, settings=settings)
        made = TurnTakingEngine(loaded, device)
    yield made
    await made.close()


async def sample(engine: TurnTakingEngine) -> tuple[int, str | None]:
    """How many tokens a request sampled, and why it ended."""
    params = SamplingParams(max_tokens=4)
    tokens, reason = 0, None
    deltas = engine.generate([1, 2, 3], params, request_id=REQUEST, time=SamplingTime(20))
    assert isinstance(deltas, AsyncGenerator)
    async for delta in deltas:
        tokens, reason = tokens + len(delta.token_ids), delta.finish_reason
    return tokens, reason


async def test_a_request_waits_until_the_trainer_lets_go_of_its_turn(engine: TurnTakingEngine, file: Path):
    trainer = DeviceTurn(file, who="trainer")
    await asyncio.to_thread(trainer.take, wait_s=20)
    asked = asyncio.ensure_future(sample(engine))
    await asyncio.sleep(0)  # it has begun to wait
    assert engine.stats().running == 1
    trainer.release()
    tokens, reason = await asked
    assert tokens
    assert reason in ("length", "stop")


async def test_a_request_that_is_aborted_while_it_waits_ends_without_a_token(engine: TurnTakingEngine, file: Path):
    trainer = DeviceTurn(file, who="trainer")
    await asyncio.to_thread(trainer.take, wait_s=20)
    asked = asyncio.ensure_future(sample(engine))
    await asyncio.sleep(0)  # it has begun to wait
    assert engine.stats().running == 1
    engine.abort(REQUEST)
    assert await asked == (0, "abort")
    trainer.release()


async def test_an_abort_that_comes_with_the_turn_is_not_lost(engine: TurnTakingEngine, device: LateAbortDevice):
    device.engine = engine
    assert await sample(engine) == (0, "abort")
