"""A key that may only write tries thirty ways, and more, to chat or to see a secret of its organisation."""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from synth.gateway.chat_proxy.paths import CALL_PATHS
from synth.keys import Cid, mint_cid
from tests.keyrings import credentials
from tests.service.gateway.environment_keys.world import World, at_home, elsewhere, make_world, new_secret
from tests.service.jobs import RL, make_model_dir, wait_for
from tests.service.process import running as running_service
from tests.service.verifier.task_apps import Call, scripted

Way = Callable[[World], Awaitable[bool]]
#: Each says whether it worked: whether it chats now. What it sees of a secret is looked for in every answer.
WAYS: list[Way] = []
JOB = {"job_type": "rl", "data": {"model": "tiny", "endpoint_base_url": "http://127.0.0.1:9", "config": {}}}
LISTS = ("environment-keys", "v1/env-keys/verify", "keys", "judge-keys", "me", "jobs", "events", "traces", "files")


def way(tried: Way) -> Way:
    WAYS.append(tried)
    return tried


def opened(*statuses: int) -> bool:
    return any(status not in (400, 401, 403, 404, 405, 422) for status in statuses)


def rollout(**changes: Any) -> Cid:
    fields: dict[str, Any] = {"nonce": 1, "replica": "r", "version": None, "calls": 9, "ends": time.time() + 600}
    return Cid(**{"rollout_id": "job_a_1_1", "expires": int(time.time()) + 600} | fields | changes)


# -- inference --


@way
async def its_own_key_as_the_bearer(w: World) -> bool:
    return opened(*[await w.chat(p, Authorization=f"Bearer {w.key}") for p in CALL_PATHS if "{" not in p])


@way
async def its_own_key_as_an_environment_key(w: World) -> bool:
    return opened(await w.chat(X_API_Key=w.key))


@way
async def its_own_key_twice(w: World) -> bool:
    return opened(await w.chat(X_API_Key=w.key, Authorization=f"Bearer {w.key}"))


@way
async def an_environment_key_beside_an_unknown_bearer(w: World) -> bool:
    return opened(await w.chat(X_API_Key=w.key, Authorization="Bearer x"), await w.chat(Authorization="Bearer"))


@way
async def other_schemes_of_the_header(w: World) -> bool:
    basic = base64.b64encode(f"{w.key}:".encode()).decode()
    sent = (f"bearer {w.key}", f"Basic {basic}", f"Bearer Bearer {w.key}", w.key, f"Bearer  {w.key}", f"Token {w.key}")
    return opened(*[await w.chat(Authorization=header) for header in sent])


@way
async def its_own_key_in_a_url(w: World) -> bool:
    return opened(await w.chat(f"/keys/{w.key}/v1/chat/completions"), await w.chat(f"/keys/{w.key_id}/v1/"))


@way
async def its_own_key_as_a_rollouts_credential(w: World) -> bool:
    return opened(await w.chat(f"/v1/chat/completions?cid={w.key}"), await w.chat(f"/rollouts/{w.key}/v1/"))


@way
async def a_rollouts_credential_that_it_signs_itself(w: World) -> bool:
    forged = [mint_cid(rollout(), credentials(secret)) for secret in ("a guessed secret", "secret" * 3, w.key)]
    return opened(*[await w.chat(f"/rollouts/{cid}/v1/chat/completions") for cid in forged])


@way
async def a_rollouts_credential_that_it_changes(w: World) -> bool:
    """One that its own task app was given, for another job, more calls or another policy."""
    body, mac = mint_cid(rollout(), credentials()).rsplit("_", 1)
    another_job = rollout(rollout_id="job_b_1_1", calls=10**6, version=3)
    other = mint_cid(another_job, credentials("a guessed secret")).rsplit("_", 1)[0]
    kept = mint_cid(another_job, credentials()).rsplit("_", 1)[0]
    sent = (f"{other}_{mac}", f"{kept}_{mac}", f"{body}_{'0' * len(mac)}", f"{body}_")
    return opened(*[await w.chat(f"/v1/chat/completions?cid={cid}") for cid in sent])


@way
async def a_rollouts_credential_at_other_doors(w: World) -> bool:
    cid = mint_cid(rollout(), credentials())
    replies = [
        await w.ask("GET", path, headers={"Authorization": f"Bearer {cid}"}) for path in ("/api/me", "/v1/models")
    ]
    return opened(*[reply.status_code for reply in replies])


@way
async def an_environment_key_of_its_own(w: World) -> bool:
    key = new_secret()
    assert (await w.ask("POST", "/api/environment-keys", json={"key": key})).status_code == 201
    return await w.chats_with(key)


@way
async def an_environment_key_that_is_to_chat(w: World) -> bool:
    key = new_secret()
    reply = await w.ask("POST", "/api/environment-keys", json={"key": key, "chat": True})
    return opened(reply.status_code) or await w.chats_with(key)


@way
async def a_sealed_environment_key(w: World) -> bool:
    key = new_secret()
    assert (await w.ask("POST", "/api/v1/env-keys", json=w.sealed(key))).status_code == 201
    return await w.chats_with(key)


@way
async def an_environment_key_that_comes_with_a_job(w: World) -> bool:
    key = new_secret()
    for path in ("/api/rl/jobs", "/api/v1/rl/jobs", "/api/api/rl/jobs"):
        body = JOB | {"data": JOB["data"] | {"environment_api_key": key}}  # type: ignore[operator]
        assert (await w.ask("POST", path, json=body)).status_code == 201
    return await w.chats_with(key)


@way
async def its_own_api_key_stored_as_an_environment_key(w: World) -> bool:
    reply = await w.ask("POST", "/api/environment-keys", json={"key": w.key})
    sealed = await w.ask("POST", "/api/v1/env-keys", json=w.sealed(w.key))
    return opened(reply.status_code, sealed.status_code) or await w.chats_with(w.key)


@way
async def prolonging_the_chat_of_a_key_that_it_knows(w: World) -> bool:
    """It may know one, as who runs the task app does: storing it again must not outlive the one that granted chat."""
    known = w.chat_key
    w.secrets.remove(known)
    assert (await w.ask("POST", "/api/environment-keys", json={"key": known})).status_code == 201
    assert (await w.owner.http.delete(f"/api/keys/{w.chat_maker}")).status_code == 200
    await w.ask("POST", "/api/environment-keys", json={"key": known})
    return await w.chats_with(known)


@way
async def a_key_with_more_scopes(w: World) -> bool:
    bodies = ({"scopes": ["inference"]}, {"scopes": ["write"]}, {}, {"scopes": ["write", "inference", "keys"]})
    return opened(*[(await w.ask("POST", "/api/keys", json=body)).status_code for body in bodies])


@way
async def a_key_for_a_url(w: World) -> bool:
    return opened((await w.ask("POST", "/api/keys", json={"url": True, "expires_in_s": 60})).status_code)


@way
async def rotating_a_key_into_its_hands(w: World) -> bool:
    listed = (await w.owner.http.get("/api/keys")).json()["data"]
    return opened(*[(await w.ask("POST", f"/api/keys/{key['id']}/rotate")).status_code for key in listed])


@way
async def an_organisation_or_a_key_of_one(w: World) -> bool:
    made = await w.ask("POST", "/api/organisations", json={"name": "mine"})
    key = await w.ask("POST", f"/api/organisations/{w.owner.org}/keys", json={"scopes": ["inference"]})
    return opened(made.status_code, key.status_code)


@way
async def other_spellings_of_a_guarded_path(w: World) -> bool:
    paths = (
        "/api/%6Beys",
        "/api//keys",
        "/api/keys/",
        "/api/v1/../keys",
        "/API/keys",
        "/api/keys;x",
        "/api/keys?x=/v1",
    )
    return opened(*[(await w.ask("POST", path, json={"scopes": ["inference"]})).status_code for path in paths])


@way
async def a_judge_that_answers_it(w: World) -> bool:
    body = {"options": {"model": "tiny", "provider": "synth"}, "trace": {}, "rubric": {"outcome": {"criteria": []}}}
    paths = ("/api/judge/v1/score", "/api/v1/judge/v1/score", "/api/api/judge/v1/score/")
    # Before anything is looked at: a body that is wrong would be a 422.
    return any([(await w.ask("POST", path, json=body)).status_code != 403 for path in paths])


@way
async def a_grader_that_asks_a_model(w: World) -> bool:
    grader = {"type": "score_model", "name": "g", "model": "tiny", "input": [{"role": "user", "content": "hello"}]}
    reply = await w.ask("POST", "/v1/fine_tuning/alpha/graders/run", json={"grader": grader, "model_sample": "x"})
    return opened(reply.status_code)


@way
async def headers_that_name_somebody_else(w: World) -> bool:
    headers = {"X-Synth-Org": w.owner.org, "X-Org-ID": w.owner.org, "X-User-ID": "u", "X-HTTP-Method-Override": "GET"}
    statuses = [await w.chat(Authorization=f"Bearer {w.key}", **headers)]
    statuses += [(await w.ask("GET", "/api/keys", headers=headers)).status_code]
    return opened(*statuses)


# -- secrets --


@way
async def every_list(w: World) -> bool:
    return opened(*[(await w.ask(m, f"/api/{path}")).status_code for path in LISTS for m in ("GET", "HEAD")])


@way
async def lists_of_other_prefixes_and_methods(w: World) -> bool:
    paths = [f"{prefix}/{path}" for prefix in ("/api/v1", "/api/api", "/v1") for path in LISTS]
    gets = [(await w.ask("GET", path)).status_code for path in paths]
    odd = [(await w.ask(m, "/api/environment-keys")).status_code for m in ("PUT", "PATCH", "OPTIONS", "TRACE")]
    return opened(*gets, *odd)


@way
async def an_echo_of_the_organisations_app(w: World) -> bool:
    """It answers errors with the headers that it was sent, and what it says is reported."""
    for path in ("/echo", "/echo/name", "/echo/long"):
        reply = await w.verify(w.its_app.url + path)
        assert w.its_app.calls[-1].headers["x-api-key"] == w.bound, reply.text
    return False


@way
async def a_look_at_a_task_app_of_its_own(w: World) -> bool:
    await w.verify(w.hostile.url)
    await w.verify(w.hostile.url + "/below")
    return False


@way
async def a_job_at_a_task_app_of_its_own(w: World) -> bool:
    made = await w.ask("POST", "/api/jobs", json={"config": RL, "config_name": "rl.toml", "task_url": w.hostile.url})
    assert made.status_code == 201
    w.hostile.calls.append(Call(f"job {made.json()['id']}", {}))
    return False


@way
async def a_task_app_that_sends_on_to_the_organisations_own(w: World) -> bool:
    for path in ("/redirect", "/redirect/"):
        await w.verify(w.hostile.url + path)
    return False


@way
async def addresses_that_look_like_the_organisations_own(w: World) -> bool:
    its_own, hostile = (url.removeprefix("http://") for url in (w.its_app.url, w.hostile.url))
    for url in (
        f"http://{its_own}@{hostile}",
        f"http://{hostile}#@{its_own}",
        f"http://{hostile}?@{its_own}",
        f"http://{hostile}\\@{its_own}",
        f"http://{hostile}/http://{its_own}",
        f"HTTP://{hostile.upper()}",
        f"http://localhost:{hostile.rpartition(':')[2]}",
    ):
        await w.verify(url)
    return False


@way
async def a_key_of_its_own_for_the_organisations_app_and_then_another_address(w: World) -> bool:
    key = new_secret()
    await w.ask("POST", "/api/environment-keys", json={"key": key, "url": w.its_app.url})
    await w.ask("POST", "/api/environment-keys", json={"key": key, "url": w.hostile.url})
    await w.verify(w.its_app.url)
    await w.verify(w.hostile.url)
    return False


@way
async def a_judges_key_under_another_address(w: World) -> bool:
    body = {"name": "mine", "key": "its-own", "url": w.hostile.url}
    await w.ask("POST", "/api/judge-keys", json=body)
    await w.ask("DELETE", "/api/judge-keys/mine")
    return False


@way
async def what_errors_say(w: World) -> bool:
    for body in ({"key": 1}, {"key": "x" * 9000}, {"key": "a\nb"}, {"nokey": w.bound_id}, [], "x"):
        await w.ask("POST", "/api/environment-keys", json=body)
    for id in (w.bound_id + "x", "*", ">", "..", w.owner.org):
        await w.ask("DELETE", f"/api/environment-keys/{id}")
        await w.ask("DELETE", f"/api/environment-keys/{id}/chat")
    return False


@way
async def a_job_that_names_secrets(w: World) -> bool:
    names = "${ENVIRONMENT_API_KEY} env:SYNTH_CLUSTER_SECRET {{ENVIRONMENT_API_KEY}} file:///proc/self/environ"
    config = RL.replace("[training]", f'[rollout.env_config]\nkey = "{names}"\n[training]')
    await w.ask("POST", "/api/jobs/check", json={"config": config, "config_name": "rl.toml"})
    await w.ask("POST", "/api/jobs", json={"config": config, "config_name": "rl.toml", "task_url": w.hostile.url})
    return False


@way
async def what_is_open_to_the_world(w: World) -> bool:
    for path in ("/metrics", "/healthz", "/readyz", "/openapi.json", "/api/health", "/"):
        await w.ask("GET", path)
    return False


@way
async def ending_what_it_may_and_looking_again(w: World) -> bool:
    await w.ask("DELETE", f"/api/environment-keys/{w.bound_id}/chat")
    await w.ask("DELETE", f"/api/environment-keys/{w.bound_id}")
    await w.verify(w.hostile.url)
    return False


async def test_a_key_that_may_only_write_obtains_neither_inference_nor_a_secret(
    start_gateway, client_of, bus_as, settings_of, cluster_dir, tmp_path, capfd
):
    make_model_dir(cluster_dir)
    running = await start_gateway(log_level="debug")
    owner = await client_of(running)
    fast: dict[str, Any] = {"SYNTH_ALLOW_LOOPBACK": "1", "SYNTH_RETRY_FOR_S": "0.1", "SYNTH_LOG_LEVEL": "debug"}
    logs = {name: tmp_path / name for name in ("verifier", "validator")}
    bound: list[str] = []
    worked: list[str] = []
    async with (
        scripted(at_home(bound)) as its_app,
        scripted(elsewhere([its_app.url])) as hostile,
        httpx.AsyncClient(base_url=running.service.url, timeout=60, follow_redirects=True) as http,
    ):
        with (
            running_service("verifier", settings_of("verifier"), logs["verifier"], **fast),
            running_service("validator", settings_of("validator"), logs["validator"], **fast),
        ):
            world = await make_world(owner, its_app, hostile, http)
            bound.append(world.bound)
            # What is guarded is there: otherwise nothing would be shown by its not being obtained.
            assert await world.chats_with(world.chat_key)
            assert (await owner.http.post("/api/rl/verify_task_app", json={"endpoint_base_url": its_app.url})).json()[
                "any_ok"
            ]
            for tried in WAYS:
                if await tried(world):
                    worked.append(tried.__name__)
            bus = await bus_as("gateway")
            for call in hostile.calls:
                if call.path.startswith("job "):
                    await wait_for(bus, f"job.*.{owner.org}.{call.path[4:]}", "job.verified", "job.refused", timeout=60)
    assert len(WAYS) >= 30
    assert worked == []
    assert hostile.calls[-1].headers
    for call in hostile.calls:
        world.look(f"{call.path} at the hostile app", str(call.headers))
    jobs = (await owner.http.get("/api/jobs", params={"limit": 100})).json()["data"]
    seen = [(await owner.http.get(f"/api/jobs/{job['id']}{rest}")).text for job in jobs for rest in ("", "/events")]
    assert len(seen) >= 10
    for name, text in (
        ("what the organisation sees", "".join(seen)),
        ("the gateway's log", "".join(capfd.readouterr())),
        *((f"the {name}'s log", log.read_text()) for name, log in logs.items()),
    ):
        world.look(name, text)
    assert world.leaks == []
