"""The gain from collecting ahead of training, without harm: the same job on-policy and ahead, on this machine.

`python -m benchmarks.async [--only slow-app|slow-trainer] [--steps 24]`. Two parts, both from one SFT model that is
right now and then. A slow task app: wall time and reward at async_level 0, 1 and 2. A slow trainer with
async_semaphore_max = 64, which hosted services ask their users to keep low: its backlog, its concurrency, its reward.
Exit code 1: a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

import plotext
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_run import ROOT, Cluster, RunFailed, reader, running_cluster, synthctl
from synth.bus.connection import Connection
from synth.bus.recorded import Recorded
from synth.bus.replay import follow
from synth.demo.math import dataset
from synth.events import JobFailed, JobSucceeded, RolloutBatched, RolloutCompleted, RolloutRequested, TrainStep

console = Console(width=110)
#: Of the on-policy run's wall time, where rollouts wait on the task app as long as a step trains, or longer.
RATIO_LIMIT = 0.8
#: The reward that a run may lose from its first five steps to its last, or against the on-policy run's last five.
REWARD_LOSS = 0.1
_DEADLINE_S = 300.0
_IDLE_S = 1.2
_ROLLOUTS = 16 * 8


@dataclass(frozen=True)
class Variant:
    """One run of the demo's RL job. idle_s: of each rollout. tokens: of a forward pass; few make a slow trainer."""

    async_level: int
    steps: int
    idle_s: float
    tokens: int
    bound: int = _ROLLOUTS

    def toml(self) -> str:
        """Return the job as a user would write it."""
        changes = {"iterations_per_epoch": self.steps, "async_level": self.async_level}
        lines: list[str] = []
        for line in (ROOT / "configs" / "demo" / "rl.toml").read_text().splitlines():
            key = line.partition(" = ")[0]
            lines.append(f"{key} = {changes[key]}" if key in changes else line)
            if line == "[training]":
                lines += [f"async_semaphore_max = {self.bound}", f"micro_batch_tokens = {self.tokens}"]
        return "\n".join([*lines, "[rollout.env_config]", f"idle_s = {self.idle_s}", ""])


@dataclass
class Ran:
    """The measurements of a run, from its log. seconds: from the first request to the last step.

    lags: of each rollout, versions from its oldest token to its training. ahead: rollouts done, not trained, at most.
    """

    variant: Variant
    seconds: float = 0.0
    steps: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    batches: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    lags: Counter[int] = field(default_factory=Counter[int])
    ahead: int = 0

    @property
    def step_s(self) -> float:
        """Wall seconds a step."""
        return self.seconds / len(self.steps)

    @property
    def rewards(self) -> list[float]:
        return [step["reward_mean"] for step in self.steps]

    @property
    def first(self) -> float:
        """Mean reward of the first five steps."""
        return mean(self.rewards[:5])

    @property
    def last(self) -> float:
        """Mean reward of the last five steps."""
        return mean(self.rewards[-5:])

    def problems(self) -> list[str]:
        """Return the faults of the run: old tokens, a backlog beyond the requested one, a collapse."""
        level = self.variant.async_level
        stale = max(self.lags), max(step.get("staleness_max", 0) for step in self.steps)
        faults: list[str] = []
        if max(stale) > level:
            faults.append(f"async_level {level}: tokens {stale} versions old, the bound is {level}")
        if self.ahead > (level + 1) * _ROLLOUTS:
            faults.append(f"async_level {level}: {self.ahead} rollouts ahead, requested were {(level + 1) * _ROLLOUTS}")
        if self.last < self.first - REWARD_LOSS:
            faults.append(f"async_level {level}: the reward falls from {self.first:.2f} to {self.last:.2f}")
        return faults


def main() -> int:
    """`python -m benchmarks.async`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["slow-app", "slow-trainer"])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--sft-steps", type=int, default=400)
    options = parser.parse_args()
    started, load = time.monotonic(), os.getloadavg()
    problems: list[str] = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="synth-async-") as folder,
            running_cluster(Path(folder), "benchmarks.slow_math") as cluster,
        ):
            model = sft_model(cluster, options.sft_steps)
            if options.only != "slow-trainer":
                problems += slow_app(cluster, model, options.steps)
            if options.only != "slow-app":
                problems += slow_trainer(cluster, model, options.steps)
    except RunFailed as error:
        problems.append(f"not measured: {error}")
    console.print(f"[dim]{os.cpu_count()} cores, load {load[0]:.1f} before · {time.monotonic() - started:.0f} s[/]")
    for problem in problems:
        console.print(f"[red]{problem}[/]", highlight=False)
    return int(bool(problems))


def sft_model(cluster: Cluster, steps: int) -> str:
    """Train the demo's SFT model: it works one sum in three out, so that RL has a signal from its first step on."""
    rows = cluster.folder / "math.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(20 * steps, seed=0)))
    toml = cluster.folder / "sft.toml"
    text = (ROOT / "configs" / "demo" / "sft.toml").read_text()
    toml.write_text(text.replace("total_steps = 1000", f"total_steps = {steps}"))
    synthctl(cluster.folder, "models", "make", "tiny-qwen3")
    with console.status("SFT"):
        job = cluster.submit(toml, "--dataset", str(rows))
        synthctl(cluster.folder, "jobs", "watch", job, "-o", "json")
    return str(json.loads(synthctl(cluster.folder, "jobs", "get", job, "-o", "json"))["model"])


def slow_app(cluster: Cluster, model: str, steps: int) -> list[str]:
    """Rollouts that idle as long as a step trains, or longer: on-policy, one iteration ahead, two ahead."""
    runs = [run(cluster, model, Variant(level, steps, idle_s=_IDLE_S, tokens=128)) for level in (0, 1, 2)]
    # The machine's load may change between runs, so on-policy is measured before and after, and averaged.
    again = run(cluster, model, Variant(0, max(5, steps // 3), idle_s=_IDLE_S, tokens=128))
    sync, drift = runs[0], again.step_s / runs[0].step_s
    on_policy = mean([sync.step_s, again.step_s])
    table = Table(title=f"a slow task app: {_IDLE_S} s idle a rollout, {steps} steps", title_justify="left")
    for column in ("level", "s a step", "ratio", "collect", "train", "first 5", "last 5", "rollouts by lag"):
        table.add_column(column, justify="right", no_wrap=True)
    for ran in runs:
        table.add_row(
            str(ran.variant.async_level),
            f"{ran.step_s:.2f}",
            f"{ran.step_s / on_policy:.2f}",
            f"{median(b['collect_seconds'] for b in ran.batches):.2f}",
            f"{median(s['seconds_train'] + s['seconds_old_logprobs'] for s in ran.steps):.2f}",
            f"{ran.first:.2f}",
            f"{ran.last:.2f}",
            histogram(ran.lags),
        )
    console.print(table)
    plot({f"async_level {r.variant.async_level}": r.rewards for r in runs}, "mean reward by step")
    problems = [problem for ran in runs for problem in ran.problems()]
    console.print(f"  on-policy after / before: {drift:.2f}, {on_policy:.2f} s a step on average", highlight=False)
    ratio = runs[1].step_s / on_policy
    if ratio > RATIO_LIMIT:
        problems.append(f"async_level 1 takes {ratio:.2f} of the on-policy run's time, the limit is {RATIO_LIMIT}")
    problems += [
        f"async_level {r.variant.async_level} ends at reward {r.last:.2f}, on-policy at {sync.last:.2f}"
        for r in runs[1:]
        if r.last < sync.last - REWARD_LOSS
    ]
    return problems


def slow_trainer(cluster: Cluster, model: str, steps: int) -> list[str]:
    """Run 64 rollouts at once, four iterations ahead, against a trainer that takes its rows one by one."""
    ran = run(cluster, model, Variant(4, steps, idle_s=0.0, tokens=32, bound=64))
    limits = [int(b["concurrency_limit"]) for b in ran.batches]
    table = Table(title="a slow trainer, async_semaphore_max = 64, async_level = 4", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right", overflow="fold")
    rows = {
        "seconds a step: train": f"{median(s['seconds_train'] + s['seconds_old_logprobs'] for s in ran.steps):.2f}",
        "seconds a batch: collect": f"{median(b['collect_seconds'] for b in ran.batches):.2f}",
        "batches ahead, most": f"{max(b['batches_ahead'] for b in ran.batches):.0f}",
        f"rollouts done and not trained, most ({_ROLLOUTS} a batch)": str(ran.ahead),
        "concurrency limit, batch by batch": " ".join(map(str, limits)),
        "halved for a backlog": f"{sum(b['concurrency_halved_backlog'] for b in ran.batches):.0f}",
        "reward, first 5 steps": f"{ran.first:.2f}",
        "reward, last 5 steps": f"{ran.last:.2f}",
        "rollouts by lag": histogram(ran.lags),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    plot({"slow trainer": ran.rewards}, "mean reward by step")
    return ran.problems()


def run(cluster: Cluster, model: str, variant: Variant) -> Ran:
    """Run the job to its end."""
    toml = cluster.folder / "rl.toml"
    toml.write_text(variant.toml())
    with console.status(f"RL, async_level {variant.async_level}"):
        job = cluster.submit(toml, "--model", model, "--task-url", cluster.task_url)
        return asyncio.run(_followed(cluster, job, variant))


async def _followed(cluster: Cluster, job: str, variant: Variant) -> Ran:
    bus = await reader(cluster.state())
    try:
        async with asyncio.timeout(_DEADLINE_S):
            return await _read(bus, job, variant)
    except TimeoutError as error:
        raise RunFailed(f"{job} had not ended after {_DEADLINE_S:.0f} s") from error
    finally:
        await bus.close()


async def _read(bus: Connection, job: str, variant: Variant) -> Ran:
    ran, done, begun = Ran(variant), 0, 0.0
    async for recorded in follow(bus, [f"*.*.*.{job}"]):
        at = recorded.time.timestamp()
        match recorded.event:
            case RolloutRequested():
                begun = begun or at
            case RolloutCompleted(iteration=iteration, versions=(oldest, _)):
                done += 1
                ran.lags[iteration - 1 - oldest] += 1
                ran.ahead = max(ran.ahead, done - _ROLLOUTS * len(ran.steps))
            case RolloutBatched(values=values):
                ran.batches.append(values)
            case TrainStep(values=values):
                ran.steps.append(values)
                ran.seconds = at - begun
            case JobSucceeded():
                return ran
            case _:
                _check(recorded)
    raise AssertionError("a follow never ends")


def _check(recorded: Recorded) -> None:
    if isinstance(recorded.event, JobFailed):
        raise RunFailed(f"{recorded.key}: {recorded.event.problem.text()}")
    if recorded.type in ("job.rejected", "job.refused", "job.cancelled", "job.paused"):
        raise RunFailed(f"{recorded.key}: {recorded.type} {recorded.event}")


def histogram(lags: Counter[int]) -> str:
    """Such as "0: 128, 1: 2944"."""
    return ", ".join(f"{lag}: {count}" for lag, count in sorted(lags.items()))


def plot(curves: dict[str, list[float]], title: str) -> None:
    """Print the curves in the terminal."""
    plotext.clear_figure()
    plotext.plot_size(76, 14)
    for marker, (name, values) in zip(("braille", "x", "o"), curves.items(), strict=False):
        plotext.plot(list(range(1, len(values) + 1)), values, marker=marker, label=name)
    plotext.ylim(0, 1)
    plotext.title(title)
    console.out(plotext.uncolorize(plotext.build()), highlight=False)


if __name__ == "__main__":
    sys.exit(main())
