"""A policy that a huge learning rate destroys: its job says so, and is paused or ended where its file wants that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from synth.trainer.collapse.learning_signal import NO_LEARNING_SIGNAL, SOLVED
from synth.trainer.collapse.rules import RULES
from tests.e2e.cli.conftest import eventually
from tests.e2e.platform import JOB_S, Platform, rl
from tests.e2e.task_apps import letters, paying, served

pytestmark = pytest.mark.timeout(1200)

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
    """The types of a job's facts, without those that may follow its end: of an engine that was loading, of logs."""
    types = [event.type for event in platform.log(job)]
    return [type for type in types if type not in ("watch.heartbeat", "policy.loaded") and not type.endswith(".logged")]


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
    kept = platform.client.jobs.checkpoints(jobs["stop"])
    answer = platform.answer(kept[-1].model, "Letters, please: 1")
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_a_failed_job_is_continued_by_another_one_from_its_last_checkpoint(platform: Platform, jobs: dict[str, str]):
    platform.outcome(jobs["stop"])
    before = platform.job(jobs["stop"])
    id = platform.shell.ok("jobs", "resume", jobs["stop"]).strip()
    assert id != jobs["stop"]
    platform.outcome(id)
    job = platform.job(id)
    assert job["linked_job_id"] == jobs["stop"]
    [resumed] = platform.events(id, "train.resumed")
    assert resumed["step"] == before["step"] == platform.events(jobs["stop"], "checkpoint.saved")[-1]["step"]
    # The same weights, optimizer and seeds: the stored batch has the loss that it had.
    assert resumed["loss_now"] == pytest.approx(resumed["loss_then"], rel=1e-5)
    steps = [step["step"] for step in platform.events(id, "train.step")]
    assert steps == list(range(before["step"] + 1, job["step"] + 1))
    assert steps, "it collapses again, but not before it has trained"
    asked = [r["iteration"] for r in platform.events(id, "rollout.requested") if r["mode"] == "train"]
    assert asked[0] == steps[0]
    # Times are of each job alone, and the end of the first one stays its end.
    assert job["times"]["ran_s"] > 0
    after = platform.job(jobs["stop"])
    assert [after[key] for key in ("state", "code", "ended_at", "times")] == [
        before[key] for key in ("state", "code", "ended_at", "times")
    ]
    assert log_of(platform, jobs["stop"])[-2:] == ["job.failed", "model.leased"]


@pytest.mark.long
def test_a_collapse_pauses_a_job_that_wants_it_and_its_user_may_go_on(platform: Platform, jobs: dict[str, str]):
    job = jobs["pause"]
    eventually(lambda: platform.job(job)["state"] == "paused", timeout=JOB_S)
    [paused] = platform.events(job, "job.paused")
    first = platform.events(job, "train.warned")[0]
    assert first["problem"]["what"] in paused["reason"]
    shown = platform.shell.run("jobs", "get", job)
    assert f"warning: {first['problem']['what']}" in shown.stderr
    platform.client.jobs.resume(job)
    eventually(lambda: platform.job(job)["step"] > paused["step"], timeout=JOB_S)
    # Only a sign that was absent for `patience` steps can come back, and must show for as many.
    soonest = first["step"] + 2 * PATIENCE
    warned = [w for w in platform.events(job, "train.warned") if w["rule"] == first["rule"]]
    assert [w for w in warned if w["step"] < soonest] == [first]
    platform.client.jobs.cancel(job)


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


def test_the_first_job_of_a_new_user_that_cannot_learn_ends_with_the_cause(platform: Platform):
    """The file of `config init`, unedited but smaller: its model starts from noise, and solves no sum."""
    shell = platform.shell
    shell.ok("config", "init", "rl", "--model", "tiny-qwen3", "--to", "first.toml")
    smaller = (
        "training.batch_size=2",
        "training.group_size=2",
        "rollout.policy_config.max_tokens=12",
        'evaluation.seeds="1000000-1000003"',
    )
    flags = [word for setting in smaller for word in ("--set", setting)]
    done = shell.run("submit", "first.toml", "--app", "synth.demo.math.app", *flags, timeout=JOB_S)
    assert done.returncode == 3, done.stderr
    assert "had no group whose rewards differ" in done.stderr
    assert "start from a model that succeeds now and then" in done.stderr
    nothing = "no change: 0.00 → 0.00 on 4 seeds (interval of the difference 0.00 to 0.00)"
    assert f"{nothing}: no rollout of either evaluation earned anything" in done.stderr
    id = json.loads(shell.ok("jobs", "ls", "-o", "json", "--limit", "1"))[0]["id"]
    assert f"try next: read the model's answers: synthctl rollouts ls {id} --worst" in done.stderr
    assert nothing in shell.ok("jobs", "get", id)


@pytest.mark.parametrize(("reward", "rule"), [(1.0, SOLVED), (0.0, NO_LEARNING_SIGNAL)])
def test_a_job_that_trained_nothing_says_so(platform: Platform, reward: float, rule: str):
    with served(paying(reward)) as app:
        evaluated = "[evaluation]\nevery_n_iters = 2\ninstances = 2\n"
        id = platform.submit(rl("tiny-qwen3", app.url, iterations=2, env="paying", tail=evaluated))
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
        verdict = job["verdict"]
        assert (verdict["outcome"], verdict["cause"]) == ("no_change", "the source already earned 1 on every seed")
        assert verdict["next"] == "take seeds that it does not solve yet"
        assert "no change: 1.00 → 1.00 on 2 seeds" in watched.stderr
        assert verdict["cause"] in watched.stderr
        assert f"try next: {verdict['next']}" in watched.stderr
    else:
        assert (watched.returncode, job["state"], job["code"]) == (3, "failed", NO_LEARNING_SIGNAL)
        assert job["problems"] == [warned["problem"]]
        assert warned["problem"]["what"] in watched.stderr
        assert warned["problem"]["fix"] in watched.stderr
        assert job["verdict"]["cause"] == "no rollout of either evaluation earned anything"
