"""Keys that the task app reads: they reach it, and nothing says that they have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synth.errors import Problem
from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.methods.eval import EvalJob
from synth.methods.rl import RlJob
from synth.methods.rollouts import RolloutSettings
from synth.models import Registry

RL = """\
[services]
task_url = "http://127.0.0.1:8001/"
[model]
base = "Qwen/Qwen3-VL-2B-Instruct"
supports_vision = true
max_images_per_message = 1
vision_processor_id = "Qwen/Qwen3-VL-2B-Instruct"
[training]
iterations_per_epoch = 3
"""
EVAL = """\
[eval]
model = "Qwen/Qwen3-VL-2B-Instruct"
task_app_url = "http://127.0.0.1:8001"
seeds = [1]
"""


#: What the registry says of a model that sees.
SIGHT = {"supports_vision": True, "use_vision": True}


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path)


def report(text: str, registry: Registry) -> ValidationReport:
    return validate_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=registry)


def rollout(text: str, registry: Registry) -> RolloutSettings:
    """How the task app of a job without a problem or a warning is driven."""
    found = report(text, registry)
    assert (found.problems, found.warnings) == ([], [])
    assert isinstance(found.job, RlJob | EvalJob)
    return found.job.rollout


def problem(text: str, registry: Registry) -> Problem:
    [found] = report(text, registry).problems
    return found


@pytest.mark.parametrize(
    ("table", "keys", "given"),
    [
        ("[rollout]", "use_vision = true", {"use_vision": True}),
        ("[rollout.policy_config]", "use_vision = true\nimage_only_mode = false", {"use_vision": True}),
        ("[rollout]", "image_only_mode = true\nmax_images_per_step = 1", {"max_images_per_step": 1}),
        ("[policy]", 'stop_sequences = ["END"]\ntop_p = 1', {"stop": ["END"]}),
    ],
)
def test_keys_of_an_rl_file_reach_the_policy_of_the_task_app(
    table: str, keys: str, given: dict[str, Any], registry: Registry
) -> None:
    found = rollout(f"{RL}{table}\n{keys}\n", registry).policy_config
    assert found | given == found


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        ("use_vision = true", {"use_vision": True}),
        ("image_only_mode = true", {"image_only_mode": True}),
        ("use_tools = true", {"use_tools": True}),
        ('tool_choice = "auto"', {"tool_choice": "auto"}),
        ('reasoning_effort = "low"', {"reasoning_effort": "low"}),
        ('system_hint = "be brief"', {"system_hint": "be brief"}),
    ],
)
@pytest.mark.parametrize("top", ["", "[eval]\n"])
def test_keys_of_an_evaluation_reach_the_policy_of_the_task_app(
    top: str, keys: str, given: dict[str, Any], registry: Registry
) -> None:
    text = EVAL.replace("[eval]\n", top) + f"{keys}\n"
    assert rollout(text, registry).policy_config == SIGHT | given


def test_what_the_file_says_of_images_counts_before_what_the_registry_knows(registry: Registry) -> None:
    assert rollout(f"{RL}[rollout]\n", registry).policy_config == SIGHT
    assert rollout(f"{RL}[rollout]\nuse_vision = false\n", registry).policy_config == SIGHT | {"use_vision": False}


@pytest.mark.parametrize(
    ("keys", "given"),
    [
        ('split = "test"', {"split": "test"}),
        ("max_steps = 9", {"max_steps": 9}),
        ("max_steps_per_episode = 9", {"max_steps_per_episode": 9}),
        ('split = "test"\nenv_config = {size = 3}', {"split": "test", "size": 3}),
        ('split = "test"\nenv_config = {split = "test"}', {"split": "test"}),
    ],
)
def test_keys_of_an_evaluation_reach_the_environment(keys: str, given: dict[str, Any], registry: Registry) -> None:
    assert rollout(f"{EVAL}{keys}\n", registry).env_config == given


def test_training_and_its_evaluations_are_given_the_splits_of_the_data(registry: Registry) -> None:
    evaluation = '[evaluation]\nseeds = "200000-200009"\nevery_n_iters = 1\n'
    text = f'{RL}{evaluation}[data]\nsplit = "train"\nevaluation_split = "validation"\n'
    found = rollout(text, registry)
    assert (found.env_config, found.evaluation_env_config) == ({"split": "train"}, {"split": "validation"})
    same = rollout(text.replace('evaluation_split = "validation"\n', ""), registry)
    assert (same.env_config, same.evaluation_env_config) == ({"split": "train"}, {})
    assert report(text, registry).origins["rollout.evaluation_env_config"] == "job.toml:15 [data].evaluation_split"
    [said] = report(text.replace(evaluation, ""), registry).warnings
    assert said == "job.toml:12 [data].evaluation_split has no effect: nothing is evaluated"


def test_a_key_that_is_given_twice_with_two_values_is_refused(registry: Registry) -> None:
    found = problem(f"{RL}[rollout]\nuse_vision = true\n[rollout.policy_config]\nuse_vision = false\n", registry)
    assert found.where == "job.toml:11 [rollout].use_vision"
    assert found.what == "the task app would be given use_vision = true and, by [rollout.policy_config], false"
    found = problem(f'{EVAL}split = "test"\nenv_config = {{split = "train"}}\n', registry)
    assert found.what == 'the task app would be given split = "test" and, by env_config, "train"'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (f"{EVAL}[eval.metadata]\nsplit = 'test'\n", "job.toml:5 [eval.metadata]"),
        (f"{EVAL}metadata_sql = 'seed > 3'\n", "job.toml:5 [eval].metadata_sql"),
        (f"{RL}[training.weight_sync]\nenable = false\n", "job.toml:11 [training.weight_sync].enable"),
        (f"{RL}[training.weight_sync]\ntargets = ['judge']\n", "job.toml:11 [training.weight_sync].targets"),
        (f"{RL}[policy]\nrepetition_penalty = 1.2\ntop_p = 1\n", "job.toml:11 [policy].repetition_penalty"),
    ],
)
def test_what_would_change_the_result_and_is_not_done_is_refused(text: str, where: str, registry: Registry) -> None:
    assert problem(text, registry).where.startswith(where)
