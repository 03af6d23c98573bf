"""A stored environment key belongs to one origin, and is sent nowhere else."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from synth.bus.kv.bucket import subject_of_key
from synth.environment_keys import plain_http_refused
from synth.outbound.http_guard import GuardPolicy
from tests.service.gateway.environment_keys.people import bearing, key_with
from tests.service.process import running as running_service
from tests.service.verifier.task_apps import Answer, Call, ScriptedApp, good, opened_by, scripted

SECRET = "env_0123456789abcdef"
FAST: dict[str, Any] = {"SYNTH_RETRY_FOR_S": "0.2", "SYNTH_CALL_DEADLINE_S": "5"}


@pytest.fixture
def verifier(settings_of, bus_admin, tmp_path):
    with running_service("verifier", settings_of("verifier"), tmp_path / "log", SYNTH_ALLOW_LOOPBACK="1", **FAST):
        yield


def keys_sent(app: ScriptedApp) -> set[str]:
    """Whatever the app was sent in a header that may carry a key."""
    names = ("x-api-key", "x-api-keys", "authorization")
    return {call.headers[name].removeprefix("Bearer ") for call in app.calls for name in names if name in call.headers}


async def look(http, app: ScriptedApp, path: str = "") -> dict:
    reply = await http.post("/api/rl/verify_task_app", json={"endpoint_base_url": app.url + path})
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_a_key_that_may_only_write_does_not_get_the_keys_of_its_organisation(user, verifier):
    assert (await user.http.post("/api/environment-keys", json={"key": SECRET})).status_code == 201
    writer = await key_with(user, "write")
    async with scripted(good) as its_own, bearing(user, writer["key"]) as http:
        await look(http, its_own)
    assert its_own.calls
    assert keys_sent(its_own) == set()


async def test_a_key_is_sent_to_its_own_origin_and_to_no_other(user, verifier):
    async with scripted(opened_by(SECRET)) as its_app, scripted(opened_by(SECRET)) as another:
        stored = await user.http.post("/api/environment-keys", json={"key": SECRET, "url": its_app.url + "/below?a=b"})
        assert stored.json()["origin"] == its_app.url
        assert (await look(user.http, its_app))["any_ok"] is True
        for url in (another.url, its_app.url.replace("127.0.0.1", "localhost"), another.url + "/" + its_app.url):
            refused = await user.http.post("/api/rl/verify_task_app", json={"endpoint_base_url": url})
            assert refused.json()["any_ok"] is False, url
            assert f"has none for {'/'.join(url.split('/')[:3])}" in refused.json()["detail"]
        # Whoever may write may use it there, which is what it is for.
        writer = await key_with(user, "write")
        async with bearing(user, writer["key"]) as http:
            assert (await look(http, its_app))["any_ok"] is True
    assert keys_sent(another) == set()


async def test_a_key_without_an_address_belongs_to_the_first_app_that_it_opens(user, verifier):
    """As the published clients store one: they say no address, and look at the app with the same API key."""
    async with scripted(opened_by(SECRET)) as its_app, scripted(opened_by(SECRET)) as second:
        id = (await user.http.post("/api/environment-keys", json={"key": SECRET})).json()["id"]
        found = await look(user.http, its_app)
        assert (found["any_ok"], found["candidates_first15"]) == (True, [id])
        [kept] = (await user.http.get("/api/environment-keys")).json()["data"]
        assert (kept["id"], kept["origin"], kept["offered_until"]) == (id, its_app.url, None)
        assert (await look(user.http, second))["any_ok"] is False
        assert keys_sent(second) == set()
        # Stored anew, for another app that has the same key.
        await user.http.post("/api/environment-keys", json={"key": SECRET})
        assert (await look(user.http, second))["any_ok"] is True
        assert (await look(user.http, its_app))["any_ok"] is True
        origins = {key["origin"] for key in (await user.http.get("/api/environment-keys")).json()["data"]}
    assert origins == {its_app.url, second.url}


async def test_whoever_has_the_api_key_that_stored_it_gets_no_key_that_was_offered_elsewhere(user, verifier):
    """The API key was stolen after its owner had named an app, which may not have taken the environment key yet."""
    takes = ["another_key"]

    def its_script(call: Call) -> Answer | Awaitable[Answer]:
        return opened_by(*takes)(call)

    async with scripted(its_script) as its_app, scripted(good) as hostile:
        made = (await user.http.post("/api/environment-keys", json={"key": SECRET})).json()
        assert made["offered_until"] < (datetime.now(UTC) + timedelta(hours=1, minutes=1)).isoformat()
        # What cannot be reached was not sent the key.
        nowhere = {"endpoint_base_url": "http://127.0.0.1:9"}
        assert (await user.http.post("/api/rl/verify_task_app", json=nowhere)).json()["any_ok"] is False
        assert (await look(user.http, its_app))["any_ok"] is False
        await asyncio.gather(*(look(user.http, hostile, f"/{n}") for n in range(3)))
        found = await look(user.http, hostile)
        assert (found["candidates_first15"], keys_sent(hostile)) == ([], set())
        [kept] = (await user.http.get("/api/environment-keys")).json()["data"]
        assert (kept["origin"], kept["offered_to"]) == (None, its_app.url)
        # Its owner starts the app with the right key.
        takes[0] = SECRET
        assert (await look(user.http, its_app))["any_ok"] is True


async def test_a_key_is_offered_to_one_of_several_apps_that_are_named_at_once(user, verifier):
    await user.http.post("/api/environment-keys", json={"key": SECRET})
    async with AsyncExitStack() as stack:
        apps = [await stack.enter_async_context(scripted(opened_by("another_key"))) for _ in range(4)]
        await asyncio.gather(*(look(user.http, app) for app in apps))
    assert [SECRET in keys_sent(app) for app in apps].count(True) == 1


async def test_a_key_without_an_address_is_not_offered_for_ever(start_gateway, client_of, verifier):
    user = await client_of(await start_gateway(environment_key_offer_s=0.001))
    await user.http.post("/api/environment-keys", json={"key": SECRET})
    async with scripted(good) as app:
        await look(user.http, app)
    assert keys_sent(app) == set()


async def test_the_key_of_the_cluster_is_tried_where_its_operator_says(start_gateway, client_of, verifier):
    """Several apps of one machine have it, as the embedded cluster gives it to all of them."""
    key = (await client_of(await start_gateway())).key
    settings = {"bootstrap_api_key": key, "bootstrap_environment_key": SECRET}
    user = await client_of(await start_gateway(**settings, bootstrap_environment_origins="http://127.0.0.1"), key)
    writer = await key_with(user, "write")
    async with scripted(opened_by(SECRET)) as one, scripted(opened_by(SECRET)) as two, scripted(good) as hostile:
        for app in (one, two):
            assert (await look(user.http, app))["any_ok"] is True
        named = one.url.replace("127.0.0.1", "localhost")
        refused = await user.http.post("/api/rl/verify_task_app", json={"endpoint_base_url": named})
        assert refused.json()["any_ok"] is False
        async with bearing(user, writer["key"]) as http:
            await look(http, hostile)
            assert (await look(http, one))["any_ok"] is True
    assert hostile.calls
    assert keys_sent(hostile) == set()


async def test_what_an_app_says_comes_back_without_the_key_that_it_was_sent(user, verifier):
    def echo(call: Call) -> tuple[int, bytes]:
        key = call.headers.get("x-api-key", "nothing")
        said = f"{'.' * 395}{key} {base64.b64encode(key.encode()).decode()} {key}"
        return (404, said[390:].encode()) if call.path.startswith("/echo") else (404, said.encode())

    async with scripted(echo) as app:
        await user.http.post("/api/environment-keys", json={"key": SECRET, "url": app.url})
        for path in ("", "/echo"):
            found = await look(user.http, app, path)
            for form in (SECRET, SECRET[:5], base64.b64encode(SECRET.encode()).decode()):
                assert form not in str(found)
    assert keys_sent(app) == {SECRET}


async def test_over_http_a_key_is_sent_to_addresses_alone_that_the_operator_has_opened():
    loopback = GuardPolicy(allow_loopback=True)
    inside = GuardPolicy(allowed=(ipaddress.ip_network("10.0.0.0/8"),))
    for url, policy, allowed, sent in (
        ("https://93.184.216.34", GuardPolicy(), False, True),
        ("http://93.184.216.34", loopback, False, False),
        ("http://93.184.216.34", GuardPolicy(), True, True),
        ("http://127.0.0.1:8001", loopback, False, True),
        ("http://127.0.0.1:8001", GuardPolicy(), False, False),
        ("http://10.1.2.3", inside, False, True),
        ("http://93.184.216.34", inside, False, False),
    ):
        problem = await plain_http_refused(url, policy, allowed=allowed)
        assert (problem is None) == sent, url
        assert problem is None or "SYNTH_ALLOW_PLAIN_HTTP_KEYS" in problem.fix


async def test_a_verifier_that_may_not_send_a_key_over_http_says_so(user, settings_of, bus_admin, tmp_path):
    settings = settings_of("verifier")
    async with scripted(good) as app:
        await user.http.post("/api/environment-keys", json={"key": SECRET, "url": app.url})
        with running_service("verifier", settings, tmp_path / "log", SYNTH_ALLOW_LOOPBACK="0", **FAST):
            found = await look(user.http, app)
    assert "is not sent over http" in found["detail"]
    assert app.calls == []


async def test_the_verifier_writes_environment_keys_and_no_other_secret(bus_as):
    """What a stolen credential of the verifier can change."""
    verifier = await bus_as("verifier")
    bucket = await verifier.js.key_value("environment_keys")
    await bucket.put("environment.org_x.key_x", b"{}")
    await bucket.delete("environment.org_x.key_x")
    for place in ("api.org_x.h", "chat.d.org_x", "owner.h", "judge.org_x.n"):
        with pytest.raises(TimeoutError):
            await verifier.js.publish(subject_of_key(place), b"{}", timeout=0.5)
