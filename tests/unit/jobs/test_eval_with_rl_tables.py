"""An evaluation beside the very `[model]` and `[rollout]` of an RL job: what RL says of a rollout holds in both."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from synth.jobs.parse.toml import Document, read_toml
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.methods.eval import EvalJob
from synth.methods.rl import RlJob
from synth.models import Registry

ROOT = Path(__file__).parents[3]
EVAL = {"task_app_url": "http://127.0.0.1:8001", "seeds": [1, 2]}
SEES = {
    "model": {
        "base": "Qwen/Qwen3-VL-2B-Instruct",
        "trainer_mode": "lora",
        "label": "seen",
        "supports_vision": True,
        "max_images_per_message": 2,
    },
    "rollout": {
        "env_name": "crafter",
        "policy_name": "react",
        "max_turns": 4,
        "max_concurrent_rollouts": 7,
        "failure_reward": -1.0,
        "rollout_timeout_s": 12.0,
        "max_retries": 1,
        "constrain_tools": True,
        "use_vision": True,
        "image_only_mode": True,
        "max_images_per_step": 2,
        "task_app_origin_rewards_only": True,
        "env_config": {"area": 24},
        "policy_config": {"max_tokens": 24, "temperature": 0.5, "action_format": "text"},
    },
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    models = tmp_path_factory.mktemp("models")
    (models / "tiny-qwen3").mkdir()
    (models / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(models)


def check(data: dict[str, Any], registry: Registry) -> ValidationReport:
    return validate_job(Document(name="job.toml", data=data), overrides=Overrides(), registry=registry)


def both(tables: dict[str, Any], registry: Registry) -> tuple[RlJob, EvalJob]:
    """The RL job, and the evaluation with its tables."""
    rl = check({"services": {"task_url": EVAL["task_app_url"]}, **tables}, registry)
    evaluation = check({"eval": EVAL, **{name: tables[name] for name in ("model", "rollout")}}, registry)
    assert rl.problems == []
    assert evaluation.problems == []
    assert isinstance(rl.job, RlJob)
    assert isinstance(evaluation.job, EvalJob)
    return rl.job, evaluation.job


def test_each_key_of_a_rollout_is_the_same_in_both(registry: Registry):
    rl, evaluation = both(SEES, registry)
    assert (evaluation.model, evaluation.label, evaluation.vision) == (rl.model, rl.label, rl.vision)
    assert evaluation.rewards.scores == rl.rewards.scores == "task_app"
    for name in rl.rollout.__struct_fields__:
        # A share of training is traced, and no evaluation is training.
        if name != "trace_rate":
            assert getattr(evaluation.rollout, name) == getattr(rl.rollout, name), name


@pytest.mark.parametrize("file", ["demo/rl.toml", "maze/rl.toml", "crafter/rl_text.toml", "crafter/rl_vl.toml"])
def test_the_tables_of_our_own_jobs_are_an_evaluation(file: str, registry: Registry):
    document = read_toml((ROOT / "configs" / file).read_text(), name=file)
    rl, evaluation = both({name: document.data[name] for name in ("model", "rollout")}, registry)
    assert evaluation.rollout.max_turns == rl.rollout.max_turns
    assert evaluation.rollout.env_config == rl.rollout.env_config


def test_what_is_training_alone_is_said(registry: Registry):
    tables = copy.deepcopy(SEES)
    tables["rollout"] |= {"trace_rate": 0.5, "group_timeout_s": 3.0, "batches_per_step": 2}
    found = check({"eval": EVAL, **tables}, registry)
    said = "\n".join(found.warnings)
    assert "[model].trainer_mode has no effect: nothing is trained" in said
    assert "trace_rate" in said
    assert "group_timeout_s has no effect: each rollout of an evaluation is waited for" in said


def test_two_models_and_two_wishes_are_problems_that_name_both(registry: Registry):
    two = check({"eval": EVAL | {"model": "tiny-qwen3"}, "model": SEES["model"]}, registry)
    assert "[eval].model = 'tiny-qwen3' and [model].base = 'Qwen/Qwen3-VL-2B-Instruct'" in two.problems[0].what
    wishes = check({"eval": EVAL | {"use_vision": False}, **SEES}, registry)
    assert any("use_vision = true and, by another key, false" in problem.what for problem in wishes.problems)
