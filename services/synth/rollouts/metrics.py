"""The Prometheus metrics of the jobs that a rollouts process collects for, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricsCollector

from synth.rollouts.collection.collector import Collector


class ConcurrencyMetrics(MetricsCollector):
    """The metrics `synth_rollouts_…{job}` of every job that this process collects for; they end with the job."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        """collectors: by job id; the mapping may change between scrapes."""
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("synth_rollouts_running", "Rollouts at the task app", labels=["job"])
        limit = GaugeMetricFamily("synth_rollouts_limit", "Rollouts that may be at the task app", labels=["job"])
        halved = CounterMetricFamily("synth_rollouts_halved", "Times the limit was halved", labels=["job", "cause"])
        for job, collector in list(self._collectors.items()):
            running.add_metric([job], collector.concurrency.in_use)
            limit.add_metric([job], collector.concurrency.limit)
            for overload, times in collector.concurrency.halved.items():
                halved.add_metric([job, overload.value], times)
        yield from (running, limit, halved)
