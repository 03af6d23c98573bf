"""A policy that masters its environment: its job says so, and ends early or goes on with harder seeds."""

from __future__ import annotations

import pytest

from synth.trainer.collapse.learning_signal import SOLVED, STAGE
from tests.e2e.platform import JOB_S, Platform, rl
from tests.e2e.task_apps import one_letter, served

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


def test_a_job_whose_policy_masters_its_environment_ends_as_solved_with_its_model(platform: Platform):
    training = "async_level = 1\nsolved_after = 3\ncheckpoint_every = 7"
    config = rl("tiny-qwen3", "URL", iterations=60, env="one_letter", training=training)
    # Whether a policy gets there by itself is chance. From the seventh iteration on every reply is the best there is.
    with served(one_letter(easy_after=6 * 16)) as app:
        id = platform.submit(config.replace("URL", app.url))
        watched = platform.shell.run("jobs", "watch", id, timeout=JOB_S)
    job = platform.job(id)
    assert (watched.returncode, job["state"]) == (0, "succeeded"), job
    [warned] = [w for w in platform.events(id, "train.warned") if w["rule"] == SOLVED]
    assert (warned["rule"], warned["action"], warned["over"]) == (SOLVED, "finish", 3)
    assert job["step"] == warned["step"] < 60
    assert job["reason"] == f"{SOLVED}: {warned['problem']['what']}"
    assert job["reason"] in watched.stdout
    assert "nothing is left to learn" in platform.shell.ok("jobs", "get", id)
    # Every step is there, also those since the last checkpoint, and each says the largest reward.
    steps = platform.steps(id)
    assert len(steps) == job["step"]
    assert [step["reward_max"] for step in steps[-3:]] == [1.0] * 3
    assert steps[0]["reward_mean"] < 1.0
    [published] = platform.events(id, "model.published")
    assert published["step"] == job["step"]
    assert platform.answer(job["model"], "One letter, please: 1")["model"] == job["model"]


def test_a_job_with_a_curriculum_goes_on_with_harder_seeds_when_the_first_are_solved(platform: Platform):
    training = "async_level = 1\nsolved_after = 2"
    config = rl("tiny-qwen3", "URL", iterations=6, env="one_letter", training=training)
    with served(one_letter(easy_below=100)) as app:
        text = config.replace("URL", app.url).replace('seeds = "0-99"', 'seeds = "0-99"\ncurriculum = ["100-199"]')
        id = platform.submit(text)
        job = platform.succeeded(id)
    [warned] = [w for w in platform.events(id, "train.warned") if w["rule"] == SOLVED]
    assert (warned["rule"], warned["step"], warned["action"]) == (SOLVED, 2, "advance")
    stages = [step[STAGE] for step in platform.steps(id)]
    # The third iteration was collected ahead, while the second one was trained.
    assert stages == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    requested = {r["iteration"]: r["seeds"] for r in platform.events(id, "rollout.requested")}
    assert all((seed >= 100) == (k > 3) for k, seeds in requested.items() for seed in seeds)
    assert (job["step"], job["reason"]) == (6, "")
