"""A policy that a huge learning rate destroys: its job says so, and is paused or ended where its file wants that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from synth.trainer.collapse.learning_signal import NO_LEARNING_SIGNAL, SOLVED
from synth.trainer.collapse.rules import RULES
from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import JOB_S, Platform, rl
from tests.e2e.task_apps import letters, paying, served

pytestmark = pytest.mark.timeout(240)

ITERATIONS = 20
PATIENCE = 2


@pytest.fixture(scope="module")
def jobs(platform: Platform) -> Iterator[dict[str, str]]:
    """A job for each action, all at once. Within a few steps every reply is the same letter.

    Which letters a policy ends at is chance, and they may be worth more than what it said first. So nothing is paid
    any more after two iterations. Each sign of a collapse by itself is for the unit tests of the rules.
    """
    made: dict[str, str] = {}
    with ExitStack() as apps:
        for action in ("stop", "pause", "warn"):
            app = apps.enter_context(served(letters(paid=32)))
            watch = f'[training.watch]\naction = "{action}"\npatience = {PATIENCE}\nwindow = 1\n'
            job = rl("tiny-qwen3", app.url, iterations=ITERATIONS, tail=watch)
            made[action] = platform.submit(job.replace("learning_rate = 1e-3", "learning_rate = 0.3"))
        yield made


def log_of(platform: Platform, job: str) -> list[str]:
    """The types of a job's last facts, without what an engine says that was loading as it ended."""
    return [event.type for event in platform.log(job) if event.type not in ("watch.heartbeat", "policy.loaded")]


def test_a_collapse_ends_a_job_that_wants_it_with_the_numbers(platform: Platform, jobs: dict[str, str]):
    code, job = platform.outcome(jobs["stop"])
    assert (code, job["state"], job["code"]) == (3, "failed", "collapsed")
    [problem] = job["problems"]
    warned = platform.events(jobs["stop"], "train.warned")
    assert problem == warned[0]["problem"]
    assert {w["rule"] for w in warned} <= {rule.name for rule in RULES}
    assert all(w["over"] == PATIENCE and w["step"] == job["step"] < ITERATIONS for w in warned)
    assert log_of(platform, jobs["stop"])[-1] == "job.failed"
    # What the policy was before it fell can still be talked to. It may have nothing to say: an empty reply is one.
    kept = platform.client.checkpoints(jobs["stop"])
    answer = platform.answer(kept[-1].model, "Letters, please: 1")
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.long
def test_a_collapse_pauses_a_job_that_wants_it_and_its_user_may_go_on(platform: Platform, jobs: dict[str, str]):
    job = jobs["pause"]
    eventually(lambda: platform.job(job)["state"] == "paused", timeout=JOB_S)
    [paused] = platform.events(job, "job.paused")
    first = platform.events(job, "train.warned")[0]
    assert first["problem"]["what"] in paused["reason"]
    shown = platform.shell.run("jobs", "get", job)
    assert f"warning: {first['problem']['what']}" in shown.stderr
    platform.client.resume(job)
    eventually(lambda: platform.job(job)["step"] > paused["step"], timeout=JOB_S)
    # Only a sign that was absent for `patience` steps can come back, and must show for as many.
    soonest = first["step"] + 2 * PATIENCE
    warned = [w for w in platform.events(job, "train.warned") if w["rule"] == first["rule"]]
    assert [w for w in warned if w["step"] < soonest] == [first]
    platform.client.cancel(job)


def test_a_job_that_is_only_warned_ends_when_nothing_is_left_to_learn_from(platform: Platform, jobs: dict[str, str]):
    watched = platform.shell.run("jobs", "watch", jobs["warn"], timeout=JOB_S)
    assert watched.returncode == 3
    assert platform.job(jobs["warn"])["code"] == NO_LEARNING_SIGNAL
    warned = platform.events(jobs["warn"], "train.warned")
    assert len(warned) > 1
    for said in warned:
        assert f"warning: {said['problem']['what']}" in watched.stdout
    assert (warned[-1]["rule"], warned[-1]["over"]) == (NO_LEARNING_SIGNAL, 5)
    assert log_of(platform, jobs["warn"])[-1] == "job.failed"


@pytest.mark.parametrize(("reward", "rule"), [(1.0, SOLVED), (0.0, NO_LEARNING_SIGNAL)])
def test_a_job_that_trained_nothing_says_so(platform: Platform, reward: float, rule: str):
    with served(paying(reward)) as app:
        id = platform.submit(rl("tiny-qwen3", app.url, iterations=2, env="paying"))
        watched = platform.shell.run("jobs", "watch", id, timeout=JOB_S)
    job = platform.job(id)
    [warned] = platform.events(id, "train.warned")
    assert (warned["rule"], warned["step"]) == (rule, 2)
    assert f"warning: {warned['problem']['what']}" in watched.stdout
    if rule == SOLVED:
        assert (watched.returncode, job["state"], job["code"]) == (0, "succeeded", None)
        assert "every rollout of all 2 iterations earned 1, the most there is" in job["warned"][rule]["problem"]["what"]
        assert warned["problem"]["what"] in platform.shell.run("jobs", "get", id).stderr
        assert job["reason"] == f"{SOLVED}: {warned['problem']['what']}"
    else:
        assert (watched.returncode, job["state"], job["code"]) == (3, "failed", NO_LEARNING_SIGNAL)
        assert job["problems"] == [warned["problem"]]
