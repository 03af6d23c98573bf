"""The inference service: an OpenAI API over engines that hold training policies and served models."""

from __future__ import annotations

import asyncio
import secrets
from functools import lru_cache

from prometheus_client import REGISTRY
from starlette.requests import Request
from starlette.types import ASGIApp

from synth.bus.kv.replicas import Replica, announce
from synth.bus.tasks.attempt_logs import AttemptLogs
from synth.bus.tasks.solitude import SuspicionSettings
from synth.bus.tasks.worker import TaskWorker
from synth.errors import InvalidKey
from synth.images.decoder import ImageDecoder
from synth.inference.api.app import build_api
from synth.inference.api.images import ChatImages
from synth.inference.api.limits import RequestLimits
from synth.inference.grammar.compiler import SchemaLimits, schema_decoders
from synth.inference.recording.metrics import RecorderMetrics
from synth.inference.recording.recorder import Recorder
from synth.inference.serving.engine_factory import (
    TransformersEngineFactory,
    VllmEngineFactory,
    build_vllm_pool,
    warm_up,
)
from synth.inference.serving.metrics import EngineMetrics
from synth.inference.serving.model_pool import EngineFactory, ModelPool
from synth.inference.serving.owner import ServeTaskOwner
from synth.inference.serving.router import ModelRouter
from synth.inference.serving.turns import SharedDevice, take_turns
from synth.inference.settings import InferenceSettings
from synth.keys import Cid, read_cid
from synth.models import Registry
from synth.outbound.http_guard import guarded_client
from synth.outbound.service_calls import CallVerifier
from synth.rollout_credential import CID_FIX
from synth.runtime import logs
from synth.service import Service, run
from synth.service_secrets import Purpose

log = logs.get("inference")

_SWEEP_S = 30.0
#: Credentials whose signature is known to be right.
_CIDS_KEPT = 4096
#: The callers that may chat with a served model, each on behalf of the organisation that its token names.
_CHATTING = (Purpose.GATEWAY_CALLS, Purpose.JUDGE_CALLS)


def main() -> int:
    """Run `synthd inference`; returns its exit code."""
    settings = InferenceSettings()

    async def setup(service: Service) -> ASGIApp:
        credentials = service.secrets[Purpose.CREDENTIALS]
        boot = secrets.token_hex(4)
        changed = asyncio.Event()
        registry = Registry(settings.models_dir, hub=settings.model_hub)
        router = ModelRouter(service.bus, service.blobs, settings.work_dir / "models", registry)
        vllm_pool = build_vllm_pool(settings)
        engine_factory: EngineFactory = (
            VllmEngineFactory(settings, vllm_pool) if settings.engine == "vllm" else TransformersEngineFactory(settings)
        )
        if settings.turn_file is not None:
            device = SharedDevice(
                settings.turn_file, who=settings.replica, turn_s=settings.turn_s, wait_s=settings.turn_wait_s
            )
            service.add_background(asyncio.create_task(device.run()))
            engine_factory = take_turns(engine_factory, device)
        model_pool = ModelPool(
            router.files_of,
            engine_factory,
            max_models=settings.max_models,
            spare=settings.spare_models,
            load_timeout=settings.load_wait_s,
        )
        router.attach_model_pool(model_pool)
        service.on_close(model_pool.close)
        REGISTRY.register(EngineMetrics(model_pool, vllm_pool))

        def describe() -> Replica:
            stats = model_pool.stats().values()
            return Replica(
                id=settings.replica,
                boot=boot,
                url=settings.public_url or service.url,
                pool=settings.pool,
                models=router.served(),
                running=sum(s.running for s in stats),
                waiting=sum(s.waiting for s in stats),
            )

        recorder_name = describe().recorder
        calls = CallVerifier(service.secrets, recorder_name)

        # A rollout's calls and its close bring the same text.
        @lru_cache(maxsize=_CIDS_KEPT)
        def read_own_cid(cid_text: str) -> Cid:
            cid = read_cid(cid_text, credentials, now=0)
            if cid.replica != recorder_name:
                raise InvalidKey(f"this rollout is recorded by another process; {CID_FIX}")
            return cid

        async def authenticate(request: Request) -> str:
            org = request.headers.get("x-synth-org", "")
            try:
                calls.verify(request.headers.get("authorization", ""), org, of=_CHATTING)
            except InvalidKey as error:
                what = f"no rollout credential: {CID_FIX}; other calls come through the gateway ({error})"
                raise InvalidKey(what) from error
            return org

        serve_owner = ServeTaskOwner(service.bus, service.blobs, settings, router, boot, changed)
        worker = TaskWorker(
            service.bus,
            kind="serve",
            pool=settings.pool,
            capacity=settings.job_models,
            spare=settings.spare_models,
            failures=settings.task_failures,
            suspicion=SuspicionSettings(after=settings.task_suspicions, alone_s=settings.task_alone_s),
            attempt_logs=AttemptLogs(service.bus, service.blobs, settings.job_log_bytes, settings.job_log_every_s),
            run=serve_owner.run,
            give_up=serve_owner.give_up,
        )
        service.checks["worker"] = worker.health_problem
        service.add_background(asyncio.create_task(announce(service.bus, describe, changed)))
        service.run("serve", worker.serve(service.stop))
        service.add_background(asyncio.create_task(_warm_up(service, settings)))
        client = guarded_client(settings.guard, timeout=settings.image_deadline_s)
        service.on_close(client.aclose)
        decoder = ImageDecoder.start(settings)
        service.on_close(decoder.close)
        service.on_close(schema_decoders(settings.sandbox).close)
        images = ChatImages(
            client,
            service.blobs,
            decoder,
            at_once=settings.image_fetches_at_once,
            request_bytes=settings.max_request_image_bytes,
            per_message=settings.max_chat_images_per_message,
        )
        recorder = Recorder(read_own_cid, max_bytes=settings.recorder_bytes, end_s=settings.engine_call_s)
        REGISTRY.register(RecorderMetrics(recorder))
        service.add_background(asyncio.create_task(_sweep(recorder)))
        service.add_background(asyncio.create_task(_unload_idle(model_pool, settings.idle_unload_s, changed)))
        return build_api(
            router,
            recorder,
            authenticate,
            calls=calls,
            images=images,
            off_loop=service.off_loop,
            limits=request_limits(settings),
            extra_routes=service.observability(),
        )

    return run("inference", settings, setup)


def request_limits(settings: InferenceSettings) -> RequestLimits:
    """Return the bounds of one request of this process."""
    whole_context = settings.engine == "vllm"  # which keeps memory for the tokens that there are
    return RequestLimits(
        body=settings.max_request_bytes,
        values=settings.max_request_values,
        characters=settings.max_prompt_characters,
        buffered=settings.http_buffered_bytes,
        choices=settings.max_choices,
        seconds=settings.completion_s,
        end_seconds=settings.engine_call_s,
        default_max_tokens=settings.default_max_tokens or (None if whole_context else 1024),
        schema=SchemaLimits(
            size=settings.max_schema_bytes,
            depth=settings.max_schema_depth,
            seconds=settings.schema_compile_s,
            memory=settings.schema_compile_bytes,
            checks=schema_decoders(settings.sandbox),
        ),
    )


async def _warm_up(service: Service, settings: InferenceSettings) -> None:
    """Load what the first model needs, once the service is up."""
    await service.after_startup()
    await asyncio.to_thread(warm_up, settings)
    await service.stop.wait()


async def _sweep(recorder: Recorder) -> None:
    """Drop the rollouts that expired because their collectors are gone."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        recorder.sweep()


async def _unload_idle(model_pool: ModelPool, seconds: float, changed: asyncio.Event) -> None:
    """Unload the served models that had no request for `seconds`."""
    while True:
        await asyncio.sleep(min(_SWEEP_S, seconds))
        if unloaded := await model_pool.unload_idle(seconds):
            log.info("unloaded models without recent requests", models=unloaded, seconds=seconds)
            changed.set()
