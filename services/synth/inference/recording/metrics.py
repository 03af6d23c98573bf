"""The Prometheus metrics of the recorder, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from synth.inference.recording.recorder import Recorder


class RecorderMetrics(Collector):
    """`synth_recorder_…`: the memory of open rollouts, and the completions that were sampled and not used."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        recorder = self._recorder
        yield GaugeMetricFamily("synth_recorder_bytes", "Bytes of the records of open rollouts", recorder.nbytes)
        yield CounterMetricFamily(
            "synth_recorder_late_records",
            "Completions that ended after their rollout was closed",
            recorder.late_records,
        )
        yield CounterMetricFamily(
            "synth_recorder_branch_breaks",
            "Calls that did not go on from their rollout's history",
            recorder.branch_breaks,
        )
