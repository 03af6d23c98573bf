"""The delay until a watcher sees an event: `synthctl jobs watch -o json`, beside the server's own time of each event.

.venv/bin/python -m benchmarks.watch
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from benchmarks.cluster_run import clean_environment, running_cluster
from benchmarks.workload import DEMO

_LIMIT_MS = 100.0


def main() -> int:
    """Follow one RL job of the demo's size; exit code 1 when the median is past the limit."""
    workload = replace(DEMO, steps=20)
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder)) as cluster:
        workload.make_model(cluster.models)
        toml = Path(folder) / "job.toml"
        toml.write_text(workload.toml(cluster.task_url))
        late_ms = watch(Path(folder), cluster.submit(toml))
    late_ms.sort()
    median, p99 = statistics.median(late_ms), late_ms[int(len(late_ms) * 0.99)]
    Console().print(
        f"{len(late_ms)} live events: shown {median:.1f} ms after they were published (median), "
        f"{p99:.1f} ms (p99), {late_ms[-1]:.1f} ms (worst); limit of the median {_LIMIT_MS:.0f} ms"
    )
    return int(median > _LIMIT_MS)


def watch(folder: Path, job_id: str) -> list[float]:
    """Milliseconds from each event's time to its line, for the events that were published under the watcher's eyes."""
    program = str(Path(sys.executable).parent / "synthctl")
    begun = time.time()
    watcher = subprocess.Popen(
        [program, "jobs", "watch", job_id, "-o", "json"],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert watcher.stdout is not None
    late: list[float] = []
    connected = False
    for line in watcher.stdout:
        now = time.time()
        published = datetime.fromisoformat(json.loads(line)["time"]).timestamp()
        # Events from before the watcher connected are history, and are not measured.
        connected = connected or published > begun + 1.0
        if connected:
            late.append((now - published) * 1e3)
    watcher.wait(10)
    return late


if __name__ == "__main__":
    sys.exit(main())
