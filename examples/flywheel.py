"""A loop that runs unattended: SFT, RL, evaluation, filter, and SFT on the good rows, round after round.

    synthctl serve synth.demo.math.app --port 8001 &
    python -m synth.demo.math.dataset --out math.jsonl
    python -m examples.flywheel --name nightly --dataset math.jsonl --task-url http://127.0.0.1:8001

It uses only the HTTP API, and `synthctl filter`. Every job has an idempotency key made from --name, so a flywheel that
was killed is started again with the same line: it finds the jobs that ended, waits for running ones, and submits the
rest. Another --name begins a new loop. It reads BACKEND_BASE_URL and SYNTH_API_KEY, which `synthctl up` writes into
`.env`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from synth.runtime.environment.env_file import read_env_file


class Stopped(Exception):
    """The loop cannot go on, for the reason in its text."""


@dataclass(frozen=True)
class Api:
    """The platform's API. patience: seconds that it may be away before the loop gives up."""

    http: httpx.Client
    patience: float

    def call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        """Send a request, again while the platform does not answer. Raises `Stopped` if it is refused."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                reply = self.http.request(method, path, **request)
                if reply.status_code < 500:
                    break
                why = f"HTTP {reply.status_code}"
            except httpx.TransportError as error:
                why = str(error)
            if time.monotonic() > deadline:
                raise Stopped(f"the platform has been away for {self.patience:g} s: {why}")
            time.sleep(1.0)
        if reply.is_error:
            raise Stopped(f"{method} {path}: {reply.json()['error']['message']}")
        return reply.json()

    def upload(self, file: Path) -> str:
        """Return the id of a dataset; the same bytes are the same file."""
        with file.open("rb") as rows:
            stored = self.call("POST", "files", data={"purpose": "fine-tune"}, files={"file": (file.name, rows)})
        while stored["status"] == "processing":
            time.sleep(0.5)
            stored = self.call("GET", f"files/{stored['id']}")
        if stored["status"] != "ready":
            raise Stopped(f"{file}: {stored['problems']}")
        return stored["id"]

    def run(self, key: str, config: str, **fields: Any) -> dict[str, Any]:
        """Submit a job under its key, or find the one that has it; wait until it has succeeded."""
        body = {"config": Path(config).read_text(), "config_name": Path(config).name, "name": key, **fields}
        job = self.call("POST", "jobs", json=body, headers={"Idempotency-Key": key})
        while not job["ended_at"]:
            time.sleep(1.0)
            job = self.call("GET", f"jobs/{job['id']}")
        if job["state"] != "succeeded":
            raise Stopped(f"{key}: job {job['id']} is {job['state']}: {job['problems']}")
        return job


def filtered(job: str, min_reward: float) -> str:
    """Return the id of a dataset of each seed's best rollout in an evaluation. The same traces make the same bytes."""
    command = [str(Path(sys.executable).parent / "synthctl"), "filter", "--job", job, "--out", f"{job}.jsonl"]
    command += ["--top-k", "1", "--min-reward", str(min_reward), "--upload", "-o", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Stopped(f"no rollout of {job} is worth learning")
    return json.loads(done.stdout)["file"]


def flywheel(api: Api, arguments: argparse.Namespace) -> None:
    """Run all rounds, and print a line for the held-out reward of each model."""
    app = {"task_url": arguments.task_url}

    def run(step: str, config: str, **fields: Any) -> dict[str, Any]:
        return api.run(f"{arguments.name}-{step}", config, **fields)

    def told(step: str, model: str) -> str:
        reward = run(f"{step}-held-out", arguments.eval, model=model, **app)["eval"]["reward_mean"]
        sys.stdout.write(f"{step:10} {model:46} held out {reward:.3f}\n")
        sys.stdout.flush()
        return model

    dataset = api.upload(Path(arguments.dataset))
    model = told("sft-0", run("sft-0", arguments.sft, training_file=dataset)["model"])
    for turn in range(1, arguments.rounds + 1):
        learned = told(f"rl-{turn}", run(f"rl-{turn}", arguments.rl, model=model, **app)["model"])
        played = run(f"play-{turn}", arguments.play, model=learned, **app)["id"]
        rows = filtered(played, arguments.min_reward)
        model = told(f"sft-{turn}", run(f"sft-{turn}", arguments.distil, model=model, training_file=rows)["model"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="of the loop; its jobs' keys begin with it")
    parser.add_argument("--dataset", required=True, help="JSONL of the first SFT")
    parser.add_argument("--task-url", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--min-reward", type=float, default=1.0, help="of a rollout that is learned")
    parser.add_argument("--sft", default="configs/demo/sft.toml")
    parser.add_argument("--rl", default="configs/demo/rl.toml")
    parser.add_argument("--play", default="configs/flywheel/eval.toml", help="the evaluation that filter reads")
    parser.add_argument("--distil", default="configs/flywheel/sft.toml", help="SFT on the filtered rollouts")
    parser.add_argument("--eval", default="configs/demo/eval.toml", help="the evaluation on held-out seeds")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that the platform may be away")
    arguments = parser.parse_args()
    env = read_env_file(Path(".env")) | dict(os.environ)
    headers = {"Authorization": f"Bearer {env['SYNTH_API_KEY']}"}
    with httpx.Client(base_url=env["BACKEND_BASE_URL"], headers=headers, timeout=60.0) as http:
        try:
            flywheel(Api(http, arguments.patience), arguments)
        except Stopped as stopped:
            sys.stderr.write(f"{stopped}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
