"""The judge: scores of rollouts by models behind chat APIs. Wiring only."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from synth.bus.kv.replicas import ReplicaTable
from synth.bus.kv.secrets import SecretStore
from synth.bus.rpc import JUDGE, SERVE_WITHIN_S, serve_questions
from synth.fairness.slots import FairSlots
from synth.judge.api.chat import JudgeChat
from synth.judge.api.connections import OrgConnections
from synth.judge.api.endpoints import Endpoints
from synth.judge.cache import AnswerCache
from synth.judge.judging import QuestionWorker
from synth.judge.leases import Leases
from synth.judge.questions import QuestionDesk
from synth.judge.settings import JudgeSettings
from synth.judge.voting import Voting
from synth.judging.contract import JudgeRollouts
from synth.outbound.service_calls import CallSigner
from synth.service import Service, run
from synth.service_secrets import Purpose


def main() -> int:
    """Run `synthd judge`; returns its exit code."""
    settings = JudgeSettings()

    async def setup(service: Service) -> None:
        replicas = ReplicaTable(service.bus)
        endpoints = Endpoints(
            bus=service.bus,
            secrets=SecretStore(service.bus, service.secrets),
            replicas=replicas,
            settings=settings,
            calls=CallSigner(service.secrets[Purpose.JUDGE_CALLS], lasts_s=settings.call_token_s),
            # The name is unique to this process: its successor does not continue its work.
            replica=f"{settings.replica}-{secrets.token_hex(4)}",
            guarded=OrgConnections(settings.guard, at_once=settings.judge_org_connections),
        )
        cache = AnswerCache(service.blobs, keep_s=settings.judge_cache_s)
        chat = JudgeChat(
            endpoints=endpoints,
            off_loop=service.off_loop,
            max_reply_bytes=settings.judge_max_reply_bytes,
            min_failing_timeout_s=settings.judge_breaker_timeout_s,
        )
        voting = Voting(chat, cache)
        worker = QuestionWorker(
            service.blobs,
            endpoints,
            voting,
            fence_secret=service.secrets[Purpose.FENCES].current.key.hex(),
            max_transcript_bytes=settings.judge_max_transcript_bytes,
        )
        most = settings.judge_questions
        desk = QuestionDesk(
            worker=worker,
            cache=cache,
            leases=Leases(service.bus, settings.judge_work_s),
            slots=FairSlots(most, per_organisation=max(1, int(settings.judge_org_share * most))),
            abandon_s=settings.judge_abandon_s,
            answer_s=settings.judge_answer_s,
        )
        questions = serve_questions(
            service.bus,
            JUDGE,
            JudgeRollouts,
            desk.answer,
            service.stop,
            # Questions wait at the desk, which shares its slots among the organisations; here one could keep all out.
            max_concurrent=sys.maxsize,
            within=SERVE_WITHIN_S,
            started=service.starting(),
        )

        async def sweep() -> None:
            await service.after_startup()
            await cache.sweep()

        for work in (replicas.follow(), desk.end_abandoned(), sweep()):
            service.add_background(asyncio.create_task(work))
        service.run("questions", _end_work_at_stop(service, questions, desk))
        service.on_close(endpoints.close)

    return run("judge", settings, setup)


async def _end_work_at_stop(service: Service, questions: Coroutine[Any, Any, None], desk: QuestionDesk) -> None:
    """Answer questions until the stop; then end the running work, and keep its answers for the next request."""
    serving = asyncio.create_task(questions)
    stopped = asyncio.create_task(service.stop.wait())
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    with suppress(asyncio.CancelledError):
        await stopped
    if service.stop.is_set():
        await desk.close()
    await serving
