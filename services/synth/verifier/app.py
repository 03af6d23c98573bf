"""The verifier: is everything there that a validated job needs?"""

from __future__ import annotations

import asyncio

from synth.bus.delivery import make_broker, on_event, serve_events
from synth.bus.kv.secrets import SecretStore
from synth.bus.rpc import CHECK, SERVE_WITHIN_S, VERIFY, CheckJob, VerifyTaskApp, serve_questions
from synth.events import JobResumed, JobValidated
from synth.events.catalogue import Role
from synth.fairness.slots import FairSlots
from synth.models import Registry
from synth.outbound.answer_memory import AnswerMemory
from synth.outbound.http_guard import guarded_client
from synth.service import Service, run
from synth.verifier.handlers import VerifierHandlers
from synth.verifier.rendering import Rendering
from synth.verifier.settings import VerifierSettings
from synth.verifier.tasks.lost import LostTasks


def main() -> int:
    """Run the service; returns its exit code."""
    settings = VerifierSettings()

    async def setup(service: Service) -> None:
        registry = Registry(settings.models_dir, hub=settings.model_hub)
        handlers = VerifierHandlers(
            bus=service.bus,
            secrets=SecretStore(service.bus, service.secrets),
            registry=registry,
            client=guarded_client(settings.guard, timeout=settings.call_deadline_s),
            settings=settings,
            stop=service.stop,
            off_loop=service.off_loop,
            answers=AnswerMemory(settings.answer_memory_bytes, wait_s=settings.answer_wait_s),
            rendering=Rendering(service.blobs, registry, settings, FairSlots(settings.renders_at_once, spare=1)),
        )
        broker = make_broker(settings, service.name)
        on_event(
            broker,
            service.bus,
            Role.VERIFIER,
            JobValidated,
            handlers.job_validated,
            concurrency=settings.jobs_at_once,
            spare=settings.jobs_at_once,
            give_up=handlers.give_up,
        )
        on_event(broker, service.bus, Role.VERIFIER, JobResumed, handlers.job_resumed, give_up=handlers.park)
        at_once, within = settings.asks_at_once, SERVE_WITHIN_S
        task_apps = serve_questions(
            service.bus,
            VERIFY,
            VerifyTaskApp,
            handlers.verify_task_app,
            service.stop,
            max_concurrent=at_once,
            within=within,
            spare=at_once,
            started=service.starting(),
        )
        jobs = serve_questions(
            service.bus,
            CHECK,
            CheckJob,
            handlers.check_job,
            service.stop,
            max_concurrent=at_once,
            within=within,
            spare=at_once,
            started=service.starting(),
        )
        service.add_background(asyncio.create_task(handlers.withdrawals.follow(service.bus)))
        lost = LostTasks(service.bus, settings)
        service.checks["tasks"] = lost.check
        service.add_background(asyncio.create_task(lost.run()))
        service.run("questions about task apps", task_apps)
        service.run("questions about jobs", jobs)
        service.run("events", serve_events(broker, service.bus, Role.VERIFIER, service.stop, service.starting()))

    return run("verifier", settings, setup)
