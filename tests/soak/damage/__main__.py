"""200 single damaged bytes in a stopped cluster that has trained: none may go unnoticed and change anything.

.venv/bin/python -m tests.soak.damage [--damages 200] [--seed 0] [--cluster DIR]

Each damage is detected by a check of the cluster, recovered from, or harmless: all is there as before. Exit code 1: one
was silent; the line says which byte. The cluster, with the jobs that it has done, is made first, or taken from DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from synth.demo.math import dataset
from synth.runtime import logs
from tests.e2e.cli.conftest import Shell, eventually
from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import KEY, letters, served
from tests.e2e.test_dead_letters import publish
from tests.soak.damage.places import SHARES, Damage, draw
from tests.soak.damage.verdicts import Verdict, judge, read_cluster

_OUTCOMES = ("detected", "recovered", "harmless", "silent")
_UP_S = 600.0
_SECOND_KEYS = 3
_LETTERS = 4
_WRONG_KEYS = 8
_LIVE_S = 240.0
_EVAL = '[eval]\nmodel = "tiny-qwen3"\nseeds = "0-9999"\nenv_name = "letters"\nmax_tokens = 8\ntask_app_url = "{url}"\n'
#: A server that cannot read a message is waited for.
_AT_ONCE = 8

console = Console(width=160)


def make_cluster(folder: Path) -> None:
    """Start a cluster, have it do an SFT job and an RL job, and stop it while it does others."""
    folder.mkdir(parents=True, exist_ok=True)
    shell = Shell(folder)
    (folder / ".env").write_text(f"ENVIRONMENT_API_KEY={KEY}\n")
    shell.ok("up", "--detach", "--port", str(shell.port), timeout=_UP_S)
    try:
        shell.make_model()
        platform = Platform(shell)
        (folder / "math.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in dataset.rows(128, seed=0)))
        saving = sft(steps=12).replace("[hyperparameters]", "[hyperparameters]\ncheckpoint_every = 4")
        model = platform.succeeded(platform.submit(saving, "--dataset", "math.jsonl"))["model"]
        for number in range(_SECOND_KEYS):
            shell.ok("keys", "create", "--name", f"key-{number}")
        _make_records(platform)
        with served(letters()) as app:
            platform.succeeded(platform.submit(rl(model, app.url, iterations=3)))
            _begin_jobs(platform, app.url)
            shell.run("down")
    finally:
        shell.run("down")


def _make_records(platform: Platform) -> None:
    """Make dead letters, and audit records beside those of the keys."""
    for number in range(_LETTERS):
        publish(platform, f"work.collect.default.org_none.job_{number}.0", b"no task")
    for number in range(_WRONG_KEYS):
        platform.api.get("/api/jobs", headers={"Authorization": f"Bearer sk_wrong_{number}"})
    eventually(
        lambda: len([*platform.client.operator.dead_letters(limit=100, settled=True)]) >= _LETTERS, timeout=_LIVE_S
    )


def _begin_jobs(platform: Platform, task_url: str) -> None:
    """Begin a job of each kind: their tasks are owned, or wait, when the cluster stops."""
    training = platform.submit(sft(steps=100_000), "--dataset", "math.jsonl")
    waiting = platform.submit(rl("tiny-qwen3", task_url, iterations=1000))
    evaluated = platform.submit(_EVAL.format(url=task_url))
    for job, fact in ((training, "job.started"), (waiting, "policy.loaded"), (evaluated, "job.started")):
        eventually(lambda job=job, fact=fact: bool(platform.events(job, fact)), timeout=_LIVE_S)


def run(data: Path, damages: int, seed: int) -> bool:
    """Damage one byte of a copy after the other; whether none was silent."""
    rng, counts, silent = random.Random(seed), Counter[tuple[str, str]](), False
    with tempfile.TemporaryDirectory() as folder:
        cluster = asyncio.run(read_cluster(data, Path(folder)))

    def judged(damage: Damage) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(judge(cluster, damage, Path(folder)))

    drawn = [draw(rng, data) for _ in range(damages)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for number, (damage, verdict) in enumerate(zip(drawn, pool.map(judged, drawn), strict=True)):
            counts[damage.place, verdict.outcome] += 1
            silent |= verdict.outcome == "silent"
            kill = ", killed" if damage.killed else ""
            what = f"{number:3} {verdict.outcome:9} {damage.file} byte {damage.offset} ^ {damage.mask}{kill}"
            console.print(
                f"{what}: {verdict.reason}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    table = Table("place", *_OUTCOMES)
    for place in SHARES:
        table.add_row(place, *(str(counts[place, outcome]) for outcome in _OUTCOMES))
    console.print(table)
    return not silent


def main() -> int:
    """Run the campaign that the command line describes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--damages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cluster", type=Path, help="a folder in which the cluster is, or is made")
    options = parser.parse_args()
    logs.configure("damage", level="critical")
    with tempfile.TemporaryDirectory() as folder:
        home = (options.cluster or Path(folder) / "cluster").absolute()
        if not (home / ".synth").exists():
            make_cluster(home)
        return 0 if run(home / ".synth", options.damages, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
