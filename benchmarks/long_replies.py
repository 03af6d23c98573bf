"""Replies of many tokens in one call, trained: how long each call took, and what became of its tokens.

`python -m benchmarks.long_replies [--engine transformers|vllm] [--tokens 20000]`. RL of a tiny model that cannot end a
reply: in each group half of the replies have --tokens tokens, the others at most 64. Exit code 1: a call was shorter
than --call-seconds, a rollout was lost or played twice, the engine sampled a token that no rollout has, or a batch or a
step lacks a reply or a token of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from benchmarks.cluster_run import Cluster, RunFailed, running_cluster, synthctl
from benchmarks.essays_app import SHORT
from synth.blobs import BlobStore
from synth.events.references import BlobRef
from synth.inference.engines.vllm.base_model import read_base_model_info
from synth.trajectories import RolloutBatch

console = Console(width=120)
_SAMPLED = re.compile(rb"^synth_engine_sampled_tokens_total\{.*\} (\S+)$", re.MULTILINE)
_BASE = "never-ends"
_POLL_S = 0.5


def job(url: str, *, tokens: int, iterations: int, budget_s: float) -> str:
    """Return the job, as a user would write it."""
    return f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "{url}"
[model]
base = "{_BASE}"
trainer_mode = "full"
[rollout]
env_name = "essays"
rollout_timeout_s = {budget_s}
max_retries = 0
[rollout.policy_config]
max_tokens = {tokens}
[training]
iterations_per_epoch = {iterations}
batch_size = 2
group_size = 4
learning_rate = 1e-4
warmup_ratio = 0.0
minibatches = 1
"""


def make_endless(folder: Path) -> None:
    """Give a tiny model's stop tokens a logit far below all others, with an LM head of its own.

    The first number of the residual stream is the same in every position and layer, so it is positive after the last
    norm; only the rows of the stop tokens look at it.
    """
    ends = read_base_model_info(folder).stop_ids
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, tie_word_embeddings=False)
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        head.copy_(embedding)
        embedding[:, 0], head[:, 0] = 1.0, 0.0
        head[ends] = 0.0
        head[ends, 0] = -100.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    model.config.tie_word_embeddings = False
    model.save_pretrained(folder)


class Watch(threading.Thread):
    """Measurements that are possible only while a job runs.

    sampled: the tokens that the engine reports as sampled; its series ends with it. memory: bytes of the training
    process, at most.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        processes = {p.name: p for p in cluster.state().processes}
        self._url = f"http://127.0.0.1:{processes['inference'].port}/metrics"
        self._trainer = psutil.Process(processes["trainer"].pid)
        self._ended = threading.Event()
        self.sampled = 0
        self.memory = 0

    def run(self) -> None:
        while not self._ended.wait(_POLL_S):
            with contextlib.suppress(psutil.NoSuchProcess):
                used = [child.memory_info().rss for child in self._trainer.children(recursive=True)]
                self.memory = max(self.memory, *used, 0)
            try:
                with urllib.request.urlopen(self._url, timeout=5) as reply:
                    counts = [float(value) for value in _SAMPLED.findall(reply.read())]
            except (urllib.error.URLError, TimeoutError):
                continue
            self.sampled = max(self.sampled, int(sum(counts)))

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join()


def events(cluster: Cluster, job_id: str, type: str) -> list[dict[str, Any]]:
    """Return the bodies of a job's events of one type."""
    lines = synthctl(cluster.folder, "jobs", "events", job_id, "--type", type, "-o", "json").splitlines()
    return [json.loads(line)["data"] for line in lines]


def trained_lengths(cluster: Cluster, batched: dict[str, Any]) -> list[int]:
    """Return the trained tokens of each sequence of a batch, as its blob has them."""
    store = BlobStore.open(f"file://{cluster.folder / '.synth' / 'blobs'}")
    reference = BlobRef(**batched["batch"])
    batch = RolloutBatch.from_bytes(asyncio.run(store.get_bytes(reference)))
    return [int(batch.loss_mask[a:b].sum()) for a, b in zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--call-seconds", type=float, default=110.0, help="the least length of the longest call")
    parser.add_argument("--budget", type=float, default=7200.0, help="seconds that a rollout has")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(Path(folder), "benchmarks.essays_app", engine=arguments.engine) as cluster,
    ):
        context = str(arguments.tokens + 512)
        # Heads of 32, which vLLM has on a CPU.
        sizes = ("--head-dim", "32", "--layers", str(arguments.layers), "--context", context)
        synthctl(cluster.folder, "models", "make", "tiny-qwen3", "--name", _BASE, *sizes)
        make_endless(cluster.models / _BASE)
        toml = cluster.folder / "long.toml"
        toml.write_text(
            job(cluster.task_url, tokens=arguments.tokens, iterations=arguments.iterations, budget_s=arguments.budget)
        )
        watch = Watch(cluster)
        watch.start()
        job_id = cluster.submit(toml)
        try:
            synthctl(cluster.folder, "jobs", "watch", job_id)
        except RunFailed as error:
            problems = [line for type in ("job.failed", "rollout.failed") for line in events(cluster, job_id, type)]
            raise RunFailed(f"{error}\n{json.dumps(problems, indent=1)}") from None
        watch.end()
        rollouts, failed = events(cluster, job_id, "rollout.completed"), events(cluster, job_id, "rollout.failed")
        batches, steps = events(cluster, job_id, "rollout.batch"), events(cluster, job_id, "train.step")
        in_batches = sorted(length for batched in batches for length in trained_lengths(cluster, batched))
    return report(arguments, rollouts, failed, in_batches, [step["values"] for step in steps], watch)


def report(
    arguments: argparse.Namespace,
    rollouts: list[dict[str, Any]],
    failed: list[dict[str, Any]],
    in_batches: list[int],
    steps: list[dict[str, float]],
    watch: Watch,
) -> int:
    """Print the measurements; returns the exit code."""
    recorded = sorted(r["completion_tokens"] for r in rollouts)
    long = [r for r in rollouts if r["completion_tokens"] > SHORT]
    seconds = sorted(r["seconds"] for r in long)
    groups = {(r["iteration"], r["group"]) for r in rollouts}
    mixed = groups & {(r["iteration"], r["group"]) for r in long}
    trained = sum(step["sequences_trained"] for step in steps)
    train_s = sum(step["tokens"] / step["tokens_per_second"] for step in steps)
    console.print(
        f"{arguments.engine}: {len(long)} replies of {recorded[-1]:,} tokens in calls of {seconds[0]:.0f} to "
        f"{seconds[-1]:.0f} s, {len(rollouts) - len(long)} of at most {SHORT}, in {len(mixed)} of {len(groups)} groups "
        f"both; {sum(r['calls'] for r in rollouts)} calls of {len(rollouts)} rollouts, {len(failed)} lost, "
        f"{sum(r['tries'] > 1 for r in rollouts)} played twice; tokens: {watch.sampled:,} sampled, "
        f"{sum(recorded):,} recorded, {sum(in_batches):,} in the batches; {trained:g} sequences trained in "
        f"{train_s:.0f} s and {watch.memory >> 20} MB, the longest reply "
        f"{max(step['completion_length_max'] for step in steps):,.0f}"
    )
    wrong = {
        "a call was too short": seconds[-1] <= arguments.call_seconds,
        "a reply was too short": recorded[-1] != arguments.tokens,
        "a rollout was lost": bool(failed),
        "a rollout was played twice": any(r["tries"] > 1 or r["calls"] != 1 for r in rollouts),
        "a group lacks long or short replies": mixed != groups or len(long) * 2 != len(rollouts),
        "tokens were sampled that no rollout has": watch.sampled != sum(recorded),
        "a batch lacks tokens": in_batches != recorded,
        "a sequence was not trained": trained != len(rollouts),
        "the longest was not trained": max(step["completion_length_max"] for step in steps) != arguments.tokens,
    }
    for what in (what for what, is_so in wrong.items() if is_so):
        console.print(what)
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
