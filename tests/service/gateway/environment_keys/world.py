"""An organisation with secrets, and somebody in it who has a key that may only write."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from synth.keys import sealing_key
from synth.service_secrets import NEEDS, Purpose
from tests.keyrings import CLUSTER_SECRET, keyring
from tests.service.gateway.conftest import Client
from tests.service.gateway.environment_keys.people import CHAT, key_with
from tests.service.verifier.task_apps import Call, ScriptedApp, good

#: What every gateway of the tests is started with.


def new_secret() -> str:
    """A key that is nobody else's."""
    return f"env_{secrets.token_hex(12)}"


@dataclass
class World:
    """owner: may do everything. key: the write-only one, at the gateway of `http`, which sends it as its bearer.

    its_app: the organisation's task app, with `bound` as its key. hostile: the task app of whoever has the key.
    open_key: stored without an address. chat_key: opens chat for `chat_maker`, an API key. secrets: none of which may
    be seen. leaks: what was.
    """

    owner: Client
    http: httpx.AsyncClient
    key: str
    key_id: str
    its_app: ScriptedApp
    hostile: ScriptedApp
    bound_id: str
    bound: str
    open_key: str
    chat_key: str
    chat_maker: str
    secrets: list[str]
    leaks: list[str] = field(default_factory=list[str])

    async def ask(self, method: str, path: str, **options: object) -> httpx.Response:
        """Ask with the write-only key, and look for secrets in what comes back."""
        reply = await self.http.request(method, path, **options)  # type: ignore[arg-type]
        self.look(f"{method} {path}", reply.text + json.dumps(dict(reply.headers)))
        return reply

    def look(self, where: str, text: str) -> None:
        """Remember every secret that is in this text, in any of the forms that it may have."""
        for secret in self.secrets:
            forms = (secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode().rstrip("="))
            if any(form in text for form in forms):
                self.leaks.append(f"{where}: {secret}")

    async def chat(self, path: str = "/v1/chat/completions", **headers: str) -> int:
        """The status of a chat that sends these headers alone."""
        async with httpx.AsyncClient(base_url=self.http.base_url, timeout=60) as http:
            reply = await http.post(path, json=CHAT, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.look(f"chat at {path}", reply.text)
        return reply.status_code

    async def chats_with(self, environment_key: str) -> bool:
        """Whether an environment key opens chat, however it is sent."""
        sent = [await self.chat(X_API_Key=environment_key)]
        sent.append(await self.chat(Authorization=f"Bearer {environment_key}"))
        return any(status not in (401, 403) for status in sent)

    async def verify(self, url: str) -> httpx.Response:
        """Have the cluster look at a task app."""
        return await self.ask("POST", "/api/rl/verify_task_app", json={"endpoint_base_url": url})

    def sealed(self, key: str) -> dict[str, str]:
        """The body with which the published clients store an environment key."""
        from nacl.public import PublicKey, SealedBox

        box = SealedBox(PublicKey(base64.b64decode(sealing_key(keyring(Purpose.CLIENTS)))))
        return {"ciphertext_b64": base64.b64encode(box.encrypt(key.encode())).decode()}


async def make_world(owner: Client, its_app: ScriptedApp, hostile: ScriptedApp, http: httpx.AsyncClient) -> World:
    """The organisation's keys, stored by its owner, and the write-only key in `http`."""
    bound, open_key, chat_key, judge_key = (new_secret() for _ in range(4))
    stored = await owner.http.post("/api/environment-keys", json={"key": bound, "url": its_app.url})
    assert stored.status_code == 201
    await owner.http.post("/api/environment-keys", json={"key": open_key})
    maker = await key_with(owner, "write", "inference")
    granted = await owner.http.post(
        "/api/environment-keys", json={"key": chat_key}, headers={"Authorization": f"Bearer {maker['key']}"}
    )
    assert granted.json()["chat"]["state"] == "live"
    judge = {"name": "mine", "key": judge_key, "url": "https://judge.example.com/v1"}
    assert (await owner.http.post("/api/judge-keys", json=judge)).status_code == 201
    url_key = (await owner.http.post("/api/keys", json={"url": True})).json()
    writer = await key_with(owner, "write")
    http.headers["Authorization"] = f"Bearer {writer['key']}"
    return World(
        owner=owner,
        http=http,
        key=writer["key"],
        key_id=writer["id"],
        its_app=its_app,
        hostile=hostile,
        bound_id=stored.json()["id"],
        bound=bound,
        open_key=open_key,
        chat_key=chat_key,
        chat_maker=maker["id"],
        secrets=[bound, open_key, chat_key, judge_key, owner.key, maker["key"], url_key["key"], CLUSTER_SECRET]
        + [keyring(purpose).current.key.hex() for purpose in NEEDS["gateway"]],
    )


def at_home(bound: list[str]):
    """The organisation's task app: it echoes what it is sent below /echo."""

    def script(call: Call) -> tuple[int, bytes]:
        key = call.headers.get("x-api-key", "")
        if call.path.startswith("/echo/name") and call.path.endswith("/task_info"):
            return 200, f'{{"taskset": {{"name": "{key}"}}, "env_names": ["{key}"]}}'.encode()
        if call.path.startswith("/echo/name"):
            return 200, b'{"healthy": true}'
        if call.path.startswith("/echo"):
            before = "." * (390 if "/long" in call.path else 0)
            return 404, f"{before}{key} {base64.b64encode(key.encode()).decode()} {dict(call.headers)}".encode()
        return good(call) if key in bound else (401, b"no")

    return script


def elsewhere(its_app: list[str]):
    """The task app of whoever has the key: it sends some callers on, and refuses the rest: then all keys are tried."""

    def script(call: Call) -> tuple[int, bytes]:
        return (307, its_app[0].encode()) if call.path.startswith("/redirect") else (401, b"another one, please")

    return script
