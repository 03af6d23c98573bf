"""What an RL job optimises: its keys without a word, and the one error of a value that makes no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, ValidationReport, validate_job
from synth.methods.losses import CorrectionSettings
from synth.methods.rl import RlJob
from synth.models import Registry

RL = """\
[services]
task_url = "http://127.0.0.1:8001/"
[model]
base = "tiny-qwen3"
[training]
iterations_per_epoch = 3
"""


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "tiny-qwen3").mkdir()
    (tmp_path / "tiny-qwen3" / "config.json").write_text('{"model_type": "qwen3"}')
    return Registry(tmp_path)


def report(text: str, registry: Registry) -> ValidationReport:
    return validate_job(read_toml(RL + text, name="job.toml"), overrides=Overrides(), registry=registry)


def job(text: str, registry: Registry) -> RlJob:
    found = report(text, registry)
    assert found.problems == []
    assert isinstance(found.job, RlJob)
    return found.job


def test_without_a_word_rollouts_weigh_the_same_and_are_trained_when_cut_off(registry: Registry) -> None:
    found = job("", registry)
    assert (found.loss_reduction, found.overlong, found.overlong_penalty) == ("sequence", "train", 0.0)


def test_a_penalty_is_one_unless_it_is_said(registry: Registry) -> None:
    assert job('overlong = "penalise"', registry).overlong_penalty == 1
    assert job('overlong = "penalise"\noverlong_penalty = 0.25', registry).overlong_penalty == 0.25


def test_grpo_may_have_a_second_clip(registry: Registry) -> None:
    assert job('loss = "grpo"\ndual_clip = 3', registry).dual_clip == 3
    assert job('loss = "grpo"', registry).dual_clip is None


def test_the_correction_is_a_table_of_its_own(registry: Registry) -> None:
    assert job("", registry).correction == CorrectionSettings()
    keys = 'on_policy = [0.9, 1.2]\noff_policy = [0.0, 3]\ngate_tokens = 8\nrejected = "leave"\ntoken_truncation = 3'
    found = job(f"[training.correction]\n{keys}", registry)
    expected = CorrectionSettings(on_policy=(0.9, 1.2), off_policy=(0, 3), gate_tokens=8, rejected="leave")
    assert (found.correction, found.token_truncation) == (expected, 3)


def test_the_bounds_of_gates_that_are_off_have_no_effect(registry: Registry) -> None:
    found = report("[training.correction]\ngates = false\non_policy = [0.9, 1.2]", registry)
    assert isinstance(found.job, RlJob)
    assert found.job.correction == CorrectionSettings(gates=False)
    assert [w for w in found.warnings if "on_policy" in w and "gates = false" in w]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("dual_clip = 3.0", ["[training].dual_clip", "is of grpo, and the loss is gspo"]),
        ('loss = "grpo"\ndual_clip = 1', ["[training].dual_clip", "1"]),
        ("[training.correction]\non_policy = [1.01, 0.99]", ["on_policy", "is upside down", "write [0.99, 1.01]"]),
        ("[training.correction]\noff_policy = [1.1, 2]", ["off_policy = [1.1, 2] rejects tokens without drift"]),
        ("[training.correction]\noff_policy = [0.5]", ["[training.correction].off_policy"]),
        ("[training.correction]\non_policy = [-1, 2]", ["on_policy", "-1"]),
        ("[training.correction]\ngate_tokens = -1", ["gate_tokens"]),
        ('[training.correction]\nrejected = "drop"', ["rejected", "'leave' or 'count'"]),
        ("overlong_penalty = 0.5", ["[training].overlong_penalty", "has no effect", 'overlong = "penalise"']),
        ('overlong = "mask"\noverlong_penalty = 0.5', ["has no effect", "'mask'"]),
        ('overlong = "penalise"\noverlong_penalty = -1', ["overlong_penalty", "-1"]),
        ('overlong = "drop"', ["overlong", "'train', 'mask' or 'penalise'"]),
        ('loss_reduction = "batch"', ["loss_reduction", "'sequence', 'token' or 'prompt'"]),
    ],
)
def test_a_key_that_makes_no_sense_is_one_error(keys: str, said: list[str], registry: Registry) -> None:
    (problem,) = report(keys, registry).problems
    for words in said:
        assert words in problem.text()
