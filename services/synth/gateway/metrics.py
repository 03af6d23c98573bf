"""The gateway's metrics."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("synth_gateway_requests", "Requests", ["method", "route", "status"])
LATENCY = Histogram(
    "synth_gateway_first_byte_seconds",
    "Time to the first byte of the answer",
    ["method", "route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60),
)
STREAMS_OPEN = Gauge("synth_gateway_streams_open", "Open event streams")
STREAMS_LAGGED = Counter("synth_gateway_streams_lagged", "Times that a slow watcher was sent back to the log")
STREAM_READS = Counter("synth_gateway_stream_reads", "Reads of the log for event streams, which watchers share")
PROJECTOR_LAG = Gauge("synth_gateway_projector_lag_events", "Events of the log that are not in the read model")
NEWER_EVENTS = Counter("synth_gateway_newer_events", "Events that only a newer version of the gateway can read")
PROJECTED = Counter("synth_gateway_projected_events", "Events projected into the read model")
REBUILDS = Counter("synth_gateway_read_model_rebuilds", "Times that the read model was found damaged and made anew")
AUDIT_WRITTEN = Counter("synth_gateway_audit_records", "Records written into the audit stream", ["kind"])
AUDIT_LOST = Counter("synth_gateway_audit_records_lost", "Records that the audit stream lacks", ["kind"])
BUS_LOST = Counter("synth_gateway_bus_lost_records", "Dead letters and audit records that the bus has lost", ["stream"])
LOG_BYTES = Gauge("synth_gateway_log_bytes", "Bytes of the log")
DISK_FREE = Gauge("synth_gateway_disk_free_bytes", "Bytes that were free when a job or a file came last")
