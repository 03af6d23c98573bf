"""Task apps that go wrong: at the door, in the middle of a run, or now and then."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from tests.e2e.platform import Platform, rl, sft
from tests.e2e.task_apps import Fault, Served, letters, served, verdicts

pytestmark = pytest.mark.timeout(1200)

FIRST_ITERATION = 16
#: An app that says a word for each rollout, where its output goes.
SUMS = """
from synth.taskapp.sdk import Episode, TaskApp

sums = TaskApp("sums", name="Sums", description="Half a point for all.")


@sums.episode
async def play(ep: Episode) -> None:
    reply = await ep.chat([{"role": "user", "content": "1 + 1?"}])
    print("played seed", ep.seed)
    ep.step(obs=reply.content, reward=0.5, done=True)
"""
ONCE = "rollout_timeout_s = 2.0\nmax_retries = 0"

#: What the user reads of an app that is no good when its job is submitted.
AT_THE_DOOR = {
    "down": "cannot be reached",
    "key": "refuses every environment key",
    "garbage": "answers something that is not JSON: '<html>hello</html>'",
    "hang": "does not answer within 3 s",
    "500": "answers HTTP 500: 'out of letters'",
}
#: What the user reads of an app that breaks when its job is under way.
UNDER_WAY: dict[Fault, str] = {
    "hang": "no answer within 2 s",
    "500": "HTTP 500: out of letters",
    "garbage": "the answer is not a rollout response: '<html>hello</html>'",
    "nan": "outcome_score is NaN",
    "die": "the call failed: ",
}


def breaking(fault: Fault, *, after: int):
    return lambda n: fault if n >= after else None


@pytest.fixture(scope="module")
def apps() -> Iterator[dict[str, Served | str]]:
    """Every app of this module by what is wrong with it."""
    with ExitStack() as stack, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found: dict[str, Served | str] = {"down": f"http://127.0.0.1:{nobody.getsockname()[1]}"}
        found["key"] = stack.enter_context(served(letters(key="env_another")))
        for door in ("garbage", "hang", "500"):
            found[door] = stack.enter_context(served(letters(), door=door))
        for fault in get_args(Fault):
            app = served(letters(), fault=breaking(fault, after=FIRST_ITERATION))
            found[f"{fault} under way"] = stack.enter_context(app)
        found["500 in an evaluation"] = stack.enter_context(served(letters(), fault=breaking("500", after=4)))
        found["now and then"] = stack.enter_context(served(letters(), fault=lambda n: "500" if n % 10 == 5 else None))
        yield found


@pytest.fixture(scope="module")
def jobs(platform: Platform, rows: Path, apps: dict[str, Served | str]) -> dict[str, str]:
    """A job for each app, all at once, and a good one among them."""
    made: dict[str, str] = {}
    for name, app in apps.items():
        url = app if isinstance(app, str) else app.url
        if name == "500 in an evaluation":
            flags = ("--seeds", "0-15", "--task-url", url, "--env-name", "letters", "--max-tokens", "12")
            made[name] = platform.shell.ok("eval", "--model", "tiny-qwen3", *flags, "--detach").strip()
        else:
            made[name] = platform.submit(rl("tiny-qwen3", url, rollout=ONCE), "--no-preflight")
    made["good"] = platform.submit(sft(steps=60), "--dataset", rows.name)
    return made


@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_a_job_on_an_app_that_is_no_good_is_refused_in_one_problem(
    platform: Platform, apps: dict[str, Served | str], jobs: dict[str, str], name: str
):
    code, job = platform.outcome(jobs[name])
    assert (code, job["state"]) == (3, "rejected")
    [problem] = job["problems"]
    assert AT_THE_DOOR[name] in problem["what"]
    app = apps[name]
    assert problem["where"] == (app if isinstance(app, str) else app.url)
    assert problem["fix"]


def test_a_look_before_a_job_is_submitted_refuses_what_the_cluster_would_refuse(
    platform: Platform, apps: dict[str, Served | str], letters_app: Served
):
    shell, app = platform.shell, apps["key"]
    assert isinstance(app, Served)
    file = platform.write(rl("tiny-qwen3", app.url), name="never")
    refused = shell.run("submit", file, "--detach", "-o", "json")
    assert (refused.returncode, refused.stdout) == (2, "")
    for words in (
        f"{app.url}/health refuses the environment key, ENVIRONMENT_API_KEY (.env) (HTTP 400)",
        "of your organisation",
        "--no-preflight",
    ):
        assert words in refused.stderr
    assert [job for job in platform.client.jobs.list() if (job.name or "").startswith("never")] == []
    # A key of another place is no word on the app while the cluster has one that opens it.
    flags = ("--task-url", letters_app.url, "--max-turns", "1", "--max-tokens", "4", "--seeds", "0-0", "--detach")
    other = shell.run("eval", "--model", "tiny-qwen3", *flags, ENVIRONMENT_API_KEY="env_stale")
    assert other.returncode == 0, other.stderr
    assert "(HTTP 400); the task app 'letters' works, with " in other.stderr
    platform.succeeded(other.stdout.strip())


def test_what_this_machine_cannot_see_of_a_task_app_the_cluster_looks_at(
    platform: Platform, apps: dict[str, Served | str]
):
    down, broken = apps["down"], apps["500"]
    assert isinstance(down, str)
    assert isinstance(broken, Served)
    for url, words in ((down, "cannot be reached"), (broken.url, "answers HTTP 500: 'out of letters'")):
        file = platform.write(rl("tiny-qwen3", url), name="unseen")
        sent = platform.shell.run("submit", file, "--detach", "-o", "json")
        assert (sent.returncode, sent.stdout) == (2, "")
        assert f"{url}/health {words}" in sent.stderr
        assert (
            f"a task app that the cluster can use; the cluster reports: {url}: the task app's /health {words}"
            in sent.stderr
        )
    assert [job for job in platform.client.jobs.list() if (job.name or "").startswith("unseen")] == []


def test_an_app_is_evaluated_by_its_id_and_served_only_for_that(platform: Platform):
    shell = platform.shell
    folder = shell.folder / "found"
    folder.mkdir()
    (folder / "sums.py").write_text(SUMS)
    flags = ("--model", "tiny-qwen3", "--max-tokens", "4", "--seeds", "0-3")
    done = shell.run("eval", "--app-id", "sums", *flags, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["values"]["reward_mean"]) == ("succeeded", 0.5)
    assert "played seed 3" in (shell.folder / ".synth" / "deployments" / "sums.job.log").read_text()
    served_at = re.findall(r"http://127.0.0.1:\d+", done.stderr)[0]
    with pytest.raises(httpx.ConnectError):
        httpx.get(served_at, trust_env=False)
    file = platform.write('[eval]\nmodel = "tiny-qwen3"\nseeds = "0-3"\nmax_tokens = 4\n', name="sums")
    played = shell.run("submit", file, "--app", "found/sums.py", "-o", "json", timeout=120)
    assert played.returncode == 0, (played.stdout, played.stderr)
    assert "Ctrl-C ends the job: its task app is served by this command" in played.stderr
    # An app that is gone plays nothing: the job of a wait that was cut short does not go on without it.
    cut = shell.run(
        "eval", "--app-id", "sums", *flags, "--max-tokens", "64", "--seeds", "0-2000", "--poll-timeout", "1"
    )
    assert cut.returncode == 124
    job = re.findall(r"(job_\w+) is cancelled", cut.stderr)[0]
    assert platform.outcome(job)[1]["state"] == "cancelled"
    detached = shell.run("eval", "--app-id", "sums", *flags, "--detach")
    assert (detached.returncode, "deploy sums" in detached.stderr) == (2, True)


@pytest.mark.parametrize("fault", UNDER_WAY)
def test_a_job_whose_app_breaks_under_way_fails_with_the_cause(
    platform: Platform, apps: dict[str, Served | str], jobs: dict[str, str], fault: Fault
):
    code, job = platform.outcome(jobs[f"{fault} under way"])
    assert (code, job["state"], job["code"]) == (3, "failed", "task_app_failed")
    assert job["step"] == 1
    [problem] = job["problems"]
    assert UNDER_WAY[fault] in problem["what"]
    app = apps[f"{fault} under way"]
    assert isinstance(app, Served)
    assert problem["where"].startswith(app.url)


def test_an_evaluation_whose_app_breaks_fails_with_the_cause(platform: Platform, jobs: dict[str, str]):
    code, job = platform.outcome(jobs["500 in an evaluation"])
    assert (code, job["state"], job["code"]) == (3, "failed", "task_app_failed")
    assert "out of letters" in job["problems"][0]["what"]


def test_rollouts_that_fail_now_and_then_cost_their_groups_and_are_counted(platform: Platform, jobs: dict[str, str]):
    job = platform.succeeded(jobs["now and then"])
    failed = platform.events(jobs["now and then"], "rollout.failed")
    assert len(failed) == job["rollouts"]["failed"] == 5
    assert job["rollouts"]["completed"] == 3 * FIRST_ITERATION - 5
    assert all("out of letters" in f["problem"]["what"] for f in failed)
    steps: list[dict[str, Any]] = platform.steps(jobs["now and then"])
    assert sum(step["rollouts_failed"] for step in steps) == 5
    for i, step in enumerate(steps, 1):
        groups = {f["group"] for f in failed if f["iteration"] == i}
        assert step["groups_dropped"] >= len(groups) > 0
        assert step["groups_kept"] + step["groups_dropped"] == 4


def test_the_other_jobs_and_the_cluster_do_not_notice(platform: Platform, jobs: dict[str, str]):
    platform.succeeded(jobs["good"])
    report = platform.shell.report()
    assert report["state"] == "healthy"
    assert {p["name"]: p["restarts"] for p in report["processes"] if p["restarts"]} == {}
    assert len(platform.greedy("tiny-qwen3", "Still there?")) >= 0


def test_a_job_learns_from_replies_that_a_schema_constrains(platform: Platform):
    with served(verdicts()) as app:
        text = rl("tiny-qwen3", app.url, env="verdicts", iterations=2).replace("max_tokens = 12", "max_tokens = 60")
        job = platform.submit(text)
        platform.succeeded(job)
    # A step all of whose groups were dropped, for equal rewards, has trained nothing.
    trained = [values for values in platform.steps(job) if values["groups_kept"]]
    assert trained
    for values in trained:
        assert values["completion_length_mean"] > 1
        # What the grammar left out is left out by the trainer too: nothing is taken for a mismatch.
        assert values.get("mismatch_kl", 0.0) < 1e-6
        assert values.get("rejected_rate_lag0", 0.0) == 0
