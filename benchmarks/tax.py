"""The platform's cost: the same RL run as one plain process and through a cluster, on this machine.

`python -m benchmarks.tax [--quick] [--only large|demo]`. Two measures: on a model whose step takes seconds, the ratio
of the step times; on the demo's model, whose cost is nearly all the platform's, CPU milliseconds a rollout by hop.
Exit code 1: a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_run import MODEL_PARTS, ROOT, Measured, RunFailed, measure, running_cluster
from benchmarks.one_process import Start, StepTimes
from benchmarks.workload import DEMO, LARGE, Workload, shortened
from synth.methods.job import job_to_data

console = Console()
RATIO_LIMIT = 1.25
CPU_MS_LIMIT = 20.0


@dataclass(frozen=True)
class Comparison:
    """One workload, measured all ways. plain: before, and two steps after, the cluster's run: a drift shows."""

    workload: Workload
    parameters: int
    plain: list[StepTimes]
    two_threads: list[StepTimes]
    cluster: Measured

    @property
    def ratio(self) -> float:
        """The cluster's step time over the plain process's, medians."""
        return median(self.cluster.step_s) / median(s.total for s in self.plain)

    @property
    def counted_rollouts(self) -> int:
        """The rollouts of the steps whose CPU time was measured."""
        return self.workload.rollouts * (self.workload.steps - 1 - self.workload.warmup)

    @property
    def cpu_ms(self) -> dict[str, float]:
        """CPU milliseconds a rollout, by part."""
        return {part: 1000 * s / self.counted_rollouts for part, s in self.cluster.cpu_s.items()}

    @property
    def platform_cpu_ms(self) -> float:
        """CPU milliseconds a rollout, without the parts that run the model."""
        return sum(ms for part, ms in self.cpu_ms.items() if part not in MODEL_PARTS)


def main() -> int:
    """`python -m benchmarks.tax`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two counted steps each: does it run at all?")
    parser.add_argument("--only", choices=["large", "demo"])
    options = parser.parse_args()
    chosen = {"large": LARGE, "demo": DEMO}
    workloads = [w for name, w in chosen.items() if options.only in (None, name)]
    started, load = time.monotonic(), os.getloadavg()
    try:
        comparisons = [compare(shortened(w) if options.quick else w) for w in workloads]
    except RunFailed as error:
        console.print(f"[red]not measured:[/] {error}", highlight=False)
        return 1
    for comparison in comparisons:
        report(comparison)
    console.print(
        f"[dim]{os.cpu_count()} cores, load {load[0]:.1f} before · Python {platform.python_version()}, "
        f"torch {version('torch')}, transformers {version('transformers')} · {time.monotonic() - started:.0f} s[/]"
    )
    return 0 if all(within_limits(c) for c in comparisons) else 1


def within_limits(c: Comparison) -> bool:
    """Return whether the limits are kept: the ratio on the large model, the CPU time on the demo's."""
    return c.ratio <= RATIO_LIMIT if c.workload.model == LARGE.model else c.platform_cpu_ms <= CPU_MS_LIMIT


def compare(workload: Workload) -> Comparison:
    """Run a workload in one process, through a cluster, and in one process again."""
    with tempfile.TemporaryDirectory(prefix="synth-tax-") as scratch:
        folder = Path(scratch)
        models = folder / ".synth" / "models"
        parameters = workload.make_model(models)
        with console.status(f"{workload.model}: one process"):
            plain = run_plain(workload, folder, threads=1)
        with console.status(f"{workload.model}: cluster"), running_cluster(folder) as cluster:
            measured = asyncio.run(measure(cluster, workload))
        with console.status(f"{workload.model}: one process again"):
            plain += run_plain(shortened(workload), folder, threads=1)
        with console.status(f"{workload.model}: one process, two threads"):
            two_threads = run_plain(shortened(workload), folder, threads=2)
    return Comparison(workload, parameters, plain, two_threads, measured)


def run_plain(workload: Workload, folder: Path, *, threads: int) -> list[StepTimes]:
    """Return the counted steps of the run as one process."""
    models = folder / ".synth" / "models"
    work = folder / "one-process"
    work.mkdir(exist_ok=True)
    job = job_to_data(workload.job(models, "http://127.0.0.1:1"))
    start = Start(job=job, model_dir=str(models / workload.model), work_dir=str(work), threads=threads)
    (work / "start.json").write_bytes(msgspec.json.encode(start))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.one_process", str(work / "start.json")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise RunFailed(f"one process ended with {done.returncode}\n{done.stderr.decode()}")
    steps = [msgspec.json.decode(line, type=StepTimes) for line in done.stdout.splitlines()]
    return steps[workload.warmup :]


def report(c: Comparison) -> None:
    """Two tables: the seconds of a step, and the CPU time of a rollout."""
    w = c.workload
    what = f"{c.parameters / 1e6:.2f} M parameters, {w.groups}x{w.group_size} rollouts of ≤ {w.max_tokens} tokens"
    table = Table(title=f"{w.model}: {what}, seconds a step (medians)", title_justify="left")
    for column in ("", "step", "collect", "wait", "train", "rest", "CPU"):
        table.add_column(column, justify="left" if not column else "right")
    for name, steps in (("one process", c.plain), ("one process, 2 threads", c.two_threads)):
        rest = median(s.batch + s.weights for s in steps)
        table.add_row(
            name,
            _s(median(s.total for s in steps)),
            _s(median(s.sample for s in steps)),
            "",
            _s(median(s.train for s in steps)),
            _s(rest),
            _s(median(s.cpu for s in steps)),
        )
    step, wait = median(c.cluster.step_s), _value(c, "wait_seconds")
    train = _value(c, "seconds_train") + _value(c, "seconds_old_logprobs")
    collect = _value(c, "collect_seconds")
    parts = (step, collect, wait, train, step - wait - train, sum(c.cpu_ms.values()) * w.rollouts / 1000)
    table.add_row(f"cluster, async {w.async_level}", *map(_s, parts))
    console.print(table)
    verdict = f" (limit {RATIO_LIMIT})" if w.model == LARGE.model else ""
    drift = median(s.total for s in c.plain[-2:]) / median(s.total for s in c.plain[:-2])
    if not 0.8 < drift < 1.25:
        console.print("  [yellow]other programs ran meanwhile: believe the CPU column, and measure again[/]")
    console.print(
        f"  cluster / one process: [bold]{c.ratio:.2f}[/]{verdict} · one process after / before the cluster's run: "
        f"{drift:.2f} · submit to first step {c.cluster.first_step_s:.1f} s (start {c.cluster.start_s:.1f} s)\n",
        highlight=False,
    )
    table = Table(title=f"{w.model}: CPU-ms a rollout, {c.counted_rollouts} rollouts", title_justify="left")
    table.add_column("part")
    table.add_column("ms", justify="right")
    for part, ms in sorted(c.cpu_ms.items(), key=lambda item: -item[1]):
        if part not in MODEL_PARTS:
            table.add_row(part, f"{ms:.2f}")
    table.add_section()
    table.add_row(
        "platform" + (f" (limit {CPU_MS_LIMIT:.0f})" if w.model == DEMO.model else ""),
        f"{c.platform_cpu_ms:.2f}",
        style="bold",
    )
    table.add_section()
    for part in MODEL_PARTS:
        table.add_row(f"model: {part}", f"{c.cpu_ms[part]:.2f}", style="dim")
    console.print(table)


def _value(c: Comparison, name: str) -> float:
    return median(values.get(name, 0.0) for values in c.cluster.steps)


def _s(seconds: float) -> str:
    return f"{seconds:.2f}"


if __name__ == "__main__":
    sys.exit(main())
