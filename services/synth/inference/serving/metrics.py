"""The Prometheus metrics of the loaded engines, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from synth.inference.serving.model_pool import ModelPool
from synth.inference.serving.vllm_pool import VllmPool

_GAUGES = {
    "running": "Requests in the engine's batch",
    "waiting": "Requests that wait for room in the KV cache",
    "kv_tokens_used": "Tokens that the KV cache has reserved",
    "kv_tokens_budget": "Tokens that the KV cache can hold",
}
_COUNTERS = {
    "steps": "Decoding steps",
    "sampled_tokens": "Tokens sampled",
    "prefills": "Prompts that went through the model",
    "prompts_shared": "Requests that reused another's prompt",
    "cpu_seconds": "CPU time of the engine's own thread",
}


class EngineMetrics(Collector):
    """The metrics `synth_engine_…{model}` of every loaded engine; an engine's series end when it is unloaded.

    `synth_vllm_host_policies{base,host}`: the models on each vLLM host. vLLM exports its own metrics, `vllm:…`.
    """

    def __init__(self, model_pool: ModelPool, vllm_pool: VllmPool[Any]) -> None:
        self._model_pool = model_pool
        self._vllm_pool = vllm_pool

    def collect(self) -> Iterator[Metric]:
        stats = self._model_pool.stats()
        for kind, names in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, meaning in names.items():
                family = kind(f"synth_engine_{name}", meaning, labels=["model"])
                for model, reading in stats.items():
                    family.add_metric([model], getattr(reading, name))
                yield family
        shared = GaugeMetricFamily("synth_vllm_host_policies", "Models on a vLLM host", labels=["base", "host"])
        for (base, number), leases in self._vllm_pool.lease_counts().items():
            shared.add_metric([base, str(number)], leases)
        yield shared
