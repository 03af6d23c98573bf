"""The files service: is an uploaded file something that a model can be trained on?"""

from __future__ import annotations

import asyncio

from synth.bus.delivery import make_broker, on_event, serve_events
from synth.events import FileUploaded
from synth.events.catalogue import Role
from synth.files.handlers import Handlers
from synth.files.image_source import ImageSource
from synth.files.rewrite import Rewriter
from synth.files.settings import FilesSettings
from synth.images.decoder import ImageDecoder
from synth.outbound.http_guard import guarded_client
from synth.sandbox.decoders import open_for_decoding
from synth.service import Service, run


def main() -> int:
    """Run the service; returns its exit code."""
    settings = FilesSettings()

    async def setup(service: Service) -> None:
        client = guarded_client(settings.guard, timeout=settings.image_deadline_s)
        decoder, slots = ImageDecoder.start(settings), asyncio.Semaphore(settings.image_fetches_at_once)
        source = ImageSource(client, service.blobs, settings, decoder, slots)
        rewriter = Rewriter(service.blobs, source, settings.work_dir / "rewrites")
        lines = (settings.max_line_bytes, settings.max_line_values)
        limits = (*lines, settings.parquet_memory_bytes, settings.parquet_rows_bytes)
        sandbox = await open_for_decoding(settings.sandbox)
        handlers = Handlers(service.bus, service.blobs, rewriter, *limits, sandbox)
        broker = make_broker(settings, service.name)
        on_event(
            broker,
            service.bus,
            Role.FILES,
            FileUploaded,
            handlers.file_uploaded,
            concurrency=settings.files_at_once,
            spare=1,
            give_up=handlers.give_up,
        )
        service.on_close(client.aclose)
        service.on_close(decoder.close)
        service.run("events", serve_events(broker, service.bus, Role.FILES, service.stop, service.starting()))

    return run("files", settings, setup)
