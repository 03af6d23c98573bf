"""What an engine tells Prometheus."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from synth.inference.engines.protocol import SamplingParams
from synth.inference.engines.sampling_time import SamplingTime
from synth.inference.engines.transformers import TransformersEngine
from synth.inference.serving.metrics import EngineMetrics
from synth.inference.serving.vllm_pool import VllmPool


class OneModel:
    """Stands for the loaded models of a process."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine

    def stats(self) -> dict[str, object]:
        return {"job_1": self._engine.stats()}


class Idle:
    healthy = True

    async def close(self) -> None:
        """Nothing runs."""


async def start_host() -> Idle:
    return Idle()


async def test_metrics_name_the_model_and_count_what_was_sampled(engine: TransformersEngine) -> None:
    before = engine.stats()
    params = SamplingParams(max_tokens=5, banned=(2,))
    _ = [delta async for delta in engine.generate([5, 6, 7], params, request_id="m", time=SamplingTime(30))]
    vllm_pool = VllmPool(lambda folder, rank: start_host(), max_rank=64)
    await vllm_pool.acquire(Path("/models/tiny"), rank=8)
    await vllm_pool.acquire(Path("/models/tiny"), rank=0)
    registry = CollectorRegistry()
    registry.register(EngineMetrics(OneModel(engine), vllm_pool))  # type: ignore[arg-type]
    told = dict(
        line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
    )
    sampled = float(told['synth_engine_sampled_tokens_total{model="job_1"}'])
    assert 1 <= sampled - before.sampled_tokens <= 5
    assert float(told['synth_engine_running{model="job_1"}']) == 0
    assert float(told['synth_vllm_host_policies{base="tiny",host="1"}']) == 2
    assert float(told['synth_engine_cpu_seconds_total{model="job_1"}']) > before.cpu_seconds
