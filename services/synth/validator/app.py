"""The validator: is the job's TOML right, and what exactly does it ask for?"""

from __future__ import annotations

from synth.bus.delivery import make_broker, on_event, serve_events
from synth.bus.rpc import SERVE_WITHIN_S, VALIDATE, ValidateJob, serve_questions
from synth.events import JobCreated
from synth.events.catalogue import Role
from synth.jobs.limits import JobLimitSettings
from synth.models import Registry
from synth.service import Service, run
from synth.validator.handlers import ValidatorHandlers
from synth.validator.settings import ValidatorSettings


def main() -> int:
    """Run the service; returns its exit code."""
    settings = ValidatorSettings()

    async def setup(service: Service) -> None:
        handlers = ValidatorHandlers(
            service.bus,
            service.blobs,
            Registry(settings.models_dir),
            trainer=settings.trainer,
            python_graders=settings.python_graders,
            plugins=settings.plugins,
            # The service's secrets are left out, because these settings reach the processes that read large jobs.
            limits=JobLimitSettings(**settings.model_dump(include=set(JobLimitSettings.model_fields))),
            off_loop=service.off_loop,
        )
        broker = make_broker(settings, service.name)
        on_event(broker, service.bus, Role.VALIDATOR, JobCreated, handlers.job_created, give_up=handlers.give_up)
        questions = serve_questions(
            service.bus,
            VALIDATE,
            ValidateJob,
            handlers.validate_job,
            service.stop,
            max_concurrent=settings.asks_at_once,
            within=SERVE_WITHIN_S,
            started=service.starting(),
        )
        service.run("questions", questions)
        service.run("events", serve_events(broker, service.bus, Role.VALIDATOR, service.stop, service.starting()))

    return run("validator", settings, setup)
