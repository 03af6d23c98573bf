"""The two runs that the tax is measured on: a model, and the RL job that trains it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.local.tiny_models.qwen3 import make_tiny_qwen3
from synth.methods.rl import RlJob
from synth.models import Registry


@dataclass(frozen=True)
class Workload:
    """A model's size and an RL job's numbers. steps: of the job; the first `warmup` of them are not counted."""

    model: str
    hidden: int
    layers: int
    heads: int
    groups: int
    group_size: int
    max_tokens: int
    steps: int
    warmup: int
    async_level: int

    @property
    def rollouts(self) -> int:
        """Of one step."""
        return self.groups * self.group_size

    def make_model(self, models: Path) -> int:
        """Write the model into the models folder; returns its number of parameters."""
        made = make_tiny_qwen3(
            models / self.model,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.heads // 2,
            context=512,
        )
        return made.parameters

    def toml(self, task_url: str) -> str:
        """Return the job as a user would write it."""
        return f"""\
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"

[services]
task_url = "{task_url}"

[model]
base = "{self.model}"
trainer_mode = "full"
label = "tax"

[rollout]
env_name = "tax"
max_concurrent_rollouts = {self.rollouts}

[rollout.policy_config]
temperature = 1.0
max_tokens = {self.max_tokens}

[training]
iterations_per_epoch = {self.steps}
batch_size = {self.groups}
group_size = {self.group_size}
learning_rate = 1e-5
minibatches = 2
async_level = {self.async_level}
packing = false
"""

    def job(self, models: Path, task_url: str) -> RlJob:
        """Return the job as the validator resolves it."""
        resolved = resolve_job(
            read_toml(self.toml(task_url), name="tax.toml"), overrides=Overrides(), registry=Registry(models)
        )
        assert isinstance(resolved.job, RlJob)
        return resolved.job


#: One step of one plain process takes 8 s or more: here the platform has something to overlap.
LARGE = Workload(
    model="tax-large",
    hidden=256,
    layers=6,
    heads=4,
    groups=16,
    group_size=8,
    max_tokens=128,
    steps=6,
    warmup=1,
    async_level=1,
)
#: The demo's numbers: the model costs next to nothing, so that the rest is the platform's.
DEMO = Workload(
    model="tax-demo",
    hidden=64,
    layers=2,
    heads=4,
    groups=16,
    group_size=8,
    max_tokens=32,
    steps=20,
    warmup=3,
    async_level=0,
)


def shortened(workload: Workload) -> Workload:
    """Return the same step, fewer times: two that count."""
    return replace(workload, steps=workload.warmup + 2)
