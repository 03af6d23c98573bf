"""The metrics of vLLM, re-exported to Prometheus as `vllm:…`, and the figures of them that `EngineStats` needs.

vLLM registers its metrics once a process, and a second AsyncLLM unregisters the metrics of the first. So each host has
a registry of its own, and one collector exports them all, with the label `model_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class HostStats:
    """The last figures of a host. kv_usage: the fraction of the KV cache in use. steps, sampled: since its start.

    on_step: called after each step with the number of requests that wait.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    steps: int = 0
    sampled: int = 0
    on_step: Callable[[int], None] = lambda waiting: None


class _HostsCollector(Collector):
    def __init__(self) -> None:
        self.registries: list[CollectorRegistry] = []

    def describe(self) -> list[Metric]:
        return []  # vLLM defines the metrics later

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for registry in self.registries:
            for family in registry.collect():
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        yield from families.values()


_hosts = _HostsCollector()


def register_host(registry: CollectorRegistry) -> None:
    """Add a host's metrics to this process's."""
    if not _hosts.registries:
        REGISTRY.register(_hosts)
    _hosts.registries.append(registry)


def unregister_host(registry: CollectorRegistry) -> None:
    """Remove the metrics of a host that was closed."""
    _hosts.registries.remove(registry)
    if not _hosts.registries:
        REGISTRY.unregister(_hosts)


def make_stat_logger(registry: CollectorRegistry, stats: HostStats) -> type[Any]:
    """Make the stat logger class of one AsyncLLM, which fills `registry` and `stats`, and calls `stats.on_step`."""
    from vllm.v1.metrics.loggers import PrometheusStatLogger  # pyright: ignore[reportMissingImports]

    class HostStatLogger(PrometheusStatLogger):
        _gauge_cls = partial(Gauge, registry=registry)
        _counter_cls = partial(Counter, registry=registry)
        _histogram_cls = partial(Histogram, registry=registry)

        def record(self, scheduler_stats: Any, iteration_stats: Any, *more: Any, **named: Any) -> None:
            super().record(scheduler_stats, iteration_stats, *more, **named)
            if scheduler_stats is not None:
                stats.running = scheduler_stats.num_running_reqs
                stats.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
                stats.kv_usage = scheduler_stats.kv_cache_usage
                stats.steps += 1
                stats.on_step(stats.waiting)
            if iteration_stats is not None:
                stats.sampled += iteration_stats.num_generation_tokens

    return HostStatLogger
