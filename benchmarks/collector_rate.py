"""The rollouts a second of one collector, with a model that costs next to nothing: replies of one token.

`python -m benchmarks.collector_rate [--groups 64] [--steps 6]`. A real cluster and a task app; each step collects
`groups` x 8 rollouts at once. Exit code 1: a rollout is missing from the log, or is in it twice, or came too late.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.cluster_run import Measured, measure, reader, running_cluster
from benchmarks.workload import DEMO, Workload
from synth.bus.replay import replay
from synth.events import RolloutCompleted
from synth.local.cluster.state import ClusterState

console = Console()


def main() -> int:
    """`python -m benchmarks.collector_rate`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    workload = replace(DEMO, groups=options.groups, steps=options.steps, warmup=1, max_tokens=1)
    with tempfile.TemporaryDirectory(prefix="synth-rate-") as scratch:
        folder = Path(scratch)
        workload.make_model(folder / ".synth" / "models")
        with running_cluster(folder) as cluster:
            measured = asyncio.run(measure(cluster, workload))
            in_log = asyncio.run(_rollouts_in_log(cluster.state()))
    return report(workload, measured, in_log)


async def _rollouts_in_log(state: ClusterState) -> Counter[str]:
    bus = await reader(state)
    try:
        recorded = await replay(bus, ["rollout.completed.*.*"])
    finally:
        await bus.close()
    return Counter(r.event.rollout_id for r in recorded if isinstance(r.event, RolloutCompleted))


def report(workload: Workload, measured: Measured, in_log: Counter[str]) -> int:
    """Print the rate, and each part's share of one core while rollouts are collected."""
    collecting = [values["collect_seconds"] for values in measured.steps]
    late = sum(values.get("rollouts_late", 0.0) for values in measured.steps)
    missing = workload.rollouts * workload.steps - len(in_log)
    repeated = sum(times - 1 for times in in_log.values())
    # The CPU time is measured up to the step before the last.
    counted = sum(collecting[:-1])
    table = Table(title=f"{workload.rollouts} rollouts a step, {len(collecting)} counted steps", title_justify="left")
    table.add_column("part")
    table.add_column("CPU-ms a rollout", justify="right")
    table.add_column("of one core", justify="right")
    for part, seconds in sorted(measured.cpu_s.items(), key=lambda item: -item[1]):
        ms = 1000 * seconds / (workload.rollouts * (len(collecting) - 1))
        table.add_row(part, f"{ms:.2f}", f"{seconds / counted:.0%}")
    console.print(table)
    rate = workload.rollouts / median(collecting)
    console.print(f"{rate:.0f} rollouts/s; missing {missing}, repeated {repeated}, late {late:.0f}", highlight=False)
    return 1 if missing or repeated or late else 0


if __name__ == "__main__":
    sys.exit(main())
