"""What is asked of a vLLM engine process that ends, or never answers, and what a killed service leaves."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from synth.errors import Transient
from synth.inference.engines.settings import EngineSettings
from synth.inference.engines.vllm import metrics, process
from synth.inference.engines.vllm.adapters import make_host_folder
from synth.inference.engines.vllm.base_model import BaseModelInfo
from synth.inference.engines.vllm.host import VllmHost


@pytest.fixture
def llm() -> Any:
    """As much of an AsyncLLM as tells whether its process lives."""
    child = SimpleNamespace(alive=True)
    child.is_alive = lambda: child.alive
    manager = SimpleNamespace(processes=[child])
    return SimpleNamespace(
        errored=False, child=child, engine_core=SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))
    )


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_call_to_a_process_that_ends_meanwhile_ends_too(llm: Any) -> None:
    calling = asyncio.create_task(process.call(llm, never(), timeout=60))
    await asyncio.sleep(0)
    llm.child.alive = False
    with pytest.raises(Transient, match="the engine process has ended"):
        await asyncio.wait_for(calling, 10)


async def test_the_error_of_a_call_that_a_dead_process_has_refused_is_its_end(llm: Any) -> None:
    async def refused() -> None:
        llm.errored = True
        raise RuntimeError("dead")

    with pytest.raises(Transient, match="the engine process has ended"):
        await process.call(llm, refused(), timeout=60)


async def test_a_call_that_is_not_answered_in_time_is_given_up(llm: Any) -> None:
    with pytest.raises(Transient, match=r"did not answer in 0\.01 s"):
        await process.call(llm, never(), timeout=0.01)


async def test_what_a_living_process_answers_or_raises_comes_as_it_is(llm: Any) -> None:
    async def answers(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 7

    assert await process.call(llm, answers(None), timeout=60) == 7
    with pytest.raises(ValueError, match="rank"):
        await process.call(llm, answers(ValueError("rank")), timeout=60)


def test_the_adapters_of_a_killed_service_are_removed_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, mine, parents = (tmp_path / f"synth-vllm-{pid}-x" for pid in (gone.pid, os.getpid(), os.getppid()))
    for folder in (left, mine, parents):
        (folder / "adapter-1").mkdir(parents=True)
    assert {make_host_folder(), mine, parents} == set(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["sleep", "wake_up"])
async def test_a_process_that_does_not_follow_the_turns_is_ended_so_that_its_memory_is_free(
    llm: Any, call: str, tmp_path: Path
) -> None:
    async def done(**_: object) -> None:
        """It does what it is told."""

    async def broken(**_: object) -> None:
        raise RuntimeError("CUDA error")

    def shut_down(timeout: float) -> None:
        llm.child.alive = False

    llm.child.join = lambda timeout: None
    llm.sleep, llm.wake_up, llm.shutdown = done, done, shut_down
    llm.synth_registry, llm.synth_stats, llm.output_handler = CollectorRegistry(), metrics.HostStats(), None
    metrics.register_host(llm.synth_registry)
    model = BaseModelInfo(files=[], shapes={}, tied=True, vocabulary=0, stop_ids=[])
    host = VllmHost(llm, tmp_path, model, EngineSettings(), None)
    setattr(llm, call, broken)
    if call == "wake_up":
        await host.sleep()
    with pytest.raises(Transient, match=r"vLLM did not (fall asleep|wake up): RuntimeError: CUDA error"):
        await (host.wake() if call == "wake_up" else host.sleep())
    assert not llm.child.alive
    assert not host.healthy
    await host.sleep()  # there is nothing left to give back
