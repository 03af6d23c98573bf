"""The validator: is the job's TOML right, and what exactly does it ask for?"""

from __future__ import annotations

from synth.bus.delivery import make_broker, on_event, serve_events
from synth.events import JobCreated
from synth.events.catalogue import Role
from synth.models import Registry
from synth.runtime.settings import ServiceSettings
from synth.service import Service, run
from synth.validator.handlers import ValidatorHandlers


async def setup(service: Service) -> None:
    handlers = ValidatorHandlers(service.bus, Registry(service.settings.models_dir))
    broker = make_broker(service.settings, service.name)
    on_event(broker, service.bus, Role.VALIDATOR, JobCreated, handlers.job_created, give_up=handlers.give_up)
    service.run("events", serve_events(broker, service.bus, Role.VALIDATOR, service.stop))


def main() -> int:
    """Run the service; returns its exit code."""
    return run("validator", ServiceSettings(), setup)
