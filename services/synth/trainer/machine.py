"""What the machine decides of a training run, beside its job."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from synth.methods.base import TrainingJob

#: The settings that may differ when a run resumes: their differences are in the fingerprint (decision 29).
MAY_DIFFER = frozenset(
    {"device", "dtype", "threads", "deterministic", "world_size", "sharding", "reference_device", "checkpoint_bytes"}
)


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how a job is trained.

    dtype: of the forward and of the served weights; master weights, log-probabilities and loss are float32.
    checkpoint_bytes: of a checkpoint's state, for each begun one of which the default interval between checkpoints
    grows by one. world_size: processes (ranks) that train together, a GPU each. reference_device: the torch device of a
    dedicated reference; None is the policy's. adapter_base: the id of the adapter's base model, which its files name;
    None: they name none.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["fp32", "bf16"] = "fp32"
    threads: int = 1
    deterministic: bool = True
    checkpoint_bytes: int = 8 << 30
    world_size: int = 1
    reference_device: str | None = None
    adapter_base: str | None = None

    def shards(self, job: TrainingJob) -> bool:
        """Return whether a rank holds only a shard of the job's model."""
        return self.world_size > 1 and job.parallelism.sharding != "replicated"


ONE_CPU = Machine()


def recipe(job: TrainingJob, machine: Machine) -> dict[str, Any]:
    """Return the settings that a checkpoint stores, as JSON data."""
    fields = job.recipe | msgspec.to_builtins(machine)
    if "reference" not in fields:
        del fields["reference_device"]
    return msgspec.json.decode(msgspec.json.encode(fields))


def same_recipe(stored: dict[str, Any], job: TrainingJob, machine: Machine) -> bool:
    """Return whether a checkpoint was saved under the settings of this job. A newer setting counts as its default."""
    here = recipe(job, machine)
    defaults = {field.name: field.default for field in msgspec.structs.fields(type(job))}
    compared = (stored.keys() | here.keys()) - MAY_DIFFER
    return all(stored.get(key, defaults.get(key)) == here.get(key, ...) for key in compared)
