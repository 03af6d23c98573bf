"""A running cluster through its front door: `synthctl`, and the HTTP API with the key that `synthctl up` wrote.

A process of `synthctl` takes half a second of CPU: what every test does is asked by its client, in this process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import httpx

from synth.api.schemas import EventView
from synth.cli.tui.json_fields import to_json_data
from synth.cli.tui.progress import exit_code
from synth.client import Client, FailedJob
from synth.client.connections.config import Config, ConfigValue
from synth.console.errors import TimedOut
from synth.runtime.environment.env_file import read_env_file
from tests.e2e.cli.conftest import Shell

#: A user's wait for a job of these tests; each takes seconds, and some stand behind others.
JOB_S = 600.0


@dataclass
class Platform:
    """Submits job files, waits for them, and reads what became of them."""

    shell: Shell
    _numbers: count[int] = field(default_factory=count)

    @cached_property
    def api(self) -> httpx.Client:
        """The gateway's API, as a user's program calls it."""
        headers = {"Authorization": f"Bearer {self._key}"}
        return httpx.Client(base_url=self._root, headers=headers, timeout=60)

    @cached_property
    def client(self) -> Client:
        """What `synthctl` asks the gateway with."""
        key = ConfigValue(self._key, ".env", "SYNTH_API_KEY")
        address = ConfigValue(f"{self._root}/api", ".env", "BACKEND_BASE_URL")
        return Client(Config(backend=address, api_key=key, environment_key=None, task_url=None))

    @property
    def _root(self) -> str:
        return f"http://127.0.0.1:{self.shell.port}"

    @property
    def _key(self) -> str:
        return read_env_file(self.shell.folder / ".env")["SYNTH_API_KEY"]

    def write(self, text: str, name: str = "job") -> str:
        """A job file in the folder; returns its name."""
        file = f"{name}-{next(self._numbers)}.toml"
        (self.shell.folder / file).write_text(text)
        return file

    def submit(self, text: str, *flags: str) -> str:
        """Submit a job; returns its id."""
        return self.shell.ok("submit", self.write(text), *flags, "--detach").strip()

    def job(self, job: str) -> dict[str, Any]:
        """The job, as `jobs get -o json` prints it."""
        return to_json_data(self.client.jobs.get(job))

    def outcome(self, job: str, *, timeout: float = JOB_S) -> tuple[int, dict[str, Any]]:
        """Follow a job to its end: the exit code of `jobs watch`, and the job as it is then. Raises `TimedOut`."""
        try:
            self.client.jobs.wait(job, timeout=timeout)
        except FailedJob:
            pass
        except TimedOut as error:
            error.add_note(self._progress(job))
            raise
        found = self.job(job)
        return exit_code(found["state"]), found

    def _progress(self, job: str) -> str:
        """Return a job's last events and the end of each service's log, for the report of the failed test."""
        events = [event for event in self.log(job) if event.type != "watch.heartbeat"]
        lines = [f"{event.time} {event.type} {str(event.data)[:300]}" for event in events[-30:]]
        for file in sorted((self.shell.folder / ".synth" / "logs").glob("*.log")):
            lines += [f"--- {file.name}", *file.read_text(errors="replace").splitlines()[-15:]]
        return "\n".join(lines)

    def succeeded(self, job: str) -> dict[str, Any]:
        """The job, which must succeed."""
        code, found = self.outcome(job)
        assert (code, found["state"]) == (0, "succeeded"), (found["state"], found["code"], found["problems"])
        return found

    def events(self, job: str, type: str) -> list[dict[str, Any]]:
        """The bodies of a job's events of one type."""
        return [event.data for event in self.log(job) if event.type == type]

    def log(self, job: str) -> list[EventView]:
        """All of a job's events until now."""
        return [*self.client.jobs.events(job)]

    def steps(self, job: str) -> list[dict[str, Any]]:
        """The values of each training step."""
        return [step["values"] for step in self.events(job, "train.step")]

    def greedy(self, model: str, text: str) -> str:
        """The text that a model answers at temperature 0."""
        return self.answer(model, text)["choices"][0]["message"]["content"]

    def answer(self, model: str, text: str) -> dict[str, Any]:
        """The completion that a model answers at temperature 0."""
        return self.client.chat(model, text, temperature=0.0, max_tokens=16).completion

    def rollout(self, job: str, rollout: str) -> dict[str, Any]:
        """One rollout with its transcript, as `rollouts show -o json` prints it."""
        return to_json_data(self.client.jobs.rollout(job, rollout))


def sft(*, lora: int | None = None, four_bits: bool = False, steps: int = 30, model: str = "tiny-qwen3") -> str:
    """An SFT job file. lora: the adapter's rank. four_bits: of the base below it."""
    adapter = "qlora" if four_bits else "lora"
    variety, table = (adapter, f"[lora]\nr = {lora}\nalpha = {2 * lora}") if lora else ("fft", "")
    return f"""
[algorithm]
type = "offline"
method = "sft"
variety = "{variety}"
[job]
model = "{model}"
[hyperparameters]
total_steps = {steps}
global_batch = 16
sequence_length = 64
learning_rate = 5e-3
packing = false
{table}
"""


def rl(
    source: str,
    task_url: str,
    *,
    lora: int | None = None,
    four_bits: bool = False,
    iterations: int = 3,
    turns: int = 1,
    env: str = "letters",
    training: str = "async_level = 0",
    rollout: str = "rollout_timeout_s = 20.0",
    tail: str = "",
) -> str:
    """An RL job file: 4 groups of 4. training, rollout: lines of these tables; tail: more tables; else as in `sft`."""
    key = "source" if ":" in source else "base"
    adapter = "qlora" if four_bits else "lora"
    table = f"[lora]\nr = {lora}\nalpha = {2 * lora}" if lora else ""
    return f"""
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "{task_url}"
[model]
{key} = "{source}"
trainer_mode = "{adapter if lora else "full"}"
[rollout]
env_name = "{env}"
max_turns = {turns}
{rollout}
[rollout.policy_config]
max_tokens = 12
[training]
iterations_per_epoch = {iterations}
batch_size = 4
group_size = 4
learning_rate = 1e-3
warmup_ratio = 0.0
minibatches = 2
packing = false
{training}
[data]
seeds = "0-99"
{table}
{tail}
"""
