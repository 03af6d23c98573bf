"""Engine processes end: when their host is closed, when they are killed, and when the service is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from synth.errors import Transient
from synth.inference.engines.vllm import selftest
from synth.inference.engines.vllm.engine import VllmEngine
from synth.inference.engines.vllm.host import VllmHost
from tests.unit.inference.engines.completions import complete, endless, prompt, start_completions
from tests.unit.inference.engines.expected import max_error
from tests.unit.inference.tiny_model import (
    lora_model,
    plain_logprobs,
    plain_model,
    write_adapter_policy,
    write_full_policy,
)
from tests.vllm.conftest import SETTINGS

SERVICE = """
import asyncio, sys
from pathlib import Path
from synth.inference.engines.vllm.host import VllmHost
from tests.vllm.conftest import SETTINGS

async def main():
    host = await VllmHost.start(Path(sys.argv[1]), SETTINGS, max_lora_rank=8)
    print(host.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
async def small(model_dir: Path) -> AsyncIterator[VllmHost]:
    """A host with room for 256 tokens: a token takes a KiB in this model, and a block is vLLM's own."""
    settings = replace(SETTINGS, kv_budget_bytes=(256 + 32) << 10)
    host = await VllmHost.start(model_dir, settings, max_lora_rank=8)
    yield host
    await host.close()


async def test_requests_beyond_the_kv_budget_wait_their_turn_and_all_finish(
    small: VllmHost, reference: Any, tolerance: float
) -> None:
    engine = await VllmEngine.load(small)
    assert engine.max_context == 256
    prompts = [prompt(i, 20) for i in range(6)]
    results = await asyncio.gather(*(complete(engine, p, endless(100)) for p in prompts))
    for p, result in zip(prompts, results, strict=True):
        assert len(result.token_ids) == 100
        assert max_error(result, plain_logprobs(reference, p, result.token_ids)) <= tolerance
    assert engine.stats().kv_tokens_budget == 256 + 32
    await engine.close()


async def test_when_the_engine_process_is_killed_everyone_hears_of_it(small: VllmHost) -> None:
    engine = await VllmEngine.load(small)
    tasks = await start_completions(engine, [prompt(1, 8), prompt(2, 8)], 200)
    os.kill(small.pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(Transient, match="the engine process has ended"):
            await task
    assert not small.healthy
    with pytest.raises(Transient, match="the engine process has ended"):
        await complete(engine, prompt(1, 4), endless(5))
    await small.close()
    assert not small.engines


@pytest.mark.parametrize("kind", ["lora", "full"])
async def test_a_swap_during_which_the_engine_process_is_killed_is_another_engines_to_do(
    kind: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await VllmHost.start(model_dir, SETTINGS, max_lora_rank=8 if kind == "lora" else None)
    engine = await VllmEngine.load(host)
    file = (
        write_adapter_policy(tmp_path, lora_model(model_dir), 1)
        if kind == "lora"
        else write_full_policy(tmp_path, plain_model(model_dir), 1)
    )

    async def leave_it(_: VllmHost) -> None:
        """The request before a swap would hear of the end first."""

    monkeypatch.setattr(selftest, "fill_prefix_cache", leave_it)
    os.kill(host.pid, signal.SIGSTOP)
    swap = asyncio.create_task(engine.update_weights(file, 1))
    async with asyncio.timeout(30):
        while not (host.weights_replaced or len(host.adapters)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    os.kill(host.pid, signal.SIGKILL)
    with pytest.raises(Transient, match="the engine process has ended"):
        await asyncio.wait_for(swap, 30)
    await host.close()


def test_an_engine_process_does_not_outlive_a_killed_service(model_dir: Path) -> None:
    root = Path(__file__).parents[2]
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, str(model_dir)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        engine = psutil.Process(int(service.stdout.readline()))
        fork_server = engine.parent()
        assert fork_server is not None
        assert fork_server.ppid() == service.pid
    finally:
        service.kill()
        service.wait(10)
    engine.wait(30)
    fork_server.wait(30)
