"""Whether a job fits what trains it, and whether what is suggested would."""

from __future__ import annotations

import re

import pytest

from synth.events import JobCreated, JobRejected, JobValidated
from synth.jobs.fit import SHARE, cannot_fit
from synth.jobs.parse.toml import read_toml
from synth.jobs.plan import TrainerDevice, plan_job
from synth.jobs.resolve.job import Overrides, resolve_job
from synth.methods.base import TrainingJob
from synth.models import Registry
from synth.models.base_shape import base_shape
from synth.models.memory import GIB
from synth.validator.validate import validate

RL = """\
[algorithm]
type = "online"
method = "policy_gradient"
variety = "gspo"
[services]
task_url = "http://127.0.0.1:8001"
[model]
base = "Qwen/Qwen3-{model}"
trainer_mode = "{mode}"
[training]
iterations_per_epoch = 1
"""
SFT = """\
[algorithm]
type = "offline"
method = "sft"
variety = "fft"
[job]
model = "Qwen/Qwen3-{model}"
data = "file_1"
[hyperparameters]
sequence_length = 4096
"""


def job_of(text: str) -> TrainingJob:
    job = resolve_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry()).job
    assert isinstance(job, TrainingJob)
    return job


def problem(text: str, on: TrainerDevice):
    job = job_of(text)
    shape = base_shape(Registry(), job.base_model)
    assert shape is not None
    return cannot_fit(job, shape, on, where="job.toml:8 [model].base")


def changed(text: str, words: str) -> tuple[str, int | None]:
    """The job file with a suggestion's keys in it, and the number of devices that it asks for."""
    ranks = None
    for change in words.split(" and "):
        if found := re.fullmatch(r"(\d+) devices that train", change):
            ranks = int(found[1])
        elif change.startswith("trainer_mode"):
            text = re.sub(r"trainer_mode = .*", change, text)
        elif change.startswith("[training]"):
            text += change.replace("[training] ", "[training]\n") + "\n"
        elif "[job]" in text and change.startswith("activation_checkpointing"):
            text = text.replace("[hyperparameters]\n", f"[hyperparameters]\nparallelism.{change}\n")
        else:
            table = "[hyperparameters]\n" if "[job]" in text else "[training]\n"
            text = text.replace(table, f"{table}{change}\n", 1)
    return text, ranks


@pytest.mark.parametrize(
    ("text", "memory", "ranks"),
    [
        (RL.format(model="4B", mode="full"), 80, 1),
        (RL.format(model="4B", mode="full"), 24, 1),
        (RL.format(model="8B", mode="lora"), 24, 1),
        (RL.format(model="0.6B", mode="full"), 24, 1),
        (RL.format(model="30B-A3B", mode="full"), 80, 2),
        (SFT.format(model="1.7B"), 40, 1),
    ],
)
def test_each_suggestion_makes_a_job_fit_that_does_not(text: str, memory: int, ranks: int) -> None:
    on = TrainerDevice(memory=memory * GIB, ranks=ranks)
    refused = problem(text, on)
    assert refused is not None
    needed, most = re.search(r"takes ([\d.]+) GiB on .* ([\d.]+) GiB: activations", refused.what).groups()  # pyright: ignore
    assert float(needed) > float(most) == memory
    assert refused.where == "job.toml:8 [model].base"
    suggestions = refused.fix.removeprefix("any of: ").split("; ")
    assert len(suggestions) >= 2
    for words in suggestions:
        again, more = changed(text, words)
        assert again != text or more is not None, words
        least = TrainerDevice(memory=int(SHARE * memory * GIB), ranks=more or ranks)
        assert problem(again, least) is None, words


def test_a_job_that_fits_and_one_of_which_nothing_is_known_are_not_refused() -> None:
    text = RL.format(model="4B", mode="lora")
    assert problem(text, TrainerDevice(memory=80 * GIB)) is None
    assert problem(text, TrainerDevice(memory=None)) is None


def test_what_nothing_makes_fit_says_so() -> None:
    refused = problem(RL.format(model="14B", mode="qlora"), TrainerDevice(memory=1 * GIB))
    assert refused is not None
    assert refused.fix == "choose a smaller model, or a device with more memory"


def test_shards_divide_what_a_rank_holds_and_blocks_are_gathered_whole() -> None:
    job = job_of(RL.format(model="4B", mode="full"))
    shape = base_shape(Registry(), job.base_model)
    assert shape is not None
    one, four = (plan_job(job, shape, TrainerDevice(ranks=ranks)).training for ranks in (1, 4))
    assert (four.weights, four.gradients, four.moments) == (one.weights // 4, one.gradients // 4, one.moments // 4)
    assert (one.gathered, four.casts) == (0, 0)
    assert four.activations == one.activations
    block = 2 * (shape.linear_parameters // shape.layers)
    assert 2 * block + 4 * shape.vocabulary * shape.hidden < four.gathered < one.weights


def test_the_validator_rejects_a_job_that_does_not_fit_with_the_numbers_and_what_would_fit() -> None:
    created = JobCreated(kind="rl", config=RL.format(model="4B", mode="full"), config_name="rl.toml", body_sha256="")
    rejected = validate(created, Registry(), trainer=TrainerDevice(memory=80 * GIB))
    assert isinstance(rejected, JobRejected)
    [found] = rejected.problems
    assert found.where == "rl.toml:8 [model].base"
    assert "training 'Qwen/Qwen3-4B' takes 12" in found.text()
    assert 'trainer_mode = "lora"' in found.text()
    assert isinstance(validate(created, Registry(), trainer=TrainerDevice(memory=200 * GIB)), JobValidated)
    assert isinstance(validate(created, Registry(), trainer=TrainerDevice()), JobValidated)
