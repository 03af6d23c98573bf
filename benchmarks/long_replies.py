"""Replies of many tokens in one call, trained: how long each call took, and what became of its tokens.

`python -m benchmarks.long_replies [--engine transformers|vllm] [--tokens 20000] [--budget S]`. One iteration of RL on a
tiny model, half of whose replies cannot end by themselves while the others have at most 64 tokens: a group has both.
--budget: seconds that a rollout has; what was sampled by then is trained. Exit code 1: a rollout was lost or played
twice, or there was no long reply.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.cluster_run import running_cluster, synthctl

console = Console(width=110)
_SHORT = 64


def job(url: str, *, tokens: int, budget_s: float) -> str:
    """The job, as a user would write it."""
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
env_name = "essays"
rollout_timeout_s = {budget_s}
max_retries = 0
[rollout.policy_config]
max_tokens = {tokens}
[training]
iterations_per_epoch = 1
batch_size = 2
group_size = 4
learning_rate = 1e-3
warmup_ratio = 0.0
minibatches = 1
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--budget", type=float, default=7200.0)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(Path(folder), "benchmarks.essays_app", engine=arguments.engine) as cluster,
    ):
        synthctl(
            cluster.folder,
            "models",
            "make",
            "tiny-qwen3",
            "--head-dim",
            "32",
            "--context",
            str(arguments.tokens + 1024),
        )
        toml = cluster.folder / "long.toml"
        toml.write_text(job(cluster.task_url, tokens=arguments.tokens, budget_s=arguments.budget))
        job_id = cluster.submit(toml)
        synthctl(cluster.folder, "jobs", "watch", job_id)

        def events(type: str) -> list[dict[str, Any]]:
            lines = synthctl(cluster.folder, "jobs", "events", job_id, "--type", type, "-o", "json").splitlines()
            return [json.loads(line)["data"] for line in lines]

        rollouts, failed = events("rollout.completed"), events("rollout.failed")
        [step] = events("train.step")
    long = [r for r in rollouts if r["completion_tokens"] > _SHORT]
    seconds = sorted(r["seconds"] for r in long)
    console.print(
        f"{arguments.engine}: {len(long)} replies of {min(r['completion_tokens'] for r in long):,} to "
        f"{max(r['completion_tokens'] for r in long):,} tokens in calls of {seconds[0]:.0f} to {seconds[-1]:.0f} s, "
        f"{len(rollouts) - len(long)} of at most {_SHORT}; {len(failed)} lost, "
        f"{sum(r['tries'] > 1 for r in rollouts)} played twice; {step['values']['groups_kept']:g} groups, "
        f"{step['values']['sequences_trained']:g} of {step['values']['sequences']:g} sequences trained"
    )
    lost = failed or any(r["tries"] > 1 for r in rollouts) or not long
    return int(bool(lost) or step["values"]["sequences"] < len(rollouts))


if __name__ == "__main__":
    sys.exit(main())
