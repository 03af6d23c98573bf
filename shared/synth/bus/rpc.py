"""Request and reply (decision 12): the questions between services, and the code that sends and answers them.

A question is no fact: it is not in the log, and only the requesting service sees the answer. Data that must survive a
restart is an event or a task. Invariant: the requesting service gets an answer, or `Transient` at the deadline; an
answering service that fails reports it at once.
"""

# nats-py annotates parts of itself not at all.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from synth.bus.connection import Connection
from synth.chat.template_source import RenderOptions
from synth.errors import Permanent, Problem, Transient
from synth.events import JobCreated
from synth.fairness.slots import FairSlots
from synth.runtime import logs

log = logs.get("rpc")

VERIFY = "ask.verify"
VALIDATE = "ask.validate"
CHECK = "ask.check"
JUDGE = "ask.judge"
#: Seconds in which the requesting service gets an answer or an error: less than the minute after which clients and
#: proxies give up a silent request (decision 12).
ANSWER_WITHIN_S = 50.0
#: Seconds that the answer may take: the error of a late answer arrives before the requesting service stops waiting.
SERVE_WITHIN_S = ANSWER_WITHIN_S - 2

#: The services that send each question, and the service that answers it.
QUESTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    VERIFY: (("gateway",), "verifier"),
    VALIDATE: (("gateway",), "validator"),
    CHECK: (("gateway",), "verifier"),
    JUDGE: (("gateway", "verifier", "rollouts"), "judge"),
}

#: What a task app answers to a key that is not its own.
KEY_REFUSED_STATUSES = (400, 401, 403)


class VerifyTaskApp(msgspec.Struct, frozen=True, kw_only=True):
    """Is this task app there, and which environment key opens it? by: the id of the API key in use."""

    org: str
    url: str
    by: str = ""


class KeyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one environment key, or of none (key_id None). status: the HTTP answer that decided it, if any."""

    key_id: str | None
    ok: bool
    path: str
    status: int | None
    reason: str


class TaskAppReport(msgspec.Struct, frozen=True, kw_only=True):
    """Every key of the organisation, newest first, and the results of the tried ones. task_name: set if one worked."""

    key_ids: list[str]
    attempts: list[KeyResult]
    task_name: str | None = None


class ValidateJob(msgspec.Struct, frozen=True, kw_only=True):
    """Is this submission valid? Its datasets may be paths: they are uploaded when it is submitted."""

    org: str = ""
    created: JobCreated


class ValidationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of the validator. job: the resolved job, None with problems."""

    problems: list[Problem] = []
    warnings: list[str] = []
    job: dict[str, Any] | None = None


class CheckJob(msgspec.Struct, frozen=True, kw_only=True):
    """Are the model and the uploaded files of this resolved job there, and does it fit them?"""

    org: str
    job: dict[str, Any]


class CheckVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verifier's verdict on them.

    unchecked: the files that are being checked. rendering: how the rows of a file that is still to be uploaded are
    rendered; None if the job names none, or the files of its model are not here.
    """

    problems: list[Problem] = []
    unchecked: list[str] = []
    rendering: RenderOptions | None = None


class Question(Protocol):
    """A question. org: the organisation for which it is sent."""

    @property
    def org(self) -> str: ...


_Q = TypeVar("_Q", bound=Question)
_A = TypeVar("_A", bound=msgspec.Struct)
_FAILED = "Synth-Failed"
_HEARD_S = 5
_AGAIN_S = 0.5


async def ask(bus: Connection, subject: str, question: msgspec.Struct, answer: type[_A], *, within: float) -> _A:
    """Send a question to any replica of the answering service. within: seconds. Raises `Transient` if it fails."""
    answerer = QUESTIONS[subject][1]
    try:
        reply = await bus.nc.request(subject, msgspec.json.encode(question), timeout=within)
    except NoRespondersError as error:
        raise Transient(f"no {answerer} is running", delay=5) from error
    except (NatsError, TimeoutError) as error:
        raise Transient(f"the {answerer} did not answer within {within:g} s ({error!r})", delay=5) from error
    if (reply.headers or {}).get(_FAILED):
        raise Transient(f"the {answerer} could not answer; its log has the details", delay=5)
    return msgspec.json.decode(reply.data, type=answer)


async def serve_questions(
    bus: Connection,
    subject: str,
    question: type[_Q],
    answer: Callable[[_Q], Awaitable[msgspec.Struct]],
    stop: asyncio.Event,
    *,
    max_concurrent: int,
    within: float,
    spare: int = 0,
    started: asyncio.Event | None = None,
) -> None:
    """Answer this question, shared with the service's other replicas, until `stop`; then finish the running answers.

    max_concurrent: questions that are answered at one time, in turns of the organisations. within: seconds for one,
    waiting for its turn included. spare: how many more are answered, for organisations that have none of them.
    started: set once questions reach this replica.
    """
    if QUESTIONS[subject][1] != bus.service:
        raise Permanent(f"{subject} is answered by {QUESTIONS[subject][1]}, not by {bus.service}")
    slots = FairSlots(max_concurrent, spare=spare)
    running: set[asyncio.Task[None]] = set()

    async def reply_to(msg: Msg) -> None:
        try:
            requested = msgspec.json.decode(msg.data, type=question)
            async with asyncio.timeout(within), slots.hold(requested.org):
                body = msgspec.json.encode(await answer(requested))
            await bus.nc.publish(msg.reply, body)
        except TimeoutError:
            log.warning("a question was not answered in time", subject=subject)
            await bus.nc.publish(msg.reply, headers={_FAILED: "late"})
        except Exception:
            # After any error, the requesting service must not wait.
            log.exception("a question could not be answered", subject=subject)
            await bus.nc.publish(msg.reply, headers={_FAILED: "error"})

    async def arrived(msg: Msg) -> None:
        if not msg.reply:
            log.warning("a question names nobody to answer to", subject=subject)
            return
        task = asyncio.create_task(reply_to(msg))
        running.add(task)
        task.add_done_callback(running.discard)

    subscription = await bus.nc.subscribe(subject, queue=bus.service, cb=arrived)
    while started is not None and not started.is_set() and not stop.is_set():
        try:
            # The server knows the subscription once it answers a later message.
            await bus.nc.flush(timeout=_HEARD_S)
            started.set()
        except (NatsError, TimeoutError, OSError) as error:
            log.warning("the bus does not hear what is answered here", subject=subject, error=repr(error))
            await asyncio.sleep(_AGAIN_S)
    await stop.wait()
    try:
        await subscription.drain()
    except NatsError as error:
        log.warning("could not leave a question's queue", subject=subject, error=repr(error))
    while running:
        await asyncio.wait(set(running))
