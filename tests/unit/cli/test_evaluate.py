"""`synthctl eval` in a pipe: the result is its data, what happens on the way is told beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.jobs.lifecycle import State
from tests.unit.cli.backend import Answer, Request, backend_that, job_body
from tests.unit.cli.test_command_line import synthctl

JOB = job_body(State.SUCCEEDED, eval={"reward_mean": 0.5, "rollouts": 2.0})
CREATED = {"seq": 1, "type": "job.created", "time": "2026-01-01T00:00:00Z", "job_id": "job_1", "data": {}}


def answer(request: Request) -> Answer:
    if request.path.startswith("/api/jobs/job_1/events"):
        return Answer(
            chunks=[f"id: 1\nevent: job.created\ndata: {json.dumps(CREATED)}\n\n", "event: end\ndata: {}\n\n"]
        )
    return Answer(body=JOB)


def test_a_pipe_gets_the_result_alone(tmp_path: Path):
    with backend_that(answer) as (backend, _):
        asked = ("--model", "tiny", "--seeds", "0-1", "--task-url", "http://127.0.0.1:1", "--backend", backend.url)
        run = synthctl("eval", *asked, cwd=tmp_path, SYNTH_API_KEY="sk_x")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "measure\tresult\nreward_mean\t0.5\nrollouts\t2\n"
    assert "created" in run.stderr


@pytest.mark.parametrize(("flags", "turns"), [((), 7), (("--max-turns", "2"), 2)])
def test_an_evaluation_by_flags_plays_as_many_turns_as_the_app_allows_or_as_it_is_told(
    flags: tuple[str, ...], turns: int, tmp_path: Path
):
    def app(request: Request) -> Answer:
        return Answer(body={"limits": {"max_turns": 7}} if request.path == "/api/info" else JOB)

    with backend_that(app) as (_, client), backend_that(answer) as (backend, _):
        asked = ("--model", "tiny", "--seeds", "0-1", "--task-url", client.root, "--backend", backend.url)
        run = synthctl("eval", *asked, *flags, "--detach", cwd=tmp_path, SYNTH_API_KEY="sk_x")
    assert run.returncode == 0, run.stderr
    sent = next(json.loads(r.body) for r in backend.requests if r.method == "POST" and r.path == "/api/jobs")
    assert f"max_turns = {turns}\n" in sent["config"]
