"""Dead letters over the API: an operator's alone, retried where that helps, settled once."""

from __future__ import annotations

import httpx
import pytest

from synth.access import Scope
from synth.bus.dead_letters import publish_dead_letter
from synth.bus.history.job_log import append_as_owner, append_decided, read_job
from synth.bus.replay import replay
from synth.errors import Problem
from synth.events import JobFailed, JobParked, JobPaused, JobResumed, LetterDropped, LetterRetried
from synth.jobs.lifecycle import State
from synth.work import Task
from tests.service.bus.own_server import is_queued
from tests.service.gateway import job_histories
from tests.service.gateway.conftest import Client

PATH = "/api/dead-letters"


@pytest.fixture
async def operator(user: Client) -> Client:
    """The owner of a bootstrap key, which has every scope."""
    return user


async def parked(user: Client, bus_as) -> tuple[str, int]:
    """A job that a dead letter has parked, and the letter."""
    id = (await user.submit())["id"]
    await job_histories.verify(bus_as, user.org, id)
    verifier = await bus_as("verifier")
    letter = await publish_dead_letter(verifier, f"job.validated.{user.org}.{id}", b"{}", reason="no tasks", seq=7)
    await append_decided(verifier, user.org, id, lambda _: JobParked(problem=Problem(what="no tasks")))
    return id, letter


async def settled_of(bus_as, user: Client, id: str) -> list[object]:
    return [r.event for r in await replay(await bus_as("gateway"), [f"letter.*.{user.org}.{id}"])]


async def letters(user: Client, **params: str) -> dict[int, dict]:
    found: dict[int, dict] = {}
    after = 0
    while True:
        reply = await user.http.get(PATH, params={"after": str(after), "limit": "3", **params})
        assert reply.status_code == 200, reply.text
        page = reply.json()
        found |= {d["id"]: d for d in page["data"]}
        if not page["has_more"]:
            return found
        after = page["data"][-1]["id"]


async def test_they_are_an_operators_alone(operator, bus_as):
    _, letter = await parked(operator, bus_as)
    scopes = [scope.value for scope in Scope if scope is not Scope.OPERATOR]
    made = (await operator.http.post("/api/keys", json={"scopes": scopes})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    async with httpx.AsyncClient(base_url=str(operator.http.base_url), headers=headers) as http:
        for method, path in (
            ("GET", PATH),
            ("GET", f"{PATH}/{letter}"),
            ("POST", f"{PATH}/{letter}/retry"),
            ("POST", f"{PATH}/{letter}/drop"),
        ):
            reply = await http.request(method, path)
            assert (reply.status_code, "operator" in reply.text) == (403, True), (path, reply.text)
    assert (await letters(operator))[letter]["state"] == "open"


async def test_a_letter_says_whose_it_is_and_why_and_shows_its_payload(operator, bus_as):
    id, letter = await parked(operator, bus_as)
    seen = (await letters(operator))[letter]
    assert (seen["service"], seen["org"], seen["about"], seen["seq"]) == ("verifier", operator.org, id, 7)
    assert (seen["reason"], seen["state"], seen["bytes"]) == ("no tasks", "open", 2)
    whole = (await operator.http.get(f"{PATH}/{letter}")).json()
    assert (whole["letter"], whole["payload"], whole["cut"]) == (seen, "{}", False)
    assert (await operator.http.get(f"{PATH}/999999")).status_code == 404
    assert (await operator.http.get(f"{PATH}/x")).status_code == 422


async def test_retrying_what_parked_a_job_resumes_it_once_and_the_log_says_who_did(operator, bus_as):
    id, letter = await parked(operator, bus_as)
    done = await operator.http.post(f"{PATH}/{letter}/retry")
    assert (done.status_code, done.json()["how"], done.json()["letter"]["state"]) == (200, "resumed", "retried")
    history = await read_job(await bus_as("gateway"), operator.org, id)
    assert (history.state, history.term, history.last(JobResumed) is not None) == (State.VERIFIED, 1, True)
    [retried] = await settled_of(bus_as, operator, id)
    assert isinstance(retried, LetterRetried)
    assert retried.letter == letter
    assert retried.requested_by == done.json()["letter"]["settled_by"]
    assert letter not in await letters(operator)
    assert (await letters(operator, settled="true"))[letter]["state"] == "retried"
    again = await operator.http.post(f"{PATH}/{letter}/retry")
    assert (again.status_code, "it was retried by" in again.text) == (409, True)


async def test_a_dropped_letter_is_settled_and_its_job_stays_as_it_is(operator, bus_as):
    id, letter = await parked(operator, bus_as)
    assert (await operator.http.post(f"{PATH}/{letter}/drop")).json()["how"] == "dropped"
    [dropped] = await settled_of(bus_as, operator, id)
    assert isinstance(dropped, LetterDropped)
    assert (await read_job(await bus_as("gateway"), operator.org, id)).state is State.PAUSED
    assert (await operator.http.post(f"{PATH}/{letter}/retry")).status_code == 409


async def test_a_task_is_queued_again_while_its_job_lives_and_not_when_it_has_ended(operator, bus_as, bus_admin):
    id = (await operator.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, operator.org, id)
    task = Task(kind="train", pool="default", org=operator.org, job_id=id)
    letter = await publish_dead_letter(trainer, task.subject, b"?", reason="a bug")
    assert (await operator.http.post(f"{PATH}/{letter}/retry")).json()["how"] == "queued"
    assert await is_queued(bus_admin, task.subject)
    second = await publish_dead_letter(trainer, task.subject, b"?", reason="a bug", again=letter)
    assert second != letter
    ending = JobFailed(code="internal", problem=Problem(what="a bug"))
    await append_as_owner(trainer, fence, lambda _: ending)
    reply = await operator.http.post(f"{PATH}/{second}/retry")
    assert (reply.status_code, "is failed" in reply.text) == (409, True)
    assert (await letters(operator))[second]["state"] == "open"


async def test_a_job_that_its_owner_paused_is_resumed_by_its_task(operator, bus_as):
    id = (await operator.submit())["id"]
    trainer, fence = await job_histories.begin(bus_as, operator.org, id)
    task = Task(kind="train", pool="default", org=operator.org, job_id=id)
    letter = await publish_dead_letter(trainer, task.subject, b"?", reason="a bug")
    await append_as_owner(trainer, fence, lambda _: JobPaused(step=3, reason="a bug"))
    assert (await operator.http.post(f"{PATH}/{letter}/retry")).json()["how"] == "resumed"


async def test_what_names_nothing_is_refused_and_can_be_dropped(operator, bus_as):
    verifier = await bus_as("verifier")
    letter = await publish_dead_letter(verifier, "strange.subject", b"\xff\x1b[2J", reason="not ours")
    reply = await operator.http.post(f"{PATH}/{letter}/retry")
    assert (reply.status_code, "names no event and no task" in reply.text) == (422, True)
    assert (await operator.http.get(f"{PATH}/{letter}")).json()["payload"] == "\ufffd\x1b[2J"
    assert (await operator.http.post(f"{PATH}/{letter}/drop")).status_code == 200
    assert letter not in await letters(operator)
