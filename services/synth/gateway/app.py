"""The gateway: the API, and the read model behind it. Wiring only."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from fastapi import FastAPI
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from synth.bus.kv.replicas import ReplicaTable
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.server.topology import EVENTS
from synth.errors import Permanent, SynthError
from synth.gateway import errors
from synth.gateway.api import openapi
from synth.gateway.api.native import (
    account,
    events,
    files,
    images,
    inference,
    jobs,
    judge_keys,
    keys,
    models,
    rollouts,
    traces,
)
from synth.gateway.api.openai.mounting import include_openai
from synth.gateway.api.synth import jobs as synth_jobs
from synth.gateway.api.synth import listing as synth_listing
from synth.gateway.api.synth import models as synth_models
from synth.gateway.api.synth import sealed_keys, task_apps
from synth.gateway.api.synth import submit as synth_submit
from synth.gateway.api.synth.judging import score as judge_score
from synth.gateway.api.synth.prefixes import include_under_every_prefix
from synth.gateway.auth import ApiKeyCache
from synth.gateway.chat_proxy.proxy import InferenceProxy
from synth.gateway.commands.multipart import UPLOADS
from synth.gateway.deps import Gateway
from synth.gateway.middleware.body_limit import BodyLimit
from synth.gateway.middleware.request_metrics import RequestMetrics
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from synth.gateway.watchdog import watch_jobs
from synth.models import Registry
from synth.runtime import logs
from synth.service import Service, run

log = logs.get("gateway")

_BUS_READY_WITHIN_S = 60.0


def main() -> int:
    """`synthd gateway`."""
    return run("gateway", GatewaySettings(), setup)


async def setup(service: Service) -> ASGIApp:
    """Prepare the read model, start the background tasks, and return the API."""
    settings = service.settings
    assert isinstance(settings, GatewaySettings)
    # What a killed predecessor left half received.
    shutil.rmtree(settings.work_dir / UPLOADS, ignore_errors=True)
    cluster_secret = settings.cluster_secret.get_secret_value()
    secrets = SecretStore(service.bus, cluster_secret)
    model = ReadModel(settings.read_model_path)
    stream_end = await _wait_for_bus(service, settings, secrets, model)
    hub = Hub(service.bus, model, stream_end=stream_end, stream_buffer=settings.stream_buffer)
    replicas = ReplicaTable(service.bus)
    key_cache = ApiKeyCache(service.bus, secrets)
    publisher = Publisher(service.bus)
    proxy = InferenceProxy(replicas, cluster_secret=cluster_secret, timeout_s=settings.inference_timeout_s)
    service.checks["read model"] = hub.check
    service.run("log reader", _run_until_stopped(service.stop, hub.read_log()))
    service.run("projector", _run_until_stopped(service.stop, hub.project()))
    service.run("replica table", _run_until_stopped(service.stop, replicas.follow()))
    service.run("key cache", _run_until_stopped(service.stop, key_cache.follow()))
    service.run("watchdog", _run_until_stopped(service.stop, watch_jobs(hub, publisher, service.blobs, settings)))
    service.run("streams", _close_streams(service, hub, proxy))
    return build_api(
        Gateway(
            settings=settings,
            service=service,
            bus=service.bus,
            blobs=service.blobs,
            hub=hub,
            read_model=model,
            publisher=publisher,
            secrets=secrets,
            keys=key_cache,
            replicas=replicas,
            registry=Registry(settings.models_dir, hub=settings.model_hub),
            proxy=proxy,
        )
    )


def build_api(gateway: Gateway) -> ASGIApp:
    """The API of a running gateway."""
    app = describe_api(gateway.service.observability())
    app.state.gateway = gateway
    app.add_middleware(BodyLimit, limit=gateway.settings.max_json_bytes)
    return RequestMetrics(app)


def describe_api(observability: Sequence[BaseRoute] = ()) -> FastAPI:
    """The API without a gateway behind it: every route, and their document."""
    app = FastAPI(
        title="Synth",
        version="1",
        description="Post-train language models: a TOML in, a served model out.",
        routes=list(observability),
    )
    for part in (jobs, events, rollouts, traces, images, inference, keys):
        app.include_router(part.router)
    synth_parts = (synth_submit, synth_listing, synth_jobs, sealed_keys, task_apps, synth_models, judge_score)
    for part in (account, judge_keys, files, *synth_parts):
        include_under_every_prefix(app, part.router)
    app.include_router(models.router, prefix="/api")
    include_openai(app)
    errors.install_handlers(app)
    openapi.complete_document(app)
    return app


async def _wait_for_bus(service: Service, settings: GatewaySettings, secrets: SecretStore, model: ReadModel) -> int:
    """Wait for a provisioned bus, make the bootstrap keys, open the read model; returns the log's last sequence."""
    deadline = time.monotonic() + _BUS_READY_WITHIN_S
    while True:
        try:
            info = await service.bus.js.stream_info(EVENTS)
            if settings.bootstrap_api_key:
                owner = await secrets.ensure_api_key(settings.bootstrap_api_key.get_secret_value())
                if settings.bootstrap_environment_key:
                    key = settings.bootstrap_environment_key.get_secret_value()
                    await secrets.add_environment_key(owner.org, key)
            model.prepare(stream=str(info.created), last_seq=info.state.last_seq)
            return info.state.last_seq
        except (NatsError, JetStreamError, TimeoutError) as error:
            if time.monotonic() > deadline:
                raise Permanent(f"the bus is not provisioned ({error!r}); run `synthd bus init`") from error
            log.warning("bus not ready", error=repr(error))
            await asyncio.sleep(0.5)


async def _run_until_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never ends by itself, and cancel it when the service stops."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            raise SynthError("a part of the gateway that never ends has ended")
    finally:
        stopped.cancel()
        while not working.done():
            # Again and again: some awaits of Python 3.11 swallow a cancellation.
            working.cancel()
            await asyncio.wait([working], timeout=0.2)


async def _close_streams(service: Service, hub: Hub, proxy: InferenceProxy) -> None:
    """At the stop, end the open streams: the process need not wait for their clients."""
    await service.stop.wait()
    hub.close()
    await proxy.close()
