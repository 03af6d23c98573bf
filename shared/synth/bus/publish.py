"""Appending to the log, and queueing work.

Invariants. An event is published by its only publisher. It has a deterministic id, so that a retry of our own
publish is recognised: inside the dedupe window by the server, in a compare-and-set by reading back. A publish is
retried through stalls and elections for 30 s, then `Transient`. Losing a compare-and-set is `Conflict`; being an
owner whose claim is no longer the last one is `Fenced`.

The events of an owner that become ready while one is in flight are one atomic batch: the server stores all of them,
each as a message of its own, or none. The server refuses a batch that contains a stored id, so after any failure they
are appended one by one.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from nats.errors import ConnectionClosedError, NoRespondersError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from synth.bus.connection import Connection
from synth.bus.recorded import (
    EXPECTED,
    EXPECTED_SUBJECT,
    MSG_ID,
    SCHEMA,
    TRACEPARENT,
    TTL,
    WRONG_LAST_SEQUENCES,
    encode,
)
from synth.bus.server.topology import EVENTS, PUBLISH_BUDGET_S, PUBLISH_TIMEOUT_S, WORK, roles_of
from synth.errors import Conflict, Fenced, Permanent, Transient
from synth.events import JobStarted
from synth.events.catalogue import Event, Write, spec_of, subject_of
from synth.runtime import logs
from synth.runtime.telemetry import current_traceparent
from synth.work import TASKS, Redelivery, Task

log = logs.get("publish")

#: Headers of the messages of an atomic batch; the last message commits it.
_BATCH, _BATCH_SEQUENCE, _BATCH_COMMIT = "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit"
#: The server stages a batch in files of its own, which costs as much as a few messages.
_LEAST_BATCHED = 4
#: The server's limit is 1000 messages.
_MOST_BATCHED = 500
_MOST_BATCHED_BYTES = 4 << 20
_ONE_PER_SUBJECT = 10077
#: A stream of several replicas has taken a message of this id, and does not know yet whether it keeps it.
_IN_PROCESS = 10158
_STALLS = (
    NatsTimeout,
    TimeoutError,
    NoRespondersError,
    NoStreamResponseError,
    ServiceUnavailableError,
    ConnectionClosedError,
)


class _BatchError(msgspec.Struct):
    description: str = ""


class _BatchAnswer(msgspec.Struct):
    seq: int = 0
    count: int = 0
    error: _BatchError | None = None


@dataclass(eq=False)
class _Unsent:
    """A fenced event that is not in the log yet."""

    subject: str
    body: bytes
    headers: dict[str, str]
    seq: int = 0
    error: Exception | None = None


@dataclass
class Fence:
    """An owner's right to publish: the sequence of its claim. One fenced publish is in flight at a time.

    waiting: the events that are not in the log yet, in their order.

    claim: `job.started` for the owner of an attempt at a job, `collection.started` for an RL job's collector.
    """

    org: str
    job_id: str
    attempt: int
    seq: int
    claim: type[Event] = JobStarted
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[_Unsent, None] = field(default_factory=dict[_Unsent, None])

    @property
    def subject(self) -> str:
        return subject_of(self.claim, self.org, self.job_id)


class Publisher:
    """Appends this service's events."""

    def __init__(self, bus: Connection) -> None:
        self._bus = bus
        self._roles = roles_of(bus.service)

    async def once(self, event: Event, *, org: str, key: str, id: str, ttl: float | None = None) -> int:
        """Append a fact that needs no protection but its id. Returns its sequence. ttl: seconds that it lives."""
        self._check(event, Write.ONCE)
        return await self._append(event, org, key, id, _ttl(ttl), lost=Conflict)

    async def fenced(self, event: Event, *, fence: Fence, id: str, ttl: float | None = None) -> int:
        """Append a fact of an owner. ttl: seconds that it lives. Raises `Fenced` when another has made its claim."""
        self._check(event, Write.FENCED)
        headers = {EXPECTED: str(fence.seq), EXPECTED_SUBJECT: fence.subject} | _ttl(ttl)
        ours = _Unsent(*_message(event, fence.org, fence.job_id, id, headers))
        fence.waiting[ours] = None
        try:
            async with fence.turn:
                if ours in fence.waiting:
                    await self._send_waiting(fence)
        finally:
            fence.waiting.pop(ours, None)
        if ours.error is not None:
            raise ours.error
        return ours.seq

    async def chained(self, event: Event, *, org: str, key: str, id: str, after: int) -> int:
        """Append the next fact of a chain. after: the sequence of the one before (0: none). Raises `Conflict`."""
        self._check(event, Write.CHAIN)
        return await self._append(event, org, key, id, {EXPECTED: str(after)}, lost=Conflict)

    async def lifecycle(self, event: Event, *, org: str, key: str, id: str, after: int) -> int:
        """Append a `job.*` fact, decided on the facts up to sequence `after` (0: none). Raises `Conflict`."""
        self._check(event, Write.CAS)
        headers = {EXPECTED: str(after), EXPECTED_SUBJECT: f"job.*.{org}.{key}"}
        return await self._append(event, org, key, id, headers, lost=Conflict)

    def _check(self, event: Event, write: Write) -> None:
        spec = spec_of(event)
        if spec.by not in self._roles:
            raise Permanent(f"{spec.type} is published by {spec.by}, not by {self._bus.service}")
        if spec.write is not write:
            raise Permanent(f"{spec.type} is written {spec.write}, not {write}")

    async def _append(
        self, event: Event, org: str, key: str, id: str, expect: dict[str, str], *, lost: type[Conflict] | type[Fenced]
    ) -> int:
        return await self._send(*_message(event, org, key, id, expect), lost=lost)

    async def _send_waiting(self, fence: Fence) -> None:
        """Append the waiting events. If it is cancelled, the owner's next publish sends the unanswered ones again."""
        batch = _next_batch(fence.waiting)
        if len(batch) < _LEAST_BATCHED or not await self._send_batch(batch):
            for i, unsent in enumerate(batch):
                try:
                    unsent.seq = await self._send(unsent.subject, unsent.body, unsent.headers, lost=Fenced)
                except (Fenced, Transient) as error:
                    # It is the answer to the others too: they have the same claim, and the same bus.
                    for other in batch[i:]:
                        other.error = error
                    break
                except Exception as error:  # noqa: BLE001 - the publisher of this event gets it, of any type
                    unsent.error = error
        for unsent in batch:
            fence.waiting.pop(unsent, None)

    async def _send_batch(self, batch: list[_Unsent]) -> bool:
        """Return whether the server has stored a batch. If it has, but the answer is lost, it recognises the ids."""
        id, last = secrets.token_hex(8), len(batch)
        messages = [
            (unsent.subject, unsent.body, unsent.headers | {_BATCH: id, _BATCH_SEQUENCE: str(number)})
            for number, unsent in enumerate(batch, start=1)
        ]
        try:
            for subject, body, headers in messages[:-1]:
                await self._bus.nc.publish(subject, body, headers=headers)
            subject, body, headers = messages[-1]
            reply = await self._bus.nc.request(
                subject, body, timeout=PUBLISH_TIMEOUT_S, headers=headers | {_BATCH_COMMIT: "1"}
            )
            answer = msgspec.json.decode(reply.data, type=_BatchAnswer)
        except (NatsError, TimeoutError, msgspec.DecodeError) as error:
            log.warning("a batch is published one by one", error=repr(error))
            return False
        if answer.error is not None or answer.count != last:
            log.warning("a batch is published one by one", error=str(answer))
            return False
        for number, unsent in enumerate(batch, start=1):
            unsent.seq = answer.seq - last + number
        return True

    async def _send(
        self, subject: str, body: bytes, headers: dict[str, str], *, lost: type[Conflict] | type[Fenced]
    ) -> int:
        deadline = time.monotonic() + PUBLISH_BUDGET_S
        pause = 0.05
        while True:
            try:
                ack = await self._bus.js.publish(
                    subject, body, timeout=PUBLISH_TIMEOUT_S, stream=EVENTS, headers=dict(headers)
                )
                return ack.seq
            except BadRequestError as error:
                if error.err_code not in WRONG_LAST_SEQUENCES:
                    raise
                ours = await self._already_ours(subject, headers[MSG_ID])
                if ours is not None:
                    return ours
                if not await self._is_stale(headers):
                    error_text = str(error)  # 10164 (another append raced this one inside the server), or a stall
                else:
                    raise lost(f"{subject}: {error.description}") from error
            except _STALLS as error:
                error_text = repr(error)
            except APIError as error:
                if error.err_code != _IN_PROCESS:
                    raise
                error_text = str(error)
            if time.monotonic() > deadline:
                raise Transient(f"cannot publish {subject} for {PUBLISH_BUDGET_S:.0f} s: {error_text}")
            log.warning("publish retried", subject=subject, error=error_text)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 2.0)

    async def _already_ours(self, subject: str, id: str) -> int | None:
        # On one server a retry of our own publish looks like a lost compare-and-set: the id distinguishes them.
        try:
            last = await self._bus.js.get_last_msg(EVENTS, subject)
        except (NotFoundError, *_STALLS):
            return None
        return last.seq if (last.headers or {}).get(MSG_ID) == id else None

    async def _is_stale(self, headers: dict[str, str]) -> bool:
        subject = headers.get(EXPECTED_SUBJECT)
        if subject is None:
            return True
        try:
            last = await self._bus.js.get_last_msg(EVENTS, subject)
        except NotFoundError:
            return headers[EXPECTED] != "0"
        except _STALLS:
            # Unknown for now: the append is tried again, and refused again if it has lost.
            return False
        return last.seq != int(headers[EXPECTED])


def _message(event: Event, org: str, key: str, id: str, expect: dict[str, str]) -> tuple[str, bytes, dict[str, str]]:
    """Return an event's subject, body and headers."""
    subject = subject_of(event, org, key)
    headers = {MSG_ID: f"{subject}:{id}", SCHEMA: str(spec_of(event).version), "Content-Type": "application/json"}
    if traceparent := current_traceparent():
        headers[TRACEPARENT] = traceparent
    return subject, encode(event), headers | expect


def _next_batch(waiting: Iterable[_Unsent]) -> list[_Unsent]:
    """Return the first waiting events, as many as one batch may have."""
    batch, room = list[_Unsent](), _MOST_BATCHED_BYTES
    for each in itertools.islice(waiting, _MOST_BATCHED):
        room -= len(each.body)
        if batch and room < 0:
            break
        batch.append(each)
    return batch


def _ttl(seconds: float | None) -> dict[str, str]:
    return {TTL: f"{int(seconds)}s"} if seconds else {}


async def enqueue(bus: Connection, task: Task) -> bool:
    """Queue a task, once: False when it is queued already (or owned), which is as good (decision 3)."""
    _, queuers = TASKS[task.kind]
    if not roles_of(bus.service).intersection(queuers):
        raise Permanent(f"a {task.kind} task is queued by {' or '.join(queuers)}, not by {bus.service}")
    return await _enqueue(bus, task.subject, msgspec.json.encode(task))


async def enqueue_redelivery(bus: Connection, again: Redelivery, *, queue: str, org: str, key: str) -> bool:
    """Queue an event that is to be handled again, once. queue: the durable that it is taken from."""
    return await _enqueue(bus, f"work.retry.{queue}.{org}.{key}.{again.seq}", msgspec.json.encode(again))


async def _enqueue(bus: Connection, subject: str, body: bytes) -> bool:
    deadline = time.monotonic() + PUBLISH_BUDGET_S
    while True:
        try:
            await bus.js.publish(subject, body, timeout=PUBLISH_TIMEOUT_S, stream=WORK)
            return True
        except APIError as error:
            if error.err_code == _ONE_PER_SUBJECT:
                return False
            if not isinstance(error, ServiceUnavailableError):
                raise
        except _STALLS:
            pass
        if time.monotonic() > deadline:
            raise Transient(f"cannot queue {subject} for {PUBLISH_BUDGET_S:.0f} s")
        await asyncio.sleep(0.2)
