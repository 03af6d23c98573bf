"""The main job on this machine, by the commands that a user would type: SFT, then RL from its model, judged on
problems that neither has seen. Ends with a table, the reward curve, and `.synth/demo/report.json`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.charts import print_curve, print_result, save_curve

TASK_PORT = 8001
OUT = Path(".synth/demo")
console = Console(stderr=True)


class DemoFailed(Exception):
    """A command did not do what the demo needs."""


@dataclass
class Demo:
    """One run: its seed, what serves its models, and what it has measured so far. seconds: by part, wall time."""

    seed: int
    engine: str
    seconds: dict[str, float]
    accuracy: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    reward: list[float] = field(default_factory=list)
    evaluation: dict[int, float] = field(default_factory=dict)

    def synthctl(self, *arguments: str, show: bool = False) -> Any:
        """Run `synthctl …`, as a person would. Returns what it prints as JSON; with `show` it prints to the screen."""
        console.print(f"[dim]$ synthctl {' '.join(arguments)}[/]")
        command = [str(Path(sys.executable).parent / "synthctl"), *arguments]
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
        """A metric of the RL job, step by step."""
        return self.synthctl("jobs", "metrics", self.jobs["rl"], "--name", metric, "-o", "json")["points"]

    def evaluate(self, name: str, model: str, task_url: str) -> None:
        """Accuracy on 512 held-out problems, sampled at T = 1."""
        with self.timed(f"eval_{name}"):
            result = self.synthctl(
                *("eval", "configs/demo/eval.toml", "--model", model, "--task-url", task_url, "--follow", "-o", "json")
            )
        self.accuracy[name] = round(float(result["values"]["reward_mean"]), 4)
        console.print(f"  accuracy of {model}: [bold]{self.accuracy[name]:.3f}[/]")


@contextlib.contextmanager
def cluster(demo: Demo, port: int) -> Iterator[None]:
    """A cluster on this machine, down again at the end whatever happens."""
    with demo.timed("up"):
        demo.synthctl("up", "--detach", "--port", str(port), "--engine", demo.engine, show=True)
    try:
        yield
    finally:
        demo.synthctl("down", show=True)


@contextlib.contextmanager
def task_app() -> Iterator[str]:
    """The Math task app, with the keys that `synthctl up` wrote to .env."""
    log = (OUT / "task_app.log").open("wb")
    console.print(f"[dim]$ python -m task_apps.math --port {TASK_PORT}[/]")
    app = subprocess.Popen([sys.executable, "-m", "task_apps.math", "--port", str(TASK_PORT)], stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{TASK_PORT}"
    finally:
        app.terminate()
        app.wait(10)
        log.close()


def main() -> int:
    """`python -m demo.run`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers")
    parser.add_argument("--install-seconds", type=float, default=0.0, help="how long the installation took")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    demo = Demo(seed=arguments.seed, engine=arguments.engine, seconds={"install": arguments.install_seconds})
    try:
        with demo.timed("total"):
            run(demo, arguments.port)
    except DemoFailed as error:
        console.print(f"[red]the demo stopped:[/] {error}; `synthctl status` and .synth/logs say more")
        return 1
    report(demo)
    return 0


def run(demo: Demo, port: int) -> None:
    """The story, from nothing to a model that learned."""
    seed = ("--seed", str(demo.seed))
    dataset = OUT / "math.jsonl"
    subprocess.run(
        [sys.executable, "-m", "task_apps.math.dataset", "--out", str(dataset), "--rows", "16000", *seed], check=True
    )
    # vLLM's attention has no heads as narrow as those of the tiny model.
    wide = ("--head-dim", "32") if demo.engine == "vllm" else ()
    demo.synthctl("models", "make", "tiny-qwen3", "--replace", *seed, *wide, show=True)
    with cluster(demo, port), task_app() as url:
        demo.evaluate("base", "tiny-qwen3", url)
        sft = demo.submit("sft", "configs/demo/sft.toml", "--dataset", str(dataset), *seed)
        demo.evaluate("sft", sft, url)
        rl = demo.submit("rl", "configs/demo/rl.toml", "--model", sft, "--task-url", url, *seed)
        demo.evaluate("rl", rl, url)
        demo.reward = [float(p["value"]) for p in demo.points("reward_mean")]
        demo.evaluation = {int(p["step"]): float(p["value"]) for p in demo.points("eval.reward_mean")}
        demo.synthctl("chat", rl, "-m", "What is 58 + 67?", "--temperature", "0", show=True)


def report(demo: Demo) -> None:
    """The table, the curve on the screen and as a PNG, and the figures as JSON."""
    picture = OUT / "reward.png"
    save_curve(demo.reward, demo.evaluation, picture)
    print_curve(demo.reward, demo.evaluation)
    print_result(demo.accuracy, demo.seconds)
    figures = {
        "accuracy": demo.accuracy,
        "reward": demo.reward,
        "evaluation": demo.evaluation,
        "seconds": demo.seconds,
        "jobs": demo.jobs,
        "seed": demo.seed,
        "engine": demo.engine,
    }
    (OUT / "report.json").write_text(json.dumps(figures, indent=1))
    console.print(f"reward curve: {picture}   figures: {OUT / 'report.json'}")


if __name__ == "__main__":
    sys.exit(main())
