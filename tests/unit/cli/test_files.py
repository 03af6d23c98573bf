"""`synthctl files rm` asks before it deletes what a job has used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from synth.cli.app import app
from synth.console.errors import UsageProblem
from tests.unit.cli.backend import Answer, Backend, Request, backend_that, job_body

JOBS = [f"job_{n:016d}" for n in (1, 2)]


def answer(request: Request) -> Answer:
    if request.path.endswith("/jobs"):
        used = JOBS if "file_used" in request.path else []
        return Answer(body={"data": [job_body("succeeded", id=id) for id in used], "has_more": False})
    return Answer(body={"id": "file", "deleted": True})


@pytest.fixture
def backend() -> Iterator[Backend]:
    with backend_that(answer) as (backend, _):
        yield backend


def rm(backend: Backend, *arguments: str) -> Result:
    env = {"SYNTH_API_KEY": "synth_live_x", "BACKEND_BASE_URL": backend.url}
    return CliRunner().invoke(app, ["files", "rm", *arguments], env=env)


def deleted(backend: Backend) -> list[str]:
    return [request.path.rpartition("/")[2] for request in backend.requests if request.method == "DELETE"]


def test_an_unused_file_is_deleted_at_once(backend: Backend):
    assert rm(backend, "file_new").exit_code == 0
    assert deleted(backend) == ["file_new"]


def test_nothing_is_deleted_if_one_file_was_used_and_nobody_confirms(backend: Backend):
    done = rm(backend, "file_new", "file_used")
    assert isinstance(done.exception, UsageProblem)
    [problem] = done.exception.problems
    assert problem.what.startswith(f"delete file_used, which {JOBS[0]} and 1 more used? ")
    assert "--yes" in problem.fix
    assert deleted(backend) == []


def test_yes_deletes_a_used_file(backend: Backend):
    assert rm(backend, "file_used", "--yes").exit_code == 0
    assert deleted(backend) == ["file_used"]
