"""The files service: is an uploaded file something that a model can be trained on?"""

from __future__ import annotations

from synth.bus.delivery import make_broker, on_event, serve_events
from synth.catalogue import Role
from synth.events import FileUploaded
from synth.files.handlers import Handlers
from synth.files.settings import FilesSettings
from synth.service import Service, run


def main() -> int:
    """Run the service; returns its exit code."""
    settings = FilesSettings()

    async def setup(service: Service) -> None:
        handlers = Handlers(service.bus, service.blobs)
        broker = make_broker(settings, service.name)
        on_event(
            broker,
            service.bus,
            Role.FILES,
            FileUploaded,
            handlers.file_uploaded,
            concurrency=settings.files_at_once,
        )
        service.run("events", serve_events(broker, service.bus, Role.FILES, service.stop))

    return run("files", settings, setup)
