"""How a job is named on the command line: its id, the beginning of its id, its name, `@last`."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from synth.cli.jobs.ids import find_job_id
from synth.console.errors import NotFound, UsageProblem
from tests.unit.cli.backend import Answer, Request, backend_that, job_body

IDS = ["job_a1b2c3d4e5f60718", "job_a1ffc3d4e5f60718", "job_77b2c3d4e5f60718"]


def answer(request: Request) -> Answer:
    query = parse_qs(urlsplit(request.path).query)
    prefix, limit = query.get("prefix", [""])[0], int(query["limit"][0])
    named = {"demo-math": IDS[:1], "n" * 80: IDS[:1], "nightly": IDS[:2]}
    names = query.get("name", [])
    jobs = [job_body(id=id) for id in (named.get(names[0], []) if names else IDS) if id.startswith(prefix)]
    return Answer(200, {"data": jobs[:limit], "has_more": len(jobs) > limit})


@pytest.mark.parametrize("text", ["@last", "job_a1b", "a1b", IDS[0], "demo-math", "n" * 80])
def test_each_way_to_name_a_job_is_its_id(text: str):
    with backend_that(answer) as (_, client):
        assert find_job_id(client, text) == IDS[0]


def test_a_whole_id_is_not_asked_for():
    with backend_that(answer) as (backend, client):
        find_job_id(client, "job_0000000000000000")
        assert backend.requests == []


@pytest.mark.parametrize("text", ["job_a1", "nightly"])
def test_what_names_several_jobs_shows_them(text: str):
    with backend_that(answer) as (_, client), pytest.raises(UsageProblem) as caught:
        find_job_id(client, text)
    assert caught.value.code == 2
    assert all(id in caught.value.problems[0].fix for id in IDS[:2])
    assert IDS[2] not in caught.value.problems[0].fix


@pytest.mark.parametrize("text", ["NOPE", "job_b", ""])
def test_a_name_of_no_job_is_not_found(text: str):
    with backend_that(answer) as (_, client), pytest.raises(NotFound, match="no job") as caught:
        find_job_id(client, text)
    assert caught.value.code == 6


def test_the_last_of_no_jobs_says_how_to_submit_one():
    empty = Answer(200, {"data": [], "has_more": False})
    with backend_that(lambda _: empty) as (_, client), pytest.raises(NotFound, match="submit"):
        find_job_id(client, "@last")


def test_a_long_list_is_read_in_as_many_pages_as_the_backend_makes():
    everything = [job_body(id=f"job_{i:016}") for i in range(450)]

    def paged(request: Request) -> Answer:
        query = parse_qs(urlsplit(request.path).query)
        after, limit = query.get("after", [""])[0], int(query["limit"][0])
        assert limit <= 200
        begin = next((i + 1 for i, job in enumerate(everything) if job["id"] == after), 0)
        return Answer(200, {"data": everything[begin : begin + limit], "has_more": begin + limit < len(everything)})

    with backend_that(paged) as (backend, client):
        assert [j.id for j in client.jobs.list(limit=430)] == [j["id"] for j in everything[:430]]
        assert len([*client.jobs.list(limit=10_000)]) == 450
        assert len(backend.requests) == 6
