"""The attacks: each sends one input after the other, and says what the platform did wrong with it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from synth.events import FileRejected
from synth.events.catalogue import SERVICES
from tests.service.gateway.hostile import Hostile
from tests.service.gateway.raw_http import exchange, status_of
from tests.soak.hostile.addresses import forbidden_addresses, image_address
from tests.soak.hostile.bus_messages import bus_message
from tests.soak.hostile.job_texts import job_text
from tests.soak.hostile.rows import row
from tests.soak.hostile.servers import HostileServer, Trap
from tests.soak.hostile.target import MODEL, Target, post, upload

_ROLLOUTS = 48
_TURN = {"role": "assistant", "content": "4"}
EVALUATION = f"""
[eval]
app_id = "math"
model = "{MODEL}"
task_app_url = "{{url}}/play"
seeds = {{{{ start = {{start}}, count = {{count}} }}}}
concurrency = 16
rollout_timeout_s = 4.0
max_retries = 0
max_tokens = 8
[rollout]
task_app_origin_rewards_only = {{own_scores}}
"""


async def _note_nothing(name: str, decided: str, seconds: float) -> None:
    """Where nobody reads it."""


@dataclass
class Ring:
    """Who attacks whom, from where. known: ids of the jobs and files that were made.

    note: reports what one input took; the input's name, how it was decided, and seconds.
    """

    target: Target
    http: httpx.AsyncClient
    server: HostileServer
    trap: Trap
    rng: random.Random
    known: list[str] = field(default_factory=list[str])
    thieves: dict[str, Client] = field(default_factory=dict[str, Client])
    note: Callable[[str, str, float], Awaitable[None]] = _note_nothing

    def __post_init__(self) -> None:
        self._requests = Hostile(self.rng.randrange(1 << 30), self.target.key)

    async def request(self) -> str | None:
        """A request as bytes."""
        kind, sent = self._requests.next()
        answer = await exchange(self.target.url, sent)
        if not _is_answer(status_of(answer), b"retry-after" in answer.lower()):
            return f"{kind}: {answer[:300]!r} to {sent[:300]!r}"
        return None

    async def job_text(self) -> str | None:
        """A job file: three in four are looked at, the others are jobs."""
        body = {"config": job_text(self.rng)}
        if self.rng.random() < 0.75:
            return wrong_of(await post(self.http, "/api/jobs/check", body), body)
        reply = await post(self.http, "/api/jobs", body | {"task_url": "http://127.0.0.1:9/"})
        return await self.ends(reply, body)

    async def row(self) -> str | None:
        """A training file."""
        body = row(self.rng)
        return await self.ends(await upload(self.http, "hostile.jsonl", body), body)

    async def image(self) -> str | None:
        """A training file with the address of an image."""
        address = image_address(self.rng, allowed=self.server.url, forbidden=self.trap.port)
        part = {"type": "image_url", "image_url": {"url": address}}
        user = {"role": "user", "content": [part, {"type": "text", "text": "?"}] if self.rng.random() < 0.5 else "?"}
        made: dict[str, Any] = {"messages": [user, _TURN]}
        if user["content"] == "?":
            made["images"] = [address]
        body = json.dumps(made).encode()
        return await self.ends(await upload(self.http, "images.jsonl", body), body)

    async def task_app(self) -> str | None:
        """A task app that is looked at: one that answers as it likes, or an address that nobody may reach."""
        url = f"{self.server.url}/verify"
        if self.rng.random() < 0.2:
            url = self.rng.choice(forbidden_addresses(self.trap.port))
        return wrong_of(await post(self.http, "/api/rl/verify_task_app", {"endpoint_base_url": url}), url)

    async def rollouts(self) -> str | None:
        """An evaluation at a task app that answers as it likes."""
        own_scores = str(self.rng.random() < 0.5).lower()
        text = EVALUATION.format(
            url=self.server.url, start=self.rng.randrange(1 << 30), own_scores=own_scores, count=_ROLLOUTS
        )
        return await self.ends(await post(self.http, "/api/jobs", {"config": text}), text)

    async def bus_message(self) -> str | None:
        """A message on the bus of whoever has stolen a service's credential."""
        message = bus_message(self.rng, orgs=[self.target.org, "org_x"], keys=self.known[-50:] or ["job_x"])
        nc = self.thieves[message.thief]
        try:
            await nc.publish(message.subject, message.body, headers=message.headers or None)
            await nc.flush(30)
        except (NatsError, ValueError):
            # The client refuses the subject, or the server ended the connection: no message.
            return None
        return None

    async def ends(self, reply: httpx.Response, sent: object) -> str | None:
        """A job or a file that was taken has to end, by the decision of a service."""
        wrong = wrong_of(reply, sent)
        if wrong or reply.status_code >= httpx.codes.BAD_REQUEST:
            return wrong
        id = str(reply.json()["id"])
        self.known.append(id)
        event = (await self.target.end_of(id)).event
        if isinstance(event, FileRejected) and event.unchecked:
            return f"{id} could not be checked: {event.problems} of {_excerpt(sent)}"
        return None


def wrong_of(reply: httpx.Response, sent: object) -> str | None:
    """What is wrong with an answer of the gateway; None if nothing is."""
    if _is_answer(reply.status_code, "retry-after" in reply.headers):
        return None
    return f"{reply.status_code} {reply.text[:300]} to {_excerpt(sent)}"


def _is_answer(status: int, retry_after: bool) -> bool:
    return status < 500 or (status == 503 and retry_after)


def _excerpt(sent: object) -> str:
    return repr(sent)[:300]


@dataclass(frozen=True)
class Attack:
    """send: one input, or `inputs` of them; returns what was wrong. at_once: of them at the same time.

    services: those that have to do with it; environment: their settings, beside those of the campaign.
    most_slower: by how much the median of another organisation may grow; most_growth: bytes, of a service's memory.
    most_gap_s: for how long an event loop may stand still; None: for any time.
    prepare: returns how many inputs there are; None: as many as the campaign sends.
    """

    send: Callable[[Ring], Awaitable[str | None]]
    services: tuple[str, ...]
    inputs: int = 1
    at_once: int = 4
    environment: Mapping[str, str] = field(default_factory=lambda: {"SYNTH_MAX_ANSWER_BYTES": str(4 << 20)})
    most_slower: float = 2.0
    most_growth: int = 200 << 20
    most_gap_s: float | None = None
    prepare: Callable[[Ring], Awaitable[int]] | None = None


#: Kind → how it is sent.
HOSTILE: dict[str, Attack] = {
    "requests": Attack(Ring.request, ("gateway", "validator", "verifier")),
    "job files": Attack(Ring.job_text, ("gateway", "validator", "verifier")),
    "training files": Attack(Ring.row, ("gateway", "files")),
    "image addresses": Attack(Ring.image, ("gateway", "files")),
    "task apps": Attack(Ring.task_app, ("gateway", "verifier")),
    "rollouts": Attack(
        Ring.rollouts, ("gateway", "validator", "verifier", "rollouts", "inference"), inputs=_ROLLOUTS, at_once=2
    ),
    "bus messages": Attack(Ring.bus_message, ("gateway", "validator", "verifier", "files", "rollouts"), at_once=2),
}


async def steal_credentials(ring: Ring, closing: AsyncExitStack) -> None:
    """Connect as every service, with a client that is not ours."""

    async def ignore(error: Exception) -> None:
        """What the server refuses it may refuse."""

    for service in SERVICES:
        password = ring.target.bus.config.users[service]
        ring.thieves[service] = await nats.connect(
            ring.target.bus.config.url,
            user=service,
            password=password,
            error_cb=ignore,
            inbox_prefix=f"_INBOX.{service}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
        )
        closing.push_async_callback(ring.thieves[service].close)


async def storm(ring: Ring, attack: Attack, inputs: int, *, deadline_s: float, say: Callable[[int], None]) -> list[str]:
    """Send so many inputs; returns what was wrong. deadline_s: of one. say: told how many were sent."""
    places = asyncio.Semaphore(attack.at_once)
    wrong: list[str] = []
    sent = 0

    async def send() -> None:
        nonlocal sent
        try:
            async with asyncio.timeout(deadline_s):
                found = await attack.send(ring)
        except TimeoutError:
            found = f"no end in {deadline_s:g} s"
        except httpx.TransportError as error:
            found = f"no answer: {error!r}"
        finally:
            places.release()
        sent += attack.inputs
        say(sent)
        if found:
            wrong.append(found)

    async with asyncio.TaskGroup() as group:
        for _ in range(-(-inputs // attack.inputs)):
            await places.acquire()
            group.create_task(send())
    return wrong
