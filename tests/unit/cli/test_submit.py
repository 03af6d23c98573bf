"""`synthctl submit` with a cluster that checks the job; what it refuses is in `tests.unit.cli.mistakes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.backend import Answer, Backend, job_body
from tests.unit.cli.checking import RL, Cluster, Run, sent


def test_a_task_app_that_the_cluster_alone_reaches_is_taken(run: Run, backend: Backend, cluster: Cluster):
    cluster.looks |= {"any_ok": True, "detail": "the task app 'guess' works, with no key"}
    Path("rl.toml").write_text(RL.format(app="http://127.0.0.1:9"))
    code, out, err = run("submit", "rl.toml", "--detach")
    assert (code, out) == (0, "job_1\n")
    assert "the task app 'guess' works, with no key, says the cluster" in err
    assert sent(backend) == ["/api/jobs"]


def test_a_cluster_that_cannot_check_a_job_now_takes_it_with_a_warning(run: Run, backend: Backend, cluster: Cluster):
    cluster.answers["/api/jobs/check"] = Answer(503, {"error": {"message": "the validator is away"}})
    code, out, err = run("submit", "rl.toml", "--detach")
    assert (code, out) == (0, "job_1\n")
    away = "warning: the cluster could not check the job before it is submitted (the validator is away)\n"
    assert err.startswith(away)
    assert sent(backend) == ["/api/jobs"]


SERVED = """\
from synth.taskapp.sdk import Episode, TaskApp

guess = TaskApp("guess", name="Guess", description="Guess.")


@guess.episode
def play(ep: Episode) -> float:
    return 1.0
"""
#: By what is wrong: the arguments beside the file and --app, and all that is printed.
NOT_SERVED = {
    "a job that is not waited for": (
        ("rl.toml", "--detach"),
        "error: --detach: the app of --app is served while this command waits for the job, but --detach does not wait\n"
        "  have it stay, and name its address with --task-url: synthctl deploy guess.py\n",
    ),
    "two task apps": (
        ("rl.toml", "--task-url", "http://127.0.0.1:9"),
        "error: --app: --app serves a task app, and --task-url names one that runs\n  leave one of them out\n",
    ),
    "a cluster elsewhere": (
        ("rl.toml", "--backend", "http://synth.example"),
        "error: --app: the app of --app is served on loopback, which the cluster at http://synth.example/api cannot "
        "reach\n  have it stay, and name its address with --task-url: synthctl deploy guess.py\n",
    ),
}


@pytest.mark.parametrize("mistake", NOT_SERVED)
def test_an_app_that_could_not_be_served_while_the_job_runs_is_refused(mistake: str, run: Run, backend: Backend):
    Path("guess.py").write_text(SERVED)
    arguments, told = NOT_SERVED[mistake]
    assert run("submit", *arguments, "--app", "guess.py") == (2, "", told)
    assert backend.requests == []


def test_an_app_for_a_job_that_plays_none_is_refused_and_served_no_longer(run: Run, backend: Backend):
    Path("guess.py").write_text(SERVED)
    code, out, err = run("submit", "sft.toml", "--app", "guess.py")
    assert (code, out) == (2, "")
    assert err.endswith(
        "error: --app: no task app plays the rollouts of this job of kind sft\n  leave --app out\n",
    )
    assert sent(backend) == []


def test_a_submission_that_was_sent_before_names_the_first_job(run: Run, cluster: Cluster):
    cluster.answers["/api/jobs"] = Answer(201, job_body() | {"repeats": "job_0"})
    code, out, err = run("submit", "rl.toml", "--detach")
    assert (code, out) == (0, "job_1\n")
    assert (
        "job_0 is the same submission, sent within the last minute; if one is enough: synthctl jobs cancel job_1\n"
    ) in err
