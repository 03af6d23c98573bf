"""`[distillation]`: what it asks for without a word, and the one error of a job that it does not go together with."""

from __future__ import annotations

import pytest

from synth.jobs.parse.toml import read_toml
from synth.jobs.resolve.job import Overrides, validate_job
from synth.methods.distillation import DistillationSettings
from synth.models import Registry
from tests.unit.jobs.test_objectives import job, registry, report

__all__ = ["registry"]

TEACHER = '[distillation]\nteacher = "tiny-qwen3"\n'


def test_a_teacher_counts_as_much_as_the_rewards_and_gives_each_token_its_own_advantage(registry: Registry) -> None:
    found = job(TEACHER, registry)
    assert found.distillation == DistillationSettings(
        teacher="tiny-qwen3", kl_coef=1.0, reward_weight=1.0, max_outage_s=3600
    )
    assert (found.loss, found.solved_after) == ("gspo_token", 0)
    assert job("", registry).distillation is None


def test_every_key_is_taken(registry: Registry) -> None:
    found = job(TEACHER + "kl_coef = 0.5\nreward_weight = 0.0\nmax_outage_s = 9.0", registry)
    assert found.distillation == DistillationSettings(
        teacher="tiny-qwen3", kl_coef=0.5, reward_weight=0.0, max_outage_s=9.0
    )


@pytest.mark.parametrize("loss", ["gspo_token", "grpo", "dppo", "cispo"])
def test_a_loss_that_knows_tokens_stays(registry: Registry, loss: str) -> None:
    assert job(f'loss = "{loss}"\n{TEACHER}', registry).loss == loss


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (f'loss = "gspo"\n{TEACHER}', "[training].loss", "gspo has one advantage for a whole sequence"),
        (f"dynamic_sampling = true\n{TEACHER}", "[training].dynamic_sampling", "with a teacher each group teaches"),
        (f"solved_after = 3\n{TEACHER}", "[training].solved_after", "with a teacher no seeds count as solved"),
        (f'{TEACHER}[data]\ncurriculum = ["0-9"]', "[data].curriculum", "with a teacher no seeds count as solved"),
        (f"{TEACHER}[rollout.policy_config]\ntemperature = 0.7", "[distillation]", "samples at temperature 0.7"),
        ('[distillation]\nteacher = "tiny-qwen4"', "[distillation].teacher", "tiny-qwen4"),
        (f"{TEACHER}kl_coef = 0.0", "[distillation].kl_coef", "0"),
        ("[distillation]\nkl_coef = 1.0", "[distillation]", "teacher"),
    ],
)
def test_what_does_not_go_together_is_one_error(registry: Registry, text: str, where: str, what: str) -> None:
    [problem] = report(text, registry).problems
    assert where in problem.where
    assert what in problem.text()


def test_a_policy_that_sees_has_no_teacher() -> None:
    text = f'[services]\ntask_url = "http://127.0.0.1:1"\n[model]\nbase = "Qwen/Qwen3-VL-4B-Instruct"\n{TEACHER}'
    text = text.replace("tiny-qwen3", "Qwen/Qwen3-4B")
    found = validate_job(read_toml(text, name="job.toml"), overrides=Overrides(), registry=Registry())
    [problem] = found.problems
    assert "sees images, and a teacher is shown tokens of text alone" in problem.what
