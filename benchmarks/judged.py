"""Ten thousand judged rollouts against a judge with a limit: calls a second, lost rollouts, overlap.

`python -m benchmarks.judged [--rollouts 10000] [--rate 50] [--outage 60]`. One iteration of RL whose outcome a scripted
judge scores, at so many calls a second; then, with --outage, jobs of 40 iterations whose judge is gone for as many
seconds in the middle. Exit code 1: more calls in a second than the limit, a rollout without its score, a step lost, or
no learning from a score that only the judge gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cluster_run import Cluster, running_cluster, synthctl
from tests.judge_server import JudgeCall, JudgeServer, scored

console = Console(width=110)
_GROUP = 16
_AT_ONCE = 64


def digits(call: JudgeCall) -> float:
    """Return the share of digits in the policy's text; the environment pays for vowels."""
    text = "".join(event["reply"].get("content") or "" for event in call.data["events"] if "reply" in event)
    return sum(c.isdigit() for c in text) / max(len(text), 1)


def job(url: str, judge: JudgeServer, *, iterations: int, groups: int, rate: float, seed: int = 0) -> str:
    """Return the job, as a user would write it."""
    return f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "{url}"
[model]
base = "tiny-qwen3"
trainer_mode = "full"
[rollout]
env_name = "delayed"
max_concurrent_rollouts = {_AT_ONCE}
[rollout.policy_config]
max_tokens = 12
[training]
iterations_per_epoch = {iterations}
batch_size = {groups}
group_size = {_GROUP}
learning_rate = 3e-3
warmup_ratio = 0.0
minibatches = 1
seed = {seed}
[evaluation]
every_n_iters = {iterations if iterations > 1 else 0}
seeds = "1000-1031"
[rubric.weights]
env = 0.0
outcome = 1.0
[[rubric.outcome.criteria]]
id = "digits"
description = "The reply has many digits."
[judge]
requests_per_second = {rate}
[judge.options]
max_concurrency = {_AT_ONCE}
[[judge.judges]]
model = "scripted"
url = "{judge.url}"
"""


def events(cluster: Cluster, job_id: str, type: str) -> list[dict[str, Any]]:
    """Return the bodies of a job's events of one type."""
    lines = synthctl(cluster.folder, "jobs", "events", job_id, "--type", type, "-o", "json").splitlines()
    return [json.loads(line)["data"] for line in lines]


def limited(cluster: Cluster, rollouts: int, rate: float) -> bool:
    """Run one large iteration against the limit. Returns whether the limit was kept, with nothing lost."""
    with JudgeServer(scored(digits)) as judge:
        toml = cluster.folder / "limited.toml"
        toml.write_text(job(cluster.task_url, judge, iterations=1, groups=rollouts // _GROUP, rate=rate))
        job_id = cluster.submit(toml)
        synthctl(cluster.folder, "jobs", "watch", job_id)
        judged = events(cluster, job_id, "rollout.judged")
        played = [e["seconds"] for e in events(cluster, job_id, "rollout.completed")]
        calls = [call.at for call in judge.calls]
        [step] = events(cluster, job_id, "train.step")
        ended = json.loads(synthctl(cluster.folder, "jobs", "get", job_id, "-o", "json"))
    judging, wall = max(calls) - min(calls), step["values"]["collect_seconds"]
    playing = sum(played) / _AT_ONCE
    console.print(
        f"{len(judged)} of {rollouts} rollouts judged, {len(calls)} calls in {judging:.0f} s, at most "
        f"{judge.busiest_second()} in any second (limit {rate:g}); collection {wall:.0f} s, of which playing alone "
        f"would take {playing:.0f} s; {ended['judge']['calls_per_rollout']:g} calls a rollout"
    )
    lost = [e for e in judged if e["problem"] is not None or e["reward"] is None]
    return len(judged) == rollouts and not lost and judge.busiest_second() <= rate


def outage(cluster: Cluster, seconds: float, seeds: int) -> bool:
    """Jobs whose judge is gone in the middle. Returns whether each took all of its steps, and learned."""
    passed = True
    for seed in range(seeds):
        with JudgeServer(scored(digits)) as judge:
            toml = cluster.folder / f"outage-{seed}.toml"
            toml.write_text(job(cluster.task_url, judge, iterations=40, groups=4, rate=1000, seed=seed))
            job_id = cluster.submit(toml)
            while json.loads(synthctl(cluster.folder, "jobs", "get", job_id, "-o", "json"))["step"] < 20:
                time.sleep(0.2)
            judge.stop()
            time.sleep(seconds)
            judge.start()
            synthctl(cluster.folder, "jobs", "watch", job_id)
            judged = events(cluster, job_id, "rollout.judged")
            steps = len(events(cluster, job_id, "train.step"))
            before, after = [e["values"]["reward_outcome_mean"] for e in events(cluster, job_id, "eval.completed")]
        unscored = sum(e["reward"] is None for e in judged)
        console.print(
            f"seed {seed}: judge gone for {seconds:g} s: {steps} steps of 40, {unscored} of {len(judged)} rollouts "
            f"without a score, held out {before:.3f} → {after:.3f}, environment's reward 0 in the weights"
        )
        passed = passed and steps == 40 and not unscored and after > before
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--outage", type=float, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(Path(folder), "benchmarks.delayed_app") as cluster,
    ):
        synthctl(cluster.folder, "models", "make", "tiny-qwen3")
        passed = limited(cluster, arguments.rollouts, arguments.rate) if arguments.rollouts else True
        passed = (outage(cluster, arguments.outage, arguments.seeds) if arguments.outage else True) and passed
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
