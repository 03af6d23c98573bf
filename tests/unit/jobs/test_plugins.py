"""`[training] loss` and `advantage` as functions of the operator's own: what may be written, and who refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.events import JobCreated, JobRejected, JobValidated
from synth.jobs.complete_file import complete_file
from synth.models import Registry
from synth.validator.validate import validate
from tests.unit.jobs.test_objectives import RL, job, registry, report

__all__ = ["registry"]

LOSS = 'loss = "examples.plugins:tapered"\n'
ADVANTAGE = 'advantage = "examples.plugins:by_rank"\n'


def verdict(text: str, registry: Registry, *plugins: str) -> JobValidated | JobRejected:
    created = JobCreated(config=RL + text, config_name="job.toml", body_sha256="0")
    return validate(created, registry, plugins=plugins)


def test_a_plugin_is_the_loss_whatever_the_variety_and_has_the_clip_of_grpo_when_not_said(registry: Registry) -> None:
    algorithm = '[algorithm]\ntype = "online"\nmethod = "policy_gradient"\nvariety = "gspo"\n'
    found = report(LOSS + ADVANTAGE + algorithm, registry)
    assert (found.problems, [w for w in found.warnings if "loss" in w]) == ([], [])
    made = job(LOSS + ADVANTAGE, registry)
    assert (made.loss, made.advantage) == ("examples.plugins:tapered", "examples.plugins:by_rank")
    assert (made.clip_low, made.clip_high, made.token_truncation) == (0.2, 0.28, 2.0)
    assert job(LOSS + "clip_low = 1e-9", registry).clip_low == 1e-9
    file = complete_file(found, found.values)["training"]
    assert (file["loss"], file["clip_high"], "advantage_std" in file) == (made.loss, 0.28, False)


def test_with_a_teacher_a_plugin_stays(registry: Registry) -> None:
    assert job(f'{LOSS}[distillation]\nteacher = "tiny-qwen3"', registry).loss == "examples.plugins:tapered"


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('loss = "gsop"', "[training].loss", "did you mean 'gspo'?"),
        ('loss = "examples.plugins"', "[training].loss", '"package.module:function"'),
        ('advantage = "by_rank"', "[training].advantage", '"package.module:function"'),
        ("advantage = 3", "[training].advantage", "text in quotes"),
        (f"{ADVANTAGE}advantage_std = true", "[training].advantage_std", "gives the advantages"),
        (f"{LOSS}dual_clip = 3.0", "[training].dual_clip", "is of grpo"),
    ],
)
def test_what_makes_no_sense_is_one_error(registry: Registry, text: str, where: str, what: str) -> None:
    [problem] = report(text, registry).problems
    assert where in problem.where
    assert what in problem.text()


def test_validation_lets_pass_what_is_allowed_and_there(registry: Registry, tmp_path: Path) -> None:
    assert isinstance(verdict(LOSS + ADVANTAGE, registry, "examples"), JobValidated)
    refused = verdict(LOSS + ADVANTAGE, registry, "acme")
    assert isinstance(refused, JobRejected)
    assert [problem.where for problem in refused.problems] == [
        "job.toml:7 [training].loss",
        "job.toml:8 [training].advantage",
    ]
    assert all("expected a module of acme" in problem.text() for problem in refused.problems)
    typo = verdict(LOSS.replace("tapered", "taperd"), registry, "examples")
    assert isinstance(typo, JobRejected)
    assert "did you mean 'tapered'?" in typo.problems[0].text()
