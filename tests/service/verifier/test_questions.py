"""What the verifier answers to who asks about a task app or a file, and waits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from synth.bus.kv.environment_keys import EnvironmentKey
from synth.bus.publish import Publisher
from synth.bus.rpc import VERIFY, TaskAppReport, VerifyTaskApp, ask, serve_questions
from synth.errors import Permanent, Transient
from synth.events import BlobRef, FileReady
from synth.ids import new_org_id
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.runtime.off_loop import OffLoop
from synth.verifier.files import wait_for_file
from synth.verifier.task_app import TaskAppCheck
from tests.service.jobs import upload
from tests.service.verifier.task_apps import good, hang, opened_by, scripted

KEYS = [EnvironmentKey(id=f"key_{n}", key=f"env_Secret{n}") for n in (1, 2, 3)]


async def report(url: str, keys=KEYS, *, budget=10.0, deadline=2.0) -> TaskAppReport:
    async with guarded_client(GuardPolicy(allow_loopback=True)) as client:
        check = TaskAppCheck(client, url, call_deadline_s=deadline, retry_for_s=0.3, off_loop=OffLoop(), org="org_1")
        return await check.report(keys, budget_s=budget)


async def test_keys_are_tried_until_one_opens_the_app_and_what_came_of_each_is_told():
    async with scripted(opened_by("env_Secret2", status=403)) as app:
        found = await report(app.url)
    assert found.key_ids == ["key_3", "key_2", "key_1"]
    assert [(a.key_id, a.ok, a.status) for a in found.attempts] == [
        ("key_3", False, 403),
        ("key_2", True, 200),
    ]
    assert found.task_name == "math"
    assert not any(key.key in str(found) for key in KEYS)


async def test_an_app_without_a_lock_is_opened_by_no_key():
    async with scripted(good) as app:
        found = await report(app.url, [])
    assert [(a.key_id, a.ok) for a in found.attempts] == [(None, True)]


async def test_an_app_that_is_down_is_asked_with_one_key_and_says_why():
    async with scripted(good) as app:
        url = app.url
    found = await report(url)
    [attempt] = found.attempts
    assert (attempt.ok, attempt.status) == (False, None)
    assert "cannot be reached" in attempt.reason
    assert url in attempt.reason


async def test_an_app_that_breaks_says_with_which_status():
    async with scripted(lambda call: (502, b"bad gateway")) as app:
        [attempt] = (await report(app.url)).attempts
    assert (attempt.ok, attempt.status, attempt.path) == (False, 502, "/health")


async def test_what_the_budget_does_not_allow_is_said_not_to_be_known():
    async with scripted(hang) as app:
        found = await report(app.url, budget=0.2)
    assert [a.ok for a in found.attempts] == [False] * 3
    assert all("not known" in a.reason for a in found.attempts)


async def test_a_question_without_an_answerer_is_worth_asking_again(bus_as):
    question = VerifyTaskApp(org="org_1", url="http://127.0.0.1:9")
    with pytest.raises(Transient, match="no verifier is running"):
        await ask(await bus_as("gateway"), VERIFY, question, TaskAppReport, within=5)


async def test_replicas_share_the_questions_and_end_them_before_they_stop(bus_as):
    asked: list[str] = []

    def answering(name: str):
        async def answer(question: VerifyTaskApp) -> msgspec.Struct:
            asked.append(name)
            if question.url == "broken":
                raise RuntimeError("boom")
            if question.url == "slow":
                await asyncio.Event().wait()
            return TaskAppReport(key_ids=[question.url], attempts=[])

        return answer

    stop, gateway = asyncio.Event(), await bus_as("gateway")
    serving = [
        asyncio.create_task(
            serve_questions(
                await bus_as("verifier"), VERIFY, VerifyTaskApp, answering(n), stop, max_concurrent=2, within=1
            )
        )
        for n in ("a", "b")
    ]

    async def wanted(url: str) -> TaskAppReport:
        return await ask(gateway, VERIFY, VerifyTaskApp(org="org_1", url=url), TaskAppReport, within=5)

    async with asyncio.timeout(10):
        while True:
            try:
                assert (await wanted("first")).key_ids == ["first"]
                break
            except Transient:
                continue
    asked.clear()
    found = await asyncio.gather(*(wanted(str(i)) for i in range(40)))
    assert [f.key_ids for f in found] == [[str(i)] for i in range(40)]
    assert len(asked) == 40
    for url in ("broken", "slow"):
        with pytest.raises(Transient, match="could not answer"):
            await wanted(url)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*serving), 5)


async def test_nobody_but_the_answerer_may_answer(bus_as):
    async def answer(question: VerifyTaskApp) -> TaskAppReport:
        return await report(question.url)

    with pytest.raises(Permanent, match="answered by verifier"):
        await serve_questions(
            await bus_as("trainer"), VERIFY, VerifyTaskApp, answer, asyncio.Event(), max_concurrent=1, within=1
        )


async def test_rows_that_were_written_anew_are_what_is_trained_on(bus_as, blobs):
    org, bus = new_org_id(), await bus_as("verifier")
    file = await upload(await bus_as("gateway"), blobs, org, b"rows")
    rows = BlobRef(uri="blob://orgs/a/files/f.rows", size=4, sha256="0" * 64)
    ready = FileReady(rows=1, messages=2, characters=3, images=1, rewritten=rows)
    await Publisher(await bus_as("files")).once(ready, org=org, key=file, id="verdict")
    found = await wait_for_file(bus, org, file, role="training_file", timeout=5, stop=asyncio.Event())
    assert (found.rows, found.images) == (rows, 1)
