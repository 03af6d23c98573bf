"""The session that the demos share: it runs, times and shows a user's commands against its own cluster."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import synth.demo
from synth.cli.task_apps.environment import set_environment
from synth.cli.tui import output
from synth.client.connections.config import find_default_env_file
from synth.console.errors import CliError
from synth.local.deployments.temporary import serving


class DemoFailed(Exception):
    """A command failed that the demo needs."""


@dataclass
class Demo:
    """One run: its seed, its engine, and its measurements so far. seconds: wall time of each part.

    out: the folder of its files. eval_config: the job file of its evaluations.
    """

    seed: int
    engine: str
    out: Path
    eval_config: str
    seconds: dict[str, float] = field(default_factory=dict)
    accuracy: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    reward: list[float] = field(default_factory=list)
    evaluation: dict[int, float] = field(default_factory=dict)

    def synthctl(self, *arguments: str, show: bool = False) -> Any:
        """Run `synthctl …`, as a person would. Returns its JSON output; with `show` it prints to the screen."""
        output.err().print(f"[dim]$ synthctl {' '.join(arguments)}[/]")
        command = [sys.executable, "-m", "synth.cli", *arguments]
        done = subprocess.run(command, stdout=None if show else subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise DemoFailed(f"`synthctl {' '.join(arguments)}` ended with exit code {done.returncode}")
        return None if show else json.loads(done.stdout)

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Measure a part of the demo."""
        started = time.monotonic()
        yield
        self.seconds[part] = round(time.monotonic() - started, 1)

    def submit(self, name: str, *arguments: str) -> str:
        """Submit a job, follow it on the screen to its end; returns the id of the model that it made."""
        with self.timed(name):
            job = self.synthctl("submit", *arguments, "--detach", "-o", "json")
            self.jobs[name] = job["id"]
            self.synthctl("jobs", "watch", job["id"], show=True)
        return str(self.synthctl("jobs", "get", job["id"], "-o", "json")["model"])

    def points(self, metric: str) -> list[dict[str, Any]]:
        """Return a metric of the RL job, step by step."""
        return self.synthctl("jobs", "metrics", self.jobs["rl"], "--name", metric, "-o", "json")["points"]

    def evaluate(self, name: str, model: str, task_url: str, *more: str) -> None:
        """Accuracy on held-out problems, sampled at T = 1. more: flags of the evaluation."""
        with self.timed(f"eval_{name}"):
            result = self.synthctl(
                *("eval", self.eval_config, "--model", model, "--task-url", task_url, "--follow", "-o", "json", *more)
            )
        self.accuracy[name] = round(float(result["values"]["reward_mean"]), 4)
        output.err().print(f"  accuracy of {model}: [bold]{self.accuracy[name]:.3f}[/]")

    def read_curves(self) -> None:
        """Read the rewards of the RL job's steps, and of its evaluations."""
        self.reward = [float(p["value"]) for p in self.points("reward_mean")]
        self.evaluation = {int(p["step"]): float(p["value"]) for p in self.points("eval.reward_mean")}

    def write_report(self) -> None:
        """Write the figures as JSON, and print the path."""
        figures = {
            "accuracy": self.accuracy,
            "reward": self.reward,
            "evaluation": self.evaluation,
            "seconds": self.seconds,
            "jobs": self.jobs,
            "seed": self.seed,
            "engine": self.engine,
        }
        (self.out / "report.json").write_text(json.dumps(figures, indent=1))
        output.err().print(f"reward curve: {self.out / 'reward.png'}   figures: {self.out / 'report.json'}")

    def run(self, story: Callable[[], None]) -> int:
        """Run a demo to its end; returns the exit code."""
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            with self.timed("total"):
                story()
        except (DemoFailed, CliError) as error:
            output.err().print(f"[red]the demo stopped:[/] {error}; `synthctl status` and .synth/logs say more")
            return 1
        return 0


@contextlib.contextmanager
def cluster(demo: Demo, port: int) -> Iterator[None]:
    """Run a cluster on this machine during the block, and stop it at the end, also after an error."""
    with demo.timed("up"):
        demo.synthctl("up", "--detach", "--port", str(port), "--engine", demo.engine, show=True)
    try:
        yield
    finally:
        demo.synthctl("down", show=True)


@contextlib.contextmanager
def task_app(demo: Demo, package: str) -> Iterator[str]:
    """Serve a package's task app, with the keys that `synthctl up` wrote to .env; yields its address."""
    set_environment([find_default_env_file()])
    output.err().print(f"[dim]$ synthctl serve {package}.app --port 0[/]")
    with serving(f"{package}.app", log=demo.out.resolve() / "task_app.log", show=lambda text: None) as url:
        yield url


def copy_job_files(folder: Path, *names: str) -> None:
    """Copy job files of the package into a folder, for a user to read and change."""
    for name in names:
        shutil.copyfile(Path(synth.demo.__path__[0]) / "configs" / name, folder / name)


def make_dataset(demo: Demo, package: str, rows: int, *more: str) -> Path:
    """Write the SFT dataset of a task app's package; returns the file."""
    path = demo.out / f"{package.rpartition('.')[2]}.jsonl"
    command = [sys.executable, "-m", f"{package}.dataset", "--out", str(path), "--rows", str(rows)]
    subprocess.run([*command, "--seed", str(demo.seed), *more], check=True)
    return path
