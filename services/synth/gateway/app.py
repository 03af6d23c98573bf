"""The assembly of the gateway: the API, and the read model behind it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from fastapi import Depends, FastAPI
from nats.errors import Error as NatsError
from nats.js.errors import Error as JetStreamError
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from synth.bus.connection import Connection
from synth.bus.kv.chat_grants import ChatGrant
from synth.bus.kv.replicas import ReplicaTable
from synth.bus.kv.secrets import SecretStore
from synth.bus.publish import Publisher
from synth.bus.server.account_key import AccountKey
from synth.bus.server.topology import API_KEYS, DAMAGE, EVENTS
from synth.errors import Permanent, Transient, UserError
from synth.gateway import errors
from synth.gateway.api import openapi
from synth.gateway.api.large_bodies import refuse_invalid_body
from synth.gateway.api.native import (
    account,
    environment_keys,
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
from synth.gateway.api.native.oversight import audit, dead_letters
from synth.gateway.api.openai.mounting import include_openai
from synth.gateway.api.parameters import refuse_unknown_query
from synth.gateway.api.synth import handshake, sealed_keys, task_apps
from synth.gateway.api.synth import jobs as synth_jobs
from synth.gateway.api.synth import listing as synth_listing
from synth.gateway.api.synth import models as synth_models
from synth.gateway.api.synth import submit as synth_submit
from synth.gateway.api.synth.judging import score as judge_score
from synth.gateway.api.synth.prefixes import include_under_every_prefix
from synth.gateway.asked_transcripts import AskedTranscripts
from synth.gateway.audit.requests import RequestAudit
from synth.gateway.audit.trail import AuditTrail
from synth.gateway.auth import ApiKeyCache, why_chat_ended
from synth.gateway.background import run_until
from synth.gateway.capacity import Capacity
from synth.gateway.chat_proxy.proxy import InferenceProxy
from synth.gateway.commands.multipart import UPLOADS
from synth.gateway.deps import Gateway
from synth.gateway.ledger.file import LedgerFile
from synth.gateway.ledger.watch import LedgerWatch
from synth.gateway.limits.admission import Admission
from synth.gateway.middleware.completeness import Completeness
from synth.gateway.middleware.gate import Gate
from synth.gateway.middleware.intact import Intact
from synth.gateway.middleware.request_metrics import RequestMetrics
from synth.gateway.read_model.event_log import find_event, has_event, read_size
from synth.gateway.read_model.hub import Hub
from synth.gateway.read_model.live_jobs import JobQueue
from synth.gateway.read_model.snapshot import holds_snapshot_of, keep_snapshot
from synth.gateway.read_model.store import ReadModel
from synth.gateway.settings import GatewaySettings
from synth.gateway.subscribers.ends import watch_ends, watched_s
from synth.gateway.subscribers.logins import Logins
from synth.gateway.watchdog import watch_jobs
from synth.graders.python.pool import open_pool
from synth.http_server.body import BodyMemory
from synth.http_server.open_routes import AddressLimit
from synth.models import Registry
from synth.outbound.service_calls import CallSigner
from synth.runtime import logs
from synth.service import Service, run
from synth.service_secrets import Purpose

log = logs.get("gateway")

_BUS_READY_WITHIN_S = 60.0
#: The number of records of a first key: its owner, the key and the organisation.
_FIRST_KEY_RECORDS = 3


def main() -> int:
    """Run `synthd gateway`."""
    return run("gateway", GatewaySettings(), setup)


async def setup(service: Service) -> ASGIApp:
    """Prepare the read model, start the background tasks, and return the API."""
    settings = service.settings
    assert isinstance(settings, GatewaySettings)
    # A killed process may have left partial uploads.
    shutil.rmtree(settings.work_dir / UPLOADS, ignore_errors=True)
    secrets = SecretStore(service.bus, service.secrets)
    model = ReadModel(settings.read_model_path)
    ledger = LedgerWatch(
        service.bus, LedgerFile(Path(f"{settings.read_model_path}.ledger")), check_s=settings.ledger_check_s
    )
    stream_end = await _wait_for_bus(service, settings, secrets, model, ledger)
    hub = Hub(service.bus, model, stream_end=stream_end, stream_buffer=settings.stream_buffer_bytes)
    disks = [settings.work_dir, *service.blobs.local_folders()]
    capacity = Capacity(disks, settings.disk_reserve_bytes, settings.log_reserve)
    capacity.note_log(await read_size(service.bus))
    replicas = ReplicaTable(service.bus)
    key_cache = ApiKeyCache(service.bus, secrets, ended_kept_s=max(3600.0, watched_s(settings)))
    publisher = Publisher(service.bus)
    calls = CallSigner(service.secrets[Purpose.GATEWAY_CALLS], lasts_s=settings.call_token_s)
    proxy = InferenceProxy(replicas, secrets=service.secrets, calls=calls, timeout_s=settings.inference_timeout_s)
    service.checks["read model"] = hub.check
    service.checks[DAMAGE] = ledger.check
    service.checks["version"] = model.newer_problem
    service.run("log reader", run_until(service.stop, hub.read_log()))
    service.run("projector", run_until(service.stop, hub.project()))
    service.run("check of the log", run_until(service.stop, hub.check_log(capacity.note_log)))
    service.run("check of the read model", run_until(service.stop, hub.check_file(settings.read_model_check_s)))
    service.run("comparison with the ledger", run_until(service.stop, ledger.run()))
    service.on_close(ledger.close)
    copying = keep_snapshot(model, lambda: hub.complete, every=settings.read_model_snapshot_events)
    service.run("snapshots of the read model", run_until(service.stop, copying))
    service.run("replica table", run_until(service.stop, replicas.follow()))
    service.run("key cache", run_until(service.stop, key_cache.follow()))
    trail = AuditTrail(service.bus, settings)
    request_audit = RequestAudit(trail, service.secrets[Purpose.CLIENTS].current)
    service.run("audit stream", trail.run(service.stop))
    service.on_close(trail.close)
    if settings.nats_issuer_seed is not None:
        issuer = AccountKey(settings.nats_issuer_seed.get_secret_value())
        logins = Logins(service.bus, key_cache, issuer, settings, request_audit)
        service.run("logins of subscribers", run_until(service.stop, logins.serve()))
        service.run("ends of bus keys", run_until(service.stop, watch_ends(service.bus, key_cache, settings)))
    queue = JobQueue(settings.pool)
    service.checks["queue"] = queue.check
    service.run(
        "watchdog", run_until(service.stop, watch_jobs(service.bus, hub, queue, service.blobs, settings, ledger))
    )
    service.run("memory of ended streams", run_until(service.stop, hub.ended_streams.return_memory()))
    service.run("streams", _close_streams(service, hub, proxy))
    return build_api(
        Gateway(
            settings=settings,
            service=service,
            bus=service.bus,
            blobs=service.blobs,
            hub=hub,
            read_model=model,
            queue=queue,
            ledger=ledger,
            publisher=publisher,
            secrets=secrets,
            keys=key_cache,
            replicas=replicas,
            registry=Registry(settings.models_dir, hub=settings.model_hub),
            proxy=proxy,
            admission=Admission(settings),
            body_memory=BodyMemory(settings.http_buffered_bytes),
            capacity=capacity,
            asked=AskedTranscripts(service.blobs),
            audit=request_audit,
            python=await open_pool(settings),
            open_limit=AddressLimit(settings.open_requests_per_s),
        )
    )


def build_api(gateway: Gateway) -> ASGIApp:
    """Return the API of a running gateway."""
    app = describe_api(gateway.service.observability())
    app.state.gateway = gateway
    app.add_middleware(
        Gate,
        max_bytes=gateway.settings.max_json_bytes,
        max_values=gateway.settings.max_json_values,
        memory=gateway.body_memory,
        off_loop=gateway.service.off_loop,
        pace=gateway.hub.pace,
    )
    app.add_middleware(Intact, ledger=gateway.ledger)
    app.add_middleware(Completeness, hub=gateway.hub, wait_s=gateway.settings.projection_wait_s)
    return RequestMetrics(app, gateway.audit)


def describe_api(observability: Sequence[BaseRoute] = ()) -> FastAPI:
    """Return the API without a gateway behind it: every route, and their document."""
    app = FastAPI(
        title="Synth",
        version="1",
        description="Post-train language models: a TOML in, a served model out.",
        routes=list(observability),
        dependencies=[Depends(refuse_unknown_query), Depends(refuse_invalid_body)],
        # FastAPI's page loads scripts from another host; docs/openapi.json is the document.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect repeats the `Host` header of the request; the gate removes the slash instead.
        redirect_slashes=False,
    )
    for part in (jobs, events, rollouts, traces, images, inference, keys, dead_letters, audit):
        app.include_router(part.router)
    synth_parts = (synth_submit, synth_listing, synth_jobs, sealed_keys, task_apps, synth_models, judge_score)
    for part in (account, environment_keys, judge_keys, files, *synth_parts):
        include_under_every_prefix(app, part.router)
    for part in (models, handshake):
        app.include_router(part.router, prefix="/api")
    include_openai(app)
    errors.install_handlers(app)
    openapi.complete_document(app)
    openapi.serve_document(app)
    return app


async def _wait_for_bus(
    service: Service, settings: GatewaySettings, secrets: SecretStore, model: ReadModel, ledger: LedgerWatch
) -> int:
    """Wait for a provisioned bus, compare it with the ledger, create the bootstrap keys, open the read model.

    Returns the log's last sequence.
    """
    deadline = time.monotonic() + _BUS_READY_WITHIN_S
    while True:
        try:
            info = await service.bus.js.stream_info(EVENTS)
            await ledger.begin()
            if not ledger.damage:
                # A key whose record is lost would get a new, empty organisation.
                await _bootstrap(service.bus, settings, secrets, log_used=info.state.last_seq > 0)
            mark = model.mark()
            # The snapshot, too, may refer to an unreadable event that the log no longer has.
            left_out = model.first_left_out()
            still = left_out is None or await find_event(service.bus, left_out) is not None
            model.prepare(
                stream=str(info.created),
                last_seq=info.state.last_seq,
                mark_holds=still and (mark is None or await has_event(service.bus, mark)),
                snapshot_mark_holds=still and await holds_snapshot_of(service.bus, model),
            )
            return info.state.last_seq
        except (NatsError, JetStreamError, TimeoutError, Transient) as error:
            if time.monotonic() > deadline:
                raise Permanent(f"the bus is not provisioned ({error!r}); run `synthd bus init`") from error
            log.warning("bus not ready", error=repr(error))
            await asyncio.sleep(0.5)


async def _bootstrap(bus: Connection, settings: GatewaySettings, secrets: SecretStore, *, log_used: bool) -> None:
    """Create the bootstrap keys. log_used: whether anything was ever appended to the log."""
    if settings.bootstrap_api_key is None:
        return
    await _check_first_key(bus, secrets, settings.bootstrap_api_key.get_secret_value(), log_used=log_used)
    owner = await secrets.ensure_api_key(settings.bootstrap_api_key.get_secret_value())
    if settings.bootstrap_environment_key is None:
        return
    key = settings.bootstrap_environment_key.get_secret_value()
    if all(kept.key != key for kept in await secrets.environment_keys(owner.org)):
        origins = settings.bootstrap_environment_origins
        await secrets.add_environment_key(owner.org, key, by=owner.key_id, only_at=origins)
    revoked = [grant for grant in await secrets.chat_grants(key) if grant.org == owner.org and grant.revoked_at]
    if len(key) >= settings.environment_chat_characters and not revoked:
        lasts = timedelta(seconds=settings.environment_chat_s)

        async def has_ended(grant: ChatGrant) -> bool:
            return await why_chat_ended(grant, secrets.find_api_key_by_hash) is not None

        granted = await secrets.grant_chat(
            owner.org, key, by=owner.key_id, by_hash=owner.digest, lasts=lasts, has_ended=has_ended
        )
        if granted is None:
            log.warning("SYNTH_BOOTSTRAP_ENVIRONMENT_KEY opens chat for another organisation", org=owner.org)


async def _check_first_key(bus: Connection, secrets: SecretStore, key: str, *, log_used: bool) -> None:
    """Raise `UserError` if the bootstrap key has no organisation in a cluster that has run before.

    A new organisation would hide that the records of the earlier one are lost.
    """
    record = await secrets.find_api_key(key)
    if record is not None and await secrets.organisation(record.org) is not None:
        return
    written = (await bus.js.stream_info(f"KV_{API_KEYS}")).state.last_seq
    # A first start that was killed between the records of its key starts again.
    if not log_used and written < _FIRST_KEY_RECORDS:
        return
    missing = "record of the bootstrap key" if record is None else f"organisation {record.org}, of the bootstrap key"
    raise UserError(
        f"the bucket {API_KEYS} has no {missing}, and this cluster has run before",
        expected="the key of an organisation of this cluster; only an empty cluster makes a new one",
        fix="restore the cluster from its backup into a new data folder (synthctl restore DIR --data NEW, or "
        "synthd bus restore DIR), or set the key to one that the cluster knows (synthctl keys create makes one)",
        where="SYNTH_BOOTSTRAP_API_KEY",
    )


async def _close_streams(service: Service, hub: Hub, proxy: InferenceProxy) -> None:
    """End the open streams at the stop, so that the process does not wait for their clients."""
    await service.stop.wait()
    hub.close()
    await proxy.close()
