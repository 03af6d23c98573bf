"""The gain from credit for turns if rewards come late: gspo against gspo_token with returns to go, on the same seeds.

`python -m benchmarks.turn_credit [--seeds 3] [--iterations 40]`. One cluster, one base model, a task of twelve turns
(`benchmarks.delayed_app`) that pays each reply one turn later. Held-out rewards before and after, and the curves.
Exit code 1: with credit for turns less was learned, over all seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import plotext
from rich.console import Console
from rich.table import Table

from benchmarks.cluster_run import Cluster, running_cluster, synthctl
from benchmarks.delayed_app import TURNS

console = Console(width=110)
#: A reply is paid in the next turn, so that what comes much later is not its own.
DISCOUNT = 0.7


@dataclass(frozen=True)
class Run:
    """One job. held_out: mean reward before the first and after the last iteration; curve: of each iteration."""

    loss: str
    seed: int
    held_out: tuple[float, float]
    curve: list[float]


def job(url: str, loss: str, seed: int, iterations: int) -> str:
    """Return the job, as a user would write it."""
    return f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "{loss}"
[services]
task_url = "{url}"
[model]
base = "tiny-qwen3"
trainer_mode = "full"
[rollout]
env_name = "delayed"
max_turns = {TURNS}
[rollout.policy_config]
max_tokens = 8
[training]
iterations_per_epoch = {iterations}
batch_size = 4
group_size = 8
learning_rate = 2e-3
warmup_ratio = 0.0
minibatches = 1
async_level = 0
seed = {seed}
step_rewards_enabled = true
step_rewards_mode = "env_sparse"
{f"turn_discount = {DISCOUNT}" if loss == "gspo_token" else ""}
[evaluation]
every_n_iters = {iterations}
seeds = "1000-1031"
"""


def run(cluster: Cluster, loss: str, seed: int, iterations: int) -> Run:
    """Run one job to its end."""
    toml = cluster.folder / f"{loss}-{seed}.toml"
    toml.write_text(job(cluster.task_url, loss, seed, iterations))
    job_id = cluster.submit(toml)
    synthctl(cluster.folder, "jobs", "watch", job_id)

    def values(type: str) -> list[dict[str, float]]:
        lines = synthctl(cluster.folder, "jobs", "events", job_id, "--type", type, "-o", "json").splitlines()
        return [json.loads(line)["data"]["values"] for line in lines]

    before, after = [v["reward_mean"] for v in values("eval.completed")]
    return Run(loss, seed, (before, after), [v["reward_mean"] for v in values("train.step")])


def report(runs: list[Run]) -> None:
    """Print the table and the curves, each the mean over the seeds."""
    table = Table("loss", "seed", "held out, before", "after")
    for one in runs:
        table.add_row(one.loss, str(one.seed), f"{one.held_out[0]:.3f}", f"{one.held_out[1]:.3f}")
    console.print(table)
    for loss in dict.fromkeys(one.loss for one in runs):
        curves = [one.curve for one in runs if one.loss == loss]
        plotext.plot([mean(column) for column in zip(*curves, strict=True)], label=loss)
    plotext.title(f"mean reward of an iteration, {TURNS} turns, paid one turn late")
    plotext.plotsize(100, 20)
    plotext.theme("clear")
    console.print(plotext.build(), highlight=False, markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    arguments = parser.parse_args()
    runs: list[Run] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(Path(folder), "benchmarks.delayed_app") as cluster,
    ):
        synthctl(cluster.folder, "models", "make", "tiny-qwen3")
        for seed in range(arguments.seeds):
            runs += [run(cluster, loss, seed, arguments.iterations) for loss in ("gspo", "gspo_token")]
    report(runs)
    after = {loss: mean(one.held_out[1] for one in runs if one.loss == loss) for loss in ("gspo", "gspo_token")}
    console.print(f"held out, mean over seeds: gspo {after['gspo']:.3f}, gspo_token {after['gspo_token']:.3f}")
    return int(after["gspo_token"] < after["gspo"])


if __name__ == "__main__":
    sys.exit(main())
