"""What the verifier makes of task apps, good and bad, over real sockets."""

from __future__ import annotations

import time

import pytest

from synth.bus.kv.environment_keys import EnvironmentKey
from synth.errors import Problem, UserError
from synth.outbound.http_guard import GuardPolicy, guarded_client
from synth.runtime.off_loop import OffLoop
from synth.verifier.task_app import TaskAppCheck, VerifiedTaskApp, task_name
from tests.service.verifier.task_apps import Answer, Call, good, hang, opened_by, scripted

LOOPBACK = GuardPolicy(allow_loopback=True)
KEYS = [EnvironmentKey(id=f"key_{n}", key=f"env_Secret{n}") for n in (1, 2, 3)]


async def check(url: str, keys=KEYS, *, guard=LOOPBACK, deadline=2.0, retry_for=0.6) -> VerifiedTaskApp:
    async with guarded_client(guard) as client:
        app = TaskAppCheck(
            client,
            url,
            call_deadline_s=deadline,
            retry_for_s=retry_for,
            off_loop=OffLoop(),
            org="org_1",
            max_answer_bytes=4 << 20,
        )
        return await app.run(keys)


async def refusal(url: str, keys=KEYS, **options) -> Problem:
    with pytest.raises(UserError) as raised:
        await check(url, keys, **options)
    [problem] = raised.value.problems
    assert problem.where == url
    assert problem.what
    assert problem.expected
    assert problem.fix
    assert not any(key.key in problem.text() for key in keys)
    return problem


async def test_a_good_app_is_known_by_its_name_and_the_newest_key_that_opens_it():
    async with scripted(good) as app:
        assert await check(app.url) == VerifiedTaskApp(name="math", key_id="key_3")
    assert [c.path for c in app.calls] == ["/health", "/task_info"]


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_each_key_is_tried_by_itself_until_one_opens_the_app(status):
    async with scripted(opened_by("env_Secret1", status=status)) as app:
        assert (await check(app.url)).key_id == "key_1"


async def test_an_app_below_a_path_is_asked_there():
    async with scripted(good, path="/apps/math") as app:
        await check(app.url + "/")
    assert [c.path for c in app.calls] == ["/health", "/task_info"]


async def test_an_app_that_needs_no_key_is_asked_without_one():
    async with scripted(good) as app:
        assert (await check(app.url, [])).key_id is None
    assert "x-api-key" not in app.calls[0].headers


async def test_an_app_that_refuses_every_key_is_refused_by_their_ids():
    async with scripted(opened_by("another", status=403)) as app:
        problem = await refusal(app.url)
    assert "key_3: HTTP 403, key_2: HTTP 403, key_1: HTTP 403" in problem.what


async def test_an_app_that_wants_a_key_when_there_is_none_says_how_to_store_it():
    async with scripted(opened_by("another")) as app:
        problem = await refusal(app.url, [])
    assert "has none" in problem.what
    assert "environment-keys" in problem.fix


async def test_a_key_that_no_header_can_carry_is_passed_over():
    odd = EnvironmentKey(id="key_odd", key="säcret\n")
    async with scripted(good) as app:
        assert (await check(app.url, [KEYS[0], odd])).key_id == "key_1"


async def test_an_app_that_is_down_is_refused_after_its_retries():
    async with scripted(good) as app:
        url = app.url
    problem = await refusal(url, retry_for=0.3)
    assert "cannot be reached" in problem.what


async def test_an_app_that_comes_up_meanwhile_is_accepted():
    turns = iter([(503, b"starting"), (502, b""), *[None] * 9])
    async with scripted(lambda call: next(turns) or good(call)) as app:
        assert (await check(app.url, retry_for=5)).name == "math"
    assert len(app.calls) == 4


async def test_a_host_that_does_not_exist_is_refused():
    problem = await refusal("http://no-such-host.invalid:8001", retry_for=0.1)
    assert "no address is known for this host's name" in problem.what


@pytest.mark.parametrize(("retry_for", "calls"), [(0.0, 1), (0.5, 2)])
async def test_an_app_that_hangs_is_asked_again_only_for_a_while(retry_for, calls):
    async with scripted(hang) as app:
        problem = await refusal(app.url, deadline=1, retry_for=retry_for)
    assert "does not answer within 1 s" in problem.what
    assert len(app.calls) == calls


async def test_a_verifier_that_stood_still_asks_again_before_it_says_that_the_app_does_not_answer():
    def stand_still(call: Call) -> Answer:
        if len(app.calls) == 1:
            # All of this process, as SIGSTOP and a machine that is moved do; the deadline is past when it goes on.
            time.sleep(2.2)
        return good(call)

    async with scripted(stand_still) as app:
        assert (await check(app.url, deadline=2, retry_for=20)).name == "math"
    assert [call.path for call in app.calls][:2] == ["/health", "/health"]


def endless(call: Call) -> tuple[int, bytes]:
    return 200, b"[" * (5 << 20)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (lambda call: (500, b"Traceback: boom"), "answers HTTP 500: 'Traceback: boom'"),
        (lambda call: (404, b""), "answers HTTP 404: nothing"),
        (lambda call: (307, b""), "answers HTTP 307"),
        (lambda call: (200, b"<html>hello</html>"), "not JSON: '<html>hello</html>'"),
        (lambda call: (200, b'{"healthy": NaN}'), "not JSON"),
        (lambda call: (200, b"[" * 100_000), "not JSON"),
        (lambda call: (200, b"\xff\xfe{}"), "not JSON"),
        (lambda call: (200, b"[1]"), "not a JSON object"),
        (lambda call: (200, b'{"healthy": false}'), "not healthy"),
        (lambda call: (200, b'{"healthy": true}'), "/task_info answers without a task"),
        (endless, "larger than"),
    ],
)
async def test_an_app_that_answers_something_else_is_refused_with_what_it_said(script, said):
    async with scripted(script) as app:
        problem = await refusal(app.url, retry_for=0.1)
    assert said in problem.what


@pytest.mark.parametrize("policy", [GuardPolicy(), GuardPolicy(allowed=())])
async def test_an_app_inside_is_not_even_connected_to(policy):
    async with scripted(good) as app:
        problem = await refusal(app.url, guard=policy)
        assert "not a public address" in problem.what
        assert "SYNTH_ALLOWED_CIDRS" in problem.fix
        by_name = await refusal(app.url.replace("127.0.0.1", "localhost"), guard=policy)
        assert "localhost" in by_name.what
    assert app.calls == []


@pytest.mark.parametrize("url", ["http://[::bad", "http://a b/", "ftp://x", "http:///x"])
async def test_an_address_that_cannot_be_asked_is_refused(url):
    assert "task app" in (await refusal(url, retry_for=0.1)).what


@pytest.mark.parametrize(
    ("info", "name"),
    [
        ({"taskset": {"id": "math"}}, "math"),
        ({"task": {"name": "crafter", "id": "c"}, "taskset": {}}, "crafter"),
        ({"taskset": "<circular type=dict>"}, None),
        ({"task": {"name": 5}}, None),
    ],
)
def test_a_task_is_named_wherever_the_app_says_it(info, name):
    assert task_name(info) == name
